"""The report and its form for a paper: what is written, printed and refused; the same bytes twice; gaps one sees."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.report import Report, terminal
from analysis.report.files import write_all
from analysis.report.headline import answer
from analysis.report.paper import main_tex
from analysis.spec.validation import BadPlan
from analysis.tables.comparison import tables
from analysis.tables.table import latex_escape
from launcher.run.folder import metrics_path, run_folder
from tests.analysis import qstar
from tests.analysis.conftest import (
    ANALYSIS,
    GROUPS,
    MakeSweep,
    Page,
    Reported,
    contents,
    ended,
    logging,
    replan,
    reported,
    studied,
    sweeps_in,
    without,
)

ROOT = Path(__file__).parents[2]


def test_report_has_every_part_and_says_where(plain: Reported) -> None:
    assert "cannot decide with n = 3: 7 seeds are needed" in plain.page and "not significant" not in plain.page
    assert plain.printed.rstrip().endswith(f"Report: {plain.report / 'index.html'}")
    names = set(contents(plain.report))
    assert {"index.html", "report.json", "results.csv"} <= names
    assert {f"tables/{t}.{s}" for t in ("main", "metrics", "cost", "runs") for s in ("md", "tex", "csv")} <= names
    curves = {f"figures/curve_{m.replace('/', '_')}.{s}" for m in ANALYSIS["metrics"] for s in ("svg", "csv")}
    assert curves <= names and "figures/differences.svg" in names
    assert {Path(name).suffix for name in names if name.startswith("figures/")} == {".svg", ".csv"}


def test_figures_have_other_formats_on_request(make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in (folder / "report" / "figures").glob("differences.*"))

    folder = make_sweep(("C0", "C1"), seeds=(0, 1), steps=20, analysis={"primary": ANALYSIS["primary"]})
    assert main(["report", str(folder), "--figures", "pdf,png"]) == 0
    assert names() == [f"differences.{suffix}" for suffix in ("csv", "pdf", "png", "svg")]
    first = contents(folder / "report")
    assert main(["report", str(folder), "--figures", "png,pdf"]) == 0 and contents(folder / "report") == first
    assert main(["report", str(folder)]) == 0 and names() == ["differences.csv", "differences.svg"]
    with pytest.raises(SystemExit):
        main(["report", str(folder), "--figures", "pdf,eps"])
    assert "'eps': pdf, png and pdf,png are allowed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("axis", "clock", "unit"),
    [("device_seconds", "cost/device_seconds", "Device-seconds"), ("flops", "cost/flops", "FLOP")],
)
def test_the_page_says_what_times_are_counted_in(
    axis: str, clock: str, unit: str, make_sweep: MakeSweep, unrendered: None
) -> None:
    lines = logging(lambda group, seed, cell, step: {"a/up": seed + step, clock: 2.0 * step})
    folder = make_sweep(("C0", "C1"), (0, 1), 20, {"primary": {"metric": "a/up"}, "axis": axis}, lines=lines)
    assert f"{unit} until: those of the run by the first step at which" in reported(folder).page


@pytest.mark.processes
def test_same_input_gives_the_same_bytes_in_another_process_and_place(make_sweep: MakeSweep, tmp_path: Path) -> None:
    together = [["analysis/wH_per_token", "actor/ppo_kl"], "cost/step_seconds"]
    folder = make_sweep(("C0", "C1"), analysis={**ANALYSIS, "figures": together})
    assert main(["report", str(folder)]) == 0
    first = contents(folder / "report")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder.parent, elsewhere, ignore=shutil.ignore_patterns("report"))
    command = [sys.executable, "-m", "analysis", "report", str(elsewhere / folder.name)]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    second = contents(elsewhere / folder.name / "report")
    assert [name for name in first if first[name] != second.get(name)] == [] and set(first) == set(second)


def test_page_needs_nothing_from_outside(plain: Reported) -> None:
    html = plain.page
    attributes = [attributes for _, attributes in Page(html).tags]
    ids = [own["id"] for own in attributes if "id" in own]
    assert len(ids) == len(set(ids))
    for link in (own[key] or "" for own in attributes for key in ("src", "href", "xlink:href") if key in own):
        if link.startswith("#"):
            assert link[1:] in ids
        elif link != "data:,":
            assert (plain.report / link).is_file(), link
    for used in re.findall(r"url\(#([^)]+)\)", html):
        assert used in ids
    assert len(html) < 5e6 and str(plain.folder) not in html
    for group in GROUPS:
        assert html.count(f'data-group="{group}"') > 10


def test_failed_and_missing_runs_are_visible_everywhere(make_sweep: MakeSweep) -> None:
    folder = make_sweep()
    error = {"type": "RuntimeError", "message": "loss <exploded>", "traceback": ""}
    without(ended(folder, "failed", "C1-1", error=error), "PTRW-2")
    log = metrics_path(run_folder(folder.parent, "C1-1"))
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:30]) + lines[30][:20])
    found = reported(folder)
    why = "Missing: C1 (BNTO minimal), seed 1: failed: RuntimeError: loss <exploded> (last step 30)"
    assert why in found.printed
    report, html = found.report, found.page
    assert "Missing: 2 of 12 planned results" in html
    assert "loss &lt;exploded&gt;" in html and "loss <exploded>" not in html
    assert "PTRW, seed 2: not started: there is no run folder" in html
    assert "10 done, 1 failed, 1 missing" in html
    first = html[html.index('id="answer"') : html.index('id="gaps"')]
    assert "only 2 of 3 planned pairs have both results" in first
    assert "<code>python launch.py -m experiment=quickstart</code>" in first
    assert "| 2 of 3 |" in (report / "tables" / "main.md").read_text()
    assert "C1 (BNTO minimal), 2 of 3 seeds" in (report / "figures" / "curve_actor_ppo_kl.svg").read_text()
    assert len(found.document["answer"]["gaps"]) == 2
    assert found.document["bad_lines"] == [
        {"file": "runs/C1-1/metrics.jsonl", "line": 31, "why": "torn: the last line is incomplete", "torn": True}
    ]


def test_tables_hold_raw_numbers_and_results_are_tidy(plain: Reported) -> None:
    rows = plain.rows("tables/main")
    assert {row["summary"] for row in rows} == {"final", "auc", "best", "time_to"}
    first = next(row for row in rows if row["group"] == "C1")
    assert first["test"] == "paired_t" and float(first["level"]) == 0.025
    assert float(first["p"]) <= float(first["p_adjusted"]) and float(first["difference_low"]) > 0
    found = plain.rows("results")
    assert list(found[0]) == ["run", "group", "label", "seed", "metric", "summary", "value"]
    assert sum(row["metric"] == "analysis/reward_sum_mean" and row["summary"] == "final" for row in found) == 12
    assert any(row["summary"].startswith("time_to") for row in found)


@pytest.mark.parametrize(
    ("declared", "given", "code", "said"),
    [
        (None, "", 2, "analysis.primary.metric: no metric is declared; the recorded metrics are loss, val/acc. Fix: "),
        (None, "los", 2, " = 'los': no run has recorded it; the recorded metrics are loss, val/acc. Fix: "),
        (None, "the acc", 2, " = 'the_acc': no run has recorded it; the recorded metrics are "),
        ("acc", "", 2, "no run has recorded it; the recorded metrics are val/acc, loss. Fix: rlsweep report "
                       "multirun/quickstart --metric val/acc\n"),
        (None, "val/acc", 0, "* The metric is val/acc, as --metric says; the plan declares none."),
        ("loss", "val/acc", 0, "* The metric is val/acc, as --metric says; the plan declares loss."),
    ],
)  # fmt: skip
def test_a_metric_is_declared_or_named_and_recorded(
    make_sweep: MakeSweep, unrendered: None, capsys: Any, declared: str | None, given: str, code: int, said: str
) -> None:
    asked = {} if declared is None else {"primary": {"metric": declared}}
    lines = logging(lambda _, seed, __, step: {"loss": 1 / step, "val/acc": float(seed + step)})
    folder = make_sweep(("A", "B"), (0, 1), analysis=asked, lines=lines)
    record = {"done": [], "planned": 4, "hypotheses": {}, "plan": json.loads((folder / "plan.json").read_text())}
    (folder / "hypotheses.json").write_text(json.dumps({"declarations": [record]}))
    words = ["--metric", given, "--direction", "lower"] if given else []
    assert main(["report", str(folder), *words]) == code
    printed = "".join(capsys.readouterr())
    assert said in printed and (declared or code or "runs were done: metric = val/acc (declared: none).\n" in printed)


def test_claims_of_an_old_sweep_of_forks_are_conditional(make_sweep: MakeSweep, unrendered: None, capsys: Any) -> None:
    path = make_sweep(("A", "B"), (0, 1)) / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fork": {"source": "A", "at": 100}}))
    assert main(["report", str(path.parent)]) == 0
    assert "* Every run continues the first 100 steps of A with the same seed. The claims" in capsys.readouterr().out


def test_folder_without_plan_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2 and list(tmp_path.iterdir()) == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "plan.json" in said


def test_no_run_yet_still_gives_a_report(make_sweep: MakeSweep) -> None:
    folder = make_sweep()
    shutil.rmtree(folder.parent / "runs")
    assert "No method can be compared with the baseline." in reported(folder).page


def test_figures_of_an_earlier_plan_go_away(make_sweep: MakeSweep, unrendered: None) -> None:
    scatter = {"scatter": ["analysis/reward_sum_mean", "actor/ppo_kl"]}
    folder = make_sweep(("C0", "C1"), seeds=(0, 1), analysis={**ANALYSIS, "figures": [scatter]})
    main(["report", str(folder)])
    figures = {path.stem for path in (folder / "report" / "figures").iterdir()}
    assert {"scatter_analysis_reward_sum_mean__actor_ppo_kl", "curve_actor_ppo_kl"} <= figures
    main(["report", str(replan(folder, lambda plan: plan["analysis"].update(metrics=[], figures=[])))])
    left = {path.name for path in (folder / "report" / "figures").iterdir() if path.suffix == ".svg"}
    assert left == {"differences.svg", "curve_analysis_reward_sum_mean.svg", "reach_1.svg"}


def test_each_figure_has_files_of_its_own(make_sweep: MakeSweep, unrendered: None) -> None:
    metrics = ["pass@1", "pass/1", "Pass_1", "奖励", "长度", "pass_1_2", "长" * 99]
    pair = metrics[:2]
    asked = {"primary": {"metric": "pass@1"}, "metrics": metrics}
    asked["figures"] = [{"scatter": pair}, {"scatter": pair, "diagonal": True}]
    lines = logging(lambda _, seed, __, step: {name: seed + step / n for n, name in enumerate(metrics, 1)})
    found = reported(make_sweep(("A", "B"), analysis=asked, lines=lines))
    figures = json.loads((found.report / "report.json").read_bytes())["figures"]
    curves = ["curve_pass_1", "curve_pass_1_2", "curve_Pass_1_3", "curve_奖励", "curve_长度", "curve_pass_1_2_2"]
    curves.append(f"curve_{'长' * 66}")
    assert [*figures] == ["differences", *curves, "scatter_pass_1__pass_1", "scatter_pass_1__pass_1_2"]
    for name, metric in zip(curves, metrics, strict=True):
        assert f",{metric}," in (found.report / "figures" / f"{name}.csv").read_text().splitlines()[1]
        assert found.page.count(f'href="figures/{name}.svg"') == found.page.count(f'data-figure="{name}"') == 1


@pytest.mark.latex
@pytest.mark.parametrize("name", ["plain", "pictured"])
def test_latex_compiles(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tables: Path = request.getfixturevalue(name).report / "tables"
    inputs = "\n\n".join(rf"\input{{{path}}}" for path in sorted(tables.glob("*.tex")))
    source = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + inputs + r"\end{document}"
    (tmp_path / "paper.tex").write_text(source)
    compiled(tmp_path / "paper.tex")


def compiled(source: Path) -> str:
    """What pdflatex says of a file that it must compile."""
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", source.name]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.mark.latex
def test_latex_prints_each_character_that_is_not_escaped(tmp_path: Path) -> None:
    """With the preamble of the paper."""
    preamble, begin, _ = (ROOT / "analysis" / "report" / "main.tex.j2").read_text().partition(r"\begin{document}")
    printed = [latex_escape(char) for char in map(chr, range(0x20, 0xD800))]
    body = "\n\n".join(f"x{text}x" for text in printed if not text.startswith("U+"))
    (tmp_path / "all.tex").write_text(f"{preamble}{begin}{body}\\end{{document}}", encoding="utf-8")
    compiled(tmp_path / "all.tex")
    assert "Missing character" not in (tmp_path / "all.log").read_text(errors="replace")


def test_a_file_that_cannot_be_made_leaves_the_former_report(tmp_path: Path) -> None:
    write_all(tmp_path, {"a.md": b"former"})
    with pytest.raises(ZeroDivisionError):
        write_all(tmp_path, {"a.md": b"later", "tables/b.md": lambda: [str(1 // 0)]})
    said = r"cannot be written here \(No space left on device\). Fix: free space"
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(BadPlan, match=said):
        write_all(tmp_path, {"a.md": b"later", "tables/b.md": lambda: [str(full.write(b"-"))]})
    assert [path.name for path in tmp_path.rglob("*.*")] == ["a.md"] and (tmp_path / "a.md").read_bytes() == b"former"


def write_paper(root: Path) -> Reported:
    """The paper on a sweep whose names need escaping, with a run that is not there, and tables longer than a page."""

    def change(plan: dict[str, Any]) -> None:
        plan |= {"experiment": "50%_of_{α} & more", "command": "python launch.py -m 'experiment=x' a.b=[1,2] c=$HOME"}
        plan["groups"]["q_star"]["label"] = "q* \\ łąka #1 ~ é 中"
        plan["groups"]["ppo"]["label"] = "ppo_with_the_clipped_objective_of_a/former/release"
        claim = {"claim": "The method is as good as it was. " * 4, "kind": "range", "group": "ppo", "low": 0}
        long = {f"L{n}": {**claim, "metric": "eval/reward_mean"} for n in range(20)}
        plan["analysis"]["hypotheses"] = {**plan["analysis"]["hypotheses"], **long}
        plan["analysis"]["metrics"] += ["qstar/ess_t", "qstar/ess_theta"]

    return reported(without(replan(qstar.make(sweeps_in(root)), change), "dpo-2"), "--format", "paper")


def test_paper_has_all_tables_and_figures_and_inputs_only_its_own(tmp_path: Path, unrendered: None) -> None:
    paper = write_paper(tmp_path)
    place = paper.report / "paper"
    assert paper.printed.rstrip().endswith(f"Paper: {place / 'main.tex'}")
    source = (place / "main.tex").read_text()
    tables, drawn = re.findall(r"\\fitted\{(tables/.*?)\}", source), re.findall(r"\{(figures/.*?)\}", source)
    assert {f"{name}.tex" for name in tables} | set(drawn) | {"main.tex"} == set(contents(place))
    shown = {path.stem for path in (paper.report / "tables").glob("*.tex")}
    assert shown <= {name.removeprefix("tables/") for name in tables}
    assert {path.stem for path in (paper.report / "figures").glob("*.svg")} == {Path(name).stem for name in drawn}
    assert "dpo, seed 2: not started" in source and "\\$HOME" in source and "U+4E2D" in source
    rows = [(place / f"{name}.tex").read_text().count("\n{}") for name in tables]
    assert max(rows) <= 30 and "tables/metrics-2" in tables  # a table is no longer than a page, and none of it is lost
    longest = (paper.report / "tables" / "metrics.tex").read_text().count("\n{}")
    assert sum(n for n, name in zip(rows, tables, strict=True) if name.startswith("tables/metrics")) == longest
    claims = [n for n, name in zip(rows, tables, strict=True) if name.startswith("tables/hypotheses")]
    assert sum(claims) == 20 + len(qstar.HYPOTHESES) and max(claims) <= 10, claims  # of 8 lines each


def test_paper_is_the_same_bytes_and_without_what_is_gone(make_sweep: MakeSweep, tmp_path: Path) -> None:
    asked = {
        "primary": qstar.ANALYSIS["primary"],
        "figures": [{"scatter": ["qstar/ess_t", "qstar/ess_theta"]}],
        "hypotheses": {"H1": qstar.HYPOTHESES["H1"]},
    }
    made = make_sweep(("ppo", "q_star"), steps=qstar.STEPS, analysis=asked, lines=qstar.lines)
    first = contents(reported(made, "--format", "paper").report / "paper")
    folder = Path(shutil.copytree(made.parent, tmp_path / "again")) / made.name
    main(["report", str(folder), "--format", "paper"])
    assert contents(folder / "report" / "paper") == first
    replan(folder, lambda plan: plan["analysis"].update(figures=[], hypotheses={}))
    main(["report", str(folder), "--format", "paper"])
    left = set(contents(folder / "report" / "paper"))
    assert "tables/hypotheses.tex" in first and "tables/hypotheses.tex" not in left
    assert [name for name in first if "scatter" in name] and not [name for name in left if "scatter" in name]


@pytest.mark.latex
def test_paper_compiles_as_it_is(tmp_path: Path) -> None:
    said = compiled(write_paper(tmp_path).report / "paper" / "main.tex")
    assert "Float too large" not in said and "Overfull" not in said


def test_what_is_decided_comes_in_the_first_three_lines(make_sweep: MakeSweep) -> None:
    written = answered(make_sweep())
    first = [written.answer.question, written.answer.result, written.answer.certainty]
    assert terminal.text(written).splitlines()[:3] == first and "Measured to step 60." in first[1]
    tex = main_tex(written, [])
    places = [tex.index(text[:30]) for text in (*first, *written.answer.points)]
    assert places == sorted(places)


def test_a_paper_has_the_question_in_four_columns(make_sweep: MakeSweep) -> None:
    (table,) = [table for table in tables(studied(make_sweep(seeds=range(6)))) if table.name == "paper"]
    unit = "final value of mean reward of drawn responses (per response)"
    assert table.columns == ("method", "seeds", unit, "difference") and len(table.rows) == 4
    assert table.rows[0][3] == "" and all(" (p " in row[3] for row in table.rows[1:])
    assert "with 95 to 98.33% intervals" in table.notes[0]  # by Holm's method, alpha / 3 for the smallest p
    assert table.notes[0].endswith("p adjusted for 3 comparisons.") and table.notes[1] == "Measured to step 60."


def test_methods_without_a_baseline_are_not_called_alone(make_sweep: MakeSweep) -> None:
    folder = make_sweep(analysis={"primary": ANALYSIS["primary"]})
    said = terminal.text(answered(replan(folder, lambda plan: plan.update(baseline=None))))
    no = "No baseline is declared (experiment.baseline), so no method is compared with another.\n"
    assert no in said and "erdict" not in said


def answered(folder: Path) -> Report:
    found = studied(folder)
    return Report(folder / "report/index.html", found, answer(found), tuple(tables(found)), (), (), (), None)

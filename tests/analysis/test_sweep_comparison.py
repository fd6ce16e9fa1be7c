"""Two sweeps side by side: what they share, how each method differs, and what was configured otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.__main__ import main
from analysis.data.sweep import read_sweep
from analysis.findings.sweep_comparison import compare_sweeps
from analysis.sections.unpaired import unpaired_table
from analysis.spec.settings import settings
from analysis.stats import t_test
from analysis.stats.compare import paired, unpaired
from launcher.run.folder import metrics_path, run_folder
from tests.analysis.conftest import Lines, MakeSweep, metrics, sweeps_in
from tests.analysis.test_report import contents

REWARD = "analysis/reward_sum_mean"
SIX = tuple(range(6))


def better(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    """B: C1 gains, in every seed by another amount."""
    lines = metrics(group, seed, 40)
    for line in lines if group == "C1" else []:
        line[REWARD] += 0.1 + 0.01 * seed
    return lines


def as_before(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    return metrics(group, seed, 40)


def two(tmp_path: Path, seeds: tuple[int, ...] = SIX) -> tuple[Path, Path]:
    """A and B: C0 of both are the same runs; C1 differs in its learning rate; PTRW is in A only, fourth in B only."""
    a = sweeps_in(tmp_path / "one")(("C0", "C1", "PTRW"), seeds=seeds, lines=as_before, name="first")
    b = sweeps_in(tmp_path / "two")(("C0", "C1", "fourth"), seeds=seeds, lines=better, name="second")
    for folder, rate in ((a, 3e-4), (b, 5e-4)):
        plan = json.loads((folder / "plan.json").read_text())
        for run in plan["runs"]:
            old = run_folder(folder.parent, run["id"])
            if run["group"] == "C1" and folder == b:
                run["id"] = f"new-{run['seed']}"
                old.rename(run_folder(folder.parent, run["id"]))
            config = {"format": 1, "id": run["id"], "seed": run["seed"], "method": {"name": run["group"]},
                      "verl": {"optim": {"lr": rate if run["group"] == "C1" else 1e-4}}}  # fmt: skip
            path = run_folder(folder.parent, run["id"]) / "config.yaml"
            path.write_text(yaml.safe_dump(config))
        (folder / "plan.json").write_text(json.dumps(plan))
    return a, b


@pytest.mark.usefixtures("without_pdfs")
def test_groups_are_paired_by_name_and_seed_with_the_usual_statistics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = two(tmp_path)
    assert main(["report", "--compare", str(a), str(b)]) == 0
    out = a.parent / "compare-first-second"
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith(f"Report: {out / 'index.html'}")
    assert "C0 (GRPO): the same runs." in printed and "better than C1 (BNTO minimal) of A" in printed
    document = json.loads((out / "report.json").read_text())
    rows = {(r["group"], r["metric"], r["summary"]): r for r in document["tables"]["comparison"]}
    found = rows["C1", REWARD, "final"]
    ends = [
        [sum(line[REWARD] for line in lines("C1", seed, {})[36:]) / 4 for seed in SIX] for lines in (better, as_before)
    ]
    expected = paired(*ends)
    assert found["pairs"] == 6
    assert found["difference"] == pytest.approx(expected.mean_difference) == pytest.approx(0.125)
    level = found["level"]  # of two methods, this one is asked first
    of_differences = t_test.t_interval(np.subtract(*ends), level)
    assert level == 0.025 and (found["difference_low"], found["difference_high"]) == pytest.approx(of_differences)
    assert found["p_signflip"] == expected.p_signflip == 2 / 2**6
    assert rows["C0", REWARD, "final"]["pairs"] == 0 and rows["C0", REWARD, "final"]["verdict"] == "the same runs"
    assert document["only_in"] == {"A": ["PTRW"], "B": ["fourth"]} and len(document["shared_runs"]) == 6


@pytest.mark.usefixtures("without_pdfs")
def test_the_same_configurations_run_by_other_code_are_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same ids in both: of C0 the logs are copies, C1 was run again and gained."""
    a = sweeps_in(tmp_path / "one")(("C0", "C1"), seeds=SIX, lines=as_before, name="first")
    b = sweeps_in(tmp_path / "two")(("C0", "C1"), seeds=SIX, lines=better, name="second")
    main(["report", "--compare", str(a), str(b)])
    said = capsys.readouterr().out
    assert "C0 (GRPO): the same runs." in said and "C1 (BNTO minimal): +0.125" in said
    document = json.loads((a.parent / "compare-first-second" / "report.json").read_text())
    pairs = {row["group"]: row["pairs"] for row in document["tables"]["comparison"]}
    assert pairs == {"C0": 0, "C1": 6} and document["shared_runs"] == [f"C0-{seed}" for seed in SIX]


@pytest.mark.usefixtures("without_pdfs")
def test_settings_that_differ_stand_with_their_methods_and_keys(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    main(["report", "--compare", str(a), str(b), "--output", str(tmp_path / "out")])
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["tables"]["configuration"] == [{"of": "C1", "key": "verl.optim.lr", "a": "0.0003", "b": "0.0005"}]
    plan = json.loads((b / "plan.json").read_text())
    plan["analysis"]["alpha"] = 0.01
    (b / "plan.json").write_text(json.dumps(plan))
    main(["report", "--compare", str(a), str(b), "--output", str(tmp_path / "out")])
    first = json.loads((tmp_path / "out" / "report.json").read_text())["tables"]["configuration"][0]
    assert first["of"] == "plan" and (first["key"], first["b"]) == ("analysis.alpha", "0.01")
    main(["report", "--compare", str(a), str(copy(a, tmp_path)), "--output", str(tmp_path / "out")])
    left = contents(tmp_path / "out")
    assert "tables/configuration.md" not in left and "figures/differences.svg" not in left
    assert b"the configurations of the methods in both are the same" in left["index.html"]


def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder.parent, tmp_path / "copy")
    return tmp_path / "copy" / folder.name


@pytest.mark.usefixtures("without_pdfs")
def test_missing_run_is_a_lost_pair_that_is_said(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    shutil.rmtree(run_folder(b.parent, "new-3"))
    log = metrics_path(run_folder(b.parent, "new-4"))
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:7]))
    main(["report", "--compare", str(a), str(b)])
    out = a.parent / "compare-first-second"
    row = next(r for r in json.loads((out / "report.json").read_text())["tables"]["comparison"] if r["group"] == "C1")
    assert row["pairs"] == 4 and row["gaps"].startswith("seed 3: B/C1: no result")
    page = (out / "index.html").read_text()
    assert "Missing: C1 (BNTO minimal), seed 3: not started" in page
    assert "Missing: C1 (BNTO minimal), seed 4: analysis/reward_sum_mean ends at step 7 of" in page
    assert "16 of 18 runs with a full result" in page
    assert "| 4 of 6 |" in (out / "tables" / "comparison.md").read_text()


def test_same_input_gives_the_same_bytes_and_no_outside(tmp_path: Path) -> None:
    a, b = two(tmp_path, (0, 1))
    for out in ("x", "y"):
        main(["report", "--compare", str(a), str(b), "--output", str(tmp_path / out)])
    assert contents(tmp_path / "x") == contents(tmp_path / "y")
    html = (tmp_path / "x" / "index.html").read_text()
    assert str(tmp_path) not in html and "http://" not in html.replace("http://www.w3.org", "")


@pytest.mark.usefixtures("without_pdfs")
def test_sweeps_without_a_method_in_common_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = sweeps_in(tmp_path / "one")(("C0", "C1"), lines=as_before, name="first")
    b = sweeps_in(tmp_path / "two")(("PTRW", "fourth"), lines=as_before, name="second")
    assert main(["report", "--compare", str(a), str(b)]) == 0
    assert "No method is in both sweeps" in capsys.readouterr().out


def test_wrong_use_is_refused(make_sweep: MakeSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_sweep(("C0", "C1"))
    assert main(["report", "--compare", str(folder), str(tmp_path)]) == 2
    assert main(["report", "--compare", str(folder), str(folder)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "plan.json" in said[0] and "both folders are the same" in said[1]
    for wrong in (["report"], ["report", str(folder), "--compare", str(folder), str(folder)],
                  ["report", str(folder), "--output", "x"]):  # fmt: skip
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2


def test_sweeps_on_other_seeds_are_compared_as_samples(tmp_path: Path) -> None:
    a = sweeps_in(tmp_path / "one")(("C0", "C1"), seeds=(0, 1, 2), lines=as_before, name="first")
    b = sweeps_in(tmp_path / "two")(("C0", "C1"), seeds=(3, 4, 5), lines=better, name="second")
    first, second = read_sweep(a), read_sweep(b)
    found = compare_sweeps(first, second, settings(first.plan["analysis"]))
    table = unpaired_table(found.study)
    assert [row[2] for row in table.rows[:2]] == ["3 and 3"] * 2 and set(table.groups) == {"B/C0", "B/C1"}
    of = {estimate.group: estimate.values for estimate in found.study.primary.estimates}
    assert table.records[1]["difference"] == pytest.approx(unpaired(of["B/C1"], of["A/C1"]).mean_difference)


@pytest.mark.parametrize("steps", [30, 40])
@pytest.mark.usefixtures("without_pdfs")
def test_sweeps_of_unequal_length_are_said_to_be_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    analysis = {"primary": {"metric": REWARD}}
    a, b = (
        sweeps_in(tmp_path / name)(("C0",), seeds=(0, 1), steps=long, analysis=analysis, name=name)
        for name, long in (("first", 40), ("second", steps))
    )
    assert main(["report", "--compare", str(a), str(b)]) == 0
    cut = "those of A go to step 40, those of B to step 30. The values are not those of each sweep's own report."
    assert (cut in capsys.readouterr().out) == (steps == 30)


@pytest.mark.usefixtures("without_pdfs")
def test_a_method_that_is_averaged_over_models_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"C0": [{"model": "small"}, {"model": "large"}]}
    a, b = (
        sweeps_in(tmp_path / name)(("C0",), seeds=(0, 1), steps=steps, cells=sizes, name=name)
        for name, steps in (("first", 20), ("second", 30))
    )
    assert main(["report", "--compare", str(a), str(b)]) == 0
    said = "Averaged within each seed first: C0 (GRPO) of A, C0 (GRPO) of B over the levels of model."
    assert said in capsys.readouterr().out


@pytest.mark.usefixtures("without_pdfs")
def test_excluded_runs_have_worst_case_bounds_and_the_same_runs_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C1 lacks a run of B, and C0's seed 5 is gone from both, where its other seeds are the same runs."""
    a, b = two(tmp_path)
    shutil.rmtree(run_folder(b.parent, "new-3"))
    for folder in (a, b):
        shutil.rmtree(run_folder(folder.parent, "C0-5"))
    assert main(["report", "--compare", str(a), str(b)]) == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "depends on the excluded runs" in line]
    assert len(lines) == 1 and lines[0].startswith("The verdict on C1 (BNTO minimal) of B in the final value")
    document = json.loads((a.parent / "compare-first-second" / "report.json").read_text())
    record = next(r for r in document["tables"]["comparison"] if r["group"] == "C1" and r["summary"] == "final")
    assert (record["excluded_runs"], record["verdict_rests_on_excluded"]) == (1, True)
    sweep = read_sweep(a)
    found = compare_sweeps(sweep, read_sweep(b), settings(sweep.plan["analysis"]))
    comparison = found.study.primary.comparison("B/C1")
    assert comparison is not None and comparison.seeds == (0, 1, 2, 4, 5)
    recorded = [v for run in found.study.sweep.runs for v in run.curves.values.get(REWARD, ())]
    lost = next(run for run in found.study.sweep.runs if run.group == "A/C1" and run.seed == 3)
    of_a = found.study.primary.values[lost.id].value
    for name, end in (("difference_if_lowest", min(recorded)), ("difference_if_highest", max(recorded))):
        assert record[name] == pytest.approx((5 * comparison.difference + end - of_a) / 6)
    same = next(r for r in document["tables"]["comparison"] if r["group"] == "C0" and r["summary"] == "final")
    assert same["difference_if_lowest"] is None
    page = (a.parent / "compare-first-second" / "index.html").read_text()
    assert "If the excluded runs had ended at" in page

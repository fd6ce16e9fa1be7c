"""`report PATHS`: anybody's logs become a study, and its report is written and printed in one call."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.data.sweep import read_sweep
from analysis.sources import import_runs
from analysis.sources.log import Log
from analysis.sources.naming import Naming, name
from analysis.sources.source import LoggedRun
from launcher.run.folder import runs_folder
from tests.analysis.conftest import MakeSweep
from tests.wording import Worded

INTO = Path("study/comparison")
LUCK = (0.0, 0.01, -0.01)


def verl(path: str, height: float, steps: Sequence[int] = (1, 2, 3, 4)) -> None:
    """A file of verl's logger whose values are the height in the later attempt of each step, and 9 in an earlier."""
    values = {number: 9.0 if step in steps[number + 1 :] else height for number, step in enumerate(steps)}
    lines = [{"step": step, "data": {"acc": values[number]}} for number, step in enumerate(steps)]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))


def percent(path: str, height: float) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("step,acc\n" + "".join(f"{step},{100 * height:.1f}%\n" for step in range(1, 5)))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unrendered: None) -> None:
    """An empty folder with two groups: the runs of verl, one of them resumed, and tables with percent signs."""
    monkeypatch.chdir(tmp_path)
    for place, luck in enumerate(LUCK):
        verl(f"runs_a/run{place + 8}.jsonl", 0.5 + luck, (1, 2, 3, 2, 3, 4) if place else (1, 2, 3, 4))
        percent(f"runs_b/run{place}.csv", 0.7 + luck)


def report(*words: str) -> int:
    return main(["report", *words])


def test_each_path_is_a_group_and_its_runs_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("runs_a/", "runs_b/", "--metric", "acc", "--gate") == 0
    said = capsys.readouterr().out
    assert "runs_b is better than runs_a in the final value of acc" in said and "+0.200" in said
    how = "Groups: the paths given. Seeds: counted in the order of the runs&#39; names, because no option says them."
    assert how.replace("&#39;", "'") in said and how in (INTO / "report" / "index.html").read_text(encoding="utf-8")
    assert f"Report: {INTO}/report/index.html" in said and "Rows: 28 read, 24 used" in said
    sweep = read_sweep(INTO)
    assert sweep.baseline == "runs_a" and sweep.plan["command"].endswith(f"--gate --into {INTO}")
    values = {(run.group, run.seed): run.curves.values["acc"].max() for run in sweep.runs}
    heights = {"runs_a": 0.5, "runs_b": 0.7}
    assert values == {(group, seed): pytest.approx(height + luck)
                      for group, height in heights.items() for seed, luck in enumerate(LUCK, 1)}  # fmt: skip


def test_the_gate_says_whether_every_comparison_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    for place, luck in enumerate(LUCK):
        percent(f"same/{place}.csv", 0.5 + luck)
    asked = ["--metric", "acc", "--gate"]
    assert report("runs_b", "runs_a", *asked) == 4
    assert report("runs_a", "same", *asked) == 3
    assert report("runs_a", "same", "runs_b", *asked) == 3  # of several, one is undecided
    assert report("same", "runs_a", "runs_b", *asked, "--baseline", "runs_b") == 4
    assert report("runs_a", "runs_b", *asked, "--direction", "lower") == 4
    assert report("runs_a", "runs_b", "--metric", "acc") == 0
    capsys.readouterr()
    assert report("runs_a", "runs_b", *asked, "--json") == 0
    assert json.loads(capsys.readouterr().out)["answer"]["leading"]["group"] == "runs_b"


def test_a_second_call_replaces_its_own_and_nothing_else(capsys: pytest.CaptureFixture[str], worded: Worded) -> None:
    for place in range(3):
        percent(f"more/{place}.csv", 0.6)
    assert report("runs_a", "more", "--metric", "acc") == 0
    assert report("runs_a", "runs_b", "--metric", "acc") == 0
    assert report(".", "--match", "/(?P<group>runs_.|more)/", "--metric", "acc") == 0  # not what was made of logs
    kept = {run.name for run in runs_folder(INTO.parent).iterdir()}
    assert kept == {run.id for run in read_sweep(INTO).runs} and len(kept) == 9
    (INTO / "plan.json").unlink()
    capsys.readouterr()
    assert report("runs_a", "runs_b", "--metric", "acc") == 2
    worded(capsys.readouterr().err)


def test_groups_by_name_by_pattern_and_by_key_are_one_study(capsys: pytest.CaptureFixture[str]) -> None:
    Path("table.csv").write_text("step,algo,acc\n1,ppo,0.5\n1,dpo,0.6\n")
    assert report("x=runs_a", "runs_b", "--metric", "acc") == 0
    assert read_sweep(INTO).groups == ("x", "runs_b")
    assert report("runs_?/run?.*", "runs_a/run10.jsonl", "--metric", "acc") == 0
    sweep = read_sweep(INTO)
    assert list(sweep.labels.values()) == ["runs_?/run?.*", "run10"]
    assert [run.seed for run in sweep.runs] == [1, 2, 3, 4, 5, 1]
    capsys.readouterr()
    assert report("x=runs_a", "table.csv", "--group", "algo", "--metric", "acc") == 0
    assert "Groups: the paths given and the key algo." in capsys.readouterr().out
    assert {run.group for run in read_sweep(INTO).runs} == {"x", "ppo", "dpo"}


@pytest.mark.parametrize(
    ("names", "words", "groups"),
    [
        (["study/ppo_seed1", "study/ppo_seed2", "study/dpo_seed1"], ["."], {"dpo": [1], "ppo": [1, 2]}),
        (["ppo/seed3/log", "ppo/seed10/log", "dpo/seed3/log"], ["dpo", "ppo"], {"dpo": [1], "ppo": [1, 2]}),
        (["ppo/seed3/log", "ppo/seed10/log", "dpo/seed3/log"], ["."], {"dpo": [3], "ppo": [3, 10]}),
        (["a/lr0.1/s=1", "a/lr0.1/s=2", "b/lr0.1/s=1"], ["."], {"a": [1, 2], "b": [1]}),
        (["a/version_0/metrics", "a/version_1/metrics", "b/version_0/metrics"], ["a", "b"], {"a": [1, 2], "b": [1]}),
        (["a-s1", "a-s2", "Baseline-s1"], ["."], {"Baseline": [1], "a": [1, 2]}),
        (["ppo run1", "ppo run2", "dpo run1"], ["."], {"dpo": [1], "ppo": [1, 2]}),
        (["run3/s1/a_seed1", "run3/s1/a_seed2", "run3/s1/b_seed1"], ["run3"], {"a": [1, 2], "b": [1]}),
        (["grpo-s1", "grpo-s2", "S3-ppo"], ["grpo-s1.csv", "grpo-s2.csv", "S3-ppo.csv"], {"grpo": [1, 2], "ppo": [3]}),
        (["model_7", "model_13", "llama_8"], ["model_7.csv", "model_13.csv"], {"model_7": [1], "model_13": [1]}),
        (["ppo_seed1", "dpo_seed1"], ["ppo_seed1.csv", "dpo_seed1.csv"], {"ppo_seed1": [1], "dpo_seed1": [1]}),
    ],
)  # fmt: skip
def test_names_that_say_a_seed_say_the_groups(names: list[str], words: list[str], groups: dict[str, list[int]]) -> None:
    for number, run in enumerate(names):
        percent(f"logs/{run}.csv", 0.5 + number / 10)
    assert report(*(f"logs/{word}" for word in words), "--metric", "acc") == 0
    sweep = read_sweep(INTO)
    found = {sweep.label(group): [run.seed for run in sweep.runs_of(group)] for group in sweep.groups}
    assert found == groups and sweep.baseline == sweep.groups[0]


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        (["{}/seed{}/train", "{}/seed{}/eval"], ["ppo", "dpo"]),
        (["{}/seed{}/train", "{}/seed{}/eval"], ["."]),
        (["{}/abc{}/eval", "{}/abc{}/csv/train"], ["ppo", "dpo"]),
        (["{}/seed{}_train", "{}/seed{}_eval"], ["ppo", "dpo"]),
        (["{}/eval_x{}", "{}/test_x{}"], ["ppo", "dpo"]),
        (["{}_seed{}/train", "{}_seed{}/eval"], ["ppo*", "dpo*"]),
        (["seed{1}-{0}/train", "seed{1}-{0}/eval"], ["*ppo", "*dpo"]),
    ],
)
def test_several_logs_of_a_run_are_refused_and_the_fix_works(
    logs: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (group, seed) in enumerate(itertools.product(("ppo", "dpo"), range(3))):
        for log in logs:
            percent(f"logs/{log.format(group, seed)}.csv", 0.5 + number / 10)
    assert report(*(f"logs/{word}" for word in words), "--metric", "acc") == 2
    patterns = re.findall(r"such as ([^,]*)='(.*?)', or", capsys.readouterr().err)
    assert len(patterns) == 2 and patterns[0] != patterns[1]
    given = [pattern if name == "GROUP" else f"{name}={pattern}" for name, pattern in patterns]
    assert report(*given, "--metric", "acc") == 0
    assert [len(read_sweep(INTO).runs_of(group)) for group in read_sweep(INTO).groups] == [3, 3]


def test_runs_with_the_same_rows_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    percent("runs_b/copy.csv", 0.7)
    assert report("runs_a", "runs_b", "--metric", "acc") == 0
    assert "These runs have the same rows, and each counts: runs_b/copy, runs_b/run0." in capsys.readouterr().out
    percent("runs_c/other.csv", 0.7)
    assert report("runs_a", "runs_b", "runs_c", "--metric", "acc") == 0
    assert "each counts: runs_b/copy, runs_b/run0, runs_c/other." in capsys.readouterr().out


def test_runs_of_one_name_and_runs_below_two_paths(capsys: pytest.CaptureFixture[str]) -> None:
    for group, height in (("a", 0.5), ("b", 0.6)):
        for seed in range(2):
            percent(f"{group}/logs/{seed}.csv", height)
    assert report("a/logs", "b/logs", "--metric", "acc") == 0
    sweep = read_sweep(INTO)
    assert list(sweep.labels.values()) == ["a/logs", "b/logs"] and len({run.id for run in sweep.runs}) == 4
    assert report("a", "all=.", "--metric", "acc") == 0
    assert {group: len(read_sweep(INTO).runs_of(group)) for group in ("a", "all")} == {"a": 2, "all": 8}
    capsys.readouterr()
    assert report("a/logs/0.csv", "b/logs/0.csv", "--metric", "acc") == 0
    assert "No group has a second run, so nothing can be decided" in capsys.readouterr().out


def test_cells_that_one_group_alone_has_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for file, envs, height in (("old", ("Pong", "Breakout"), 0.5), ("new", ("Pong",), 0.7)):
        rows = [f"{step},{env},{seed},{height + luck}" for env in envs for seed, luck in enumerate(LUCK)
                for step in (1, 2)]  # fmt: skip
        Path(f"{file}.csv").write_text("\n".join(["step,env,seed,acc", *rows]) + "\n")
    words = ["--metric", "acc", "--factor", "env", "--seed", "seed", "--gate"]
    assert report("old.csv", "new.csv", *words) == 0
    said = capsys.readouterr().out
    assert "+0.200" in said and "Breakout" in said and "Seeds: the key seed." in said


def test_names_of_tables_with_the_levels_of_a_factor_say_group_and_seed() -> None:
    for group, seed in itertools.product(("a2c", "ppo"), (4, 6)):
        rows = [f"{step},{env},{seed / 7}\n" for env in ("Pong", "s1") for step in (1, 2)]
        Path(f"logs/{group}_seed{seed}.csv").parent.mkdir(exist_ok=True)
        Path(f"logs/{group}_seed{seed}.csv").write_text("".join(["step,env,acc\n", *rows]))
    assert report("logs", "--metric", "acc", "--factor", "env") == 0
    found = {(run.group, run.seed, run.cell) for run in read_sweep(INTO).runs}
    assert found == {*itertools.product(("a2c", "ppo"), (4, 6), ((("env", "Pong"),), (("env", "s1"),)))}


@pytest.mark.parametrize("column", ["{}-seed{}", "{} s{} - acc"])
@pytest.mark.parametrize("path", ["acc.csv", "."])
def test_the_columns_of_a_table_that_are_runs_say_group_and_seed(column: str, path: str) -> None:
    names = [*itertools.product(("a2c", "ppo"), (4, 6))]
    Path("t").mkdir()
    header = ",".join(["step", *(column.format(*name) for name in names)])
    Path("t/acc.csv").write_text("\n".join([header, "1,1,2,3,4", "2,1,2,3,4"]) + "\n")
    assert report(f"t/{path}", "--metric", "acc") == 0
    assert [(run.group, run.seed) for run in read_sweep(INTO).runs] == names


def test_seeds_are_those_of_the_configurations_if_they_tell_the_runs_of_a_group_apart() -> None:
    for seeds, expected in (((7, 5), [5, 7]), ((7, 7), [1, 2]), ((7, "x"), [1, 2])):
        for number, seed in enumerate(seeds):
            percent(f"c/run{number}/progress.csv", 0.5)
            Path(f"c/run{number}/config.yaml").write_text(f"seed: {seed}\n")
        assert report("g=c", "--metric", "acc") == 0
        assert [run.seed for run in read_sweep(INTO).runs] == expected


def test_metrics_that_are_not_asked_for_are_named_and_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    table = "step,acc,loss,note,cost/flops\n1,0.5,2,a,9\n2,0.6,1,b,9\n"
    for group in "ab":
        Path(f"{group}/j").mkdir(parents=True)
        Path(f"{group}/0.csv").write_text(table)
        Path(f"{group}/j/1.jsonl").write_text('{"step": 1, "acc": 0.5, "deep": {"er": 1}, "time/step": 3}\n')
    assert report("a", "b", "--metric", "acc") == 0
    said = "Recorded, not read: 3 metrics (deep.er, loss, note). --metric reads more."
    assert said in capsys.readouterr().out and said in (INTO / "report" / "index.html").read_text(encoding="utf-8")
    sweep = read_sweep(INTO)
    assert sweep.plan["not_read"] == ["deep.er", "loss", "note"]
    assert [sorted(run.curves.values) for run in sweep.runs] == 2 * [["acc", "cost/flops"], ["acc", "time/step"]]
    assert report("a", "b", "--metric", "acc", "--metric", "loss") == 0
    assert "loss" in read_sweep(INTO).runs[0].curves.values
    Path("study.yaml").write_text("paths: [a, b]\nmetric: acc\nanalysis: {metrics: [loss, acc]}\n")
    assert report() == 0
    assert read_sweep(INTO).asked().metrics == ("acc", "loss")


def test_what_is_not_known_is_asked_for(capsys: pytest.CaptureFixture[str], worded: Worded) -> None:
    Path("multirun/planned").mkdir(parents=True)
    for words in (
        "", "runs_a", "nowhere", "planned", "runs_a x=nowhere", "runs_a y=runs_a", "runs_a runs_b",
        "runs_a runs_b --metric acc --paired", "runs_a runs_b --metric acc --seed seed --baseline runs_c",
    ):  # fmt: skip
        assert report(*words.split()) == 2
        worded(capsys.readouterr().err)
    assert not Path("study").exists() and sorted(map(str, Path().iterdir()))[:3] == ["multirun", "runs_a", "runs_b"]


def test_a_file_holds_the_same_and_the_section_analysis(capsys: pytest.CaptureFixture[str], worded: Worded) -> None:
    Path("q").mkdir()
    file = Path("q/study.yaml")
    file.write_text(
        "paths: [x=../runs_a, ../runs_?/run?.csv]\ninto: out/theirs\n"
        "metric: acc\nanalysis: {alpha: 0.1, test: relabel}\n"
    )
    assert report(str(file), "--baseline", "q/../runs_?/run?.csv", "--gate") == 4
    sweep = read_sweep(Path("q/out/theirs"))
    assert sweep.asked().test == "relabel" and sweep.asked().alpha == 0.1 and sweep.asked().pairing == "none"
    Path("study.yaml").write_text("paths: [runs_a, runs_b]\nanalysis: {primary: {metric: acc, summary: auc}}\n")
    assert report() == 0
    assert read_sweep(INTO).asked().summary == "auc"
    capsys.readouterr()
    for wrong in (
        "paths: [runs_a, runs_b]\nmetrik: acc\n",
        "- runs_a\n",
        "paths: [",
        "metric: acc\n",
        "paths: runs_a\npaired: 3\ndirection: up\n",
        "paths: [runs_a, runs_b]\nmetric: acc\nanalysis: {famly: bh}\n",
        "paths: [runs_a, runs_b]\nmetric: acc\nanalysis: {primary: 3}\n",
        "paths: [runs_a, runs_b]\nmetric: [acc, loss]\n",
        "paths: [runs_a, runs_b]\nmetric: acc\nanalysis: {metrics: [loss]}\n",
        "paths: [runs_a, runs_b]\nmetric: acc\nanalysis: {metrics: loss}\n",
        "paths: [runs_a, runs_b]\nmetric: acc\nanalysis: {metrics: [mean acc], figures: [acc, {levels: a b}]}\n",
    ):
        Path("study.yaml").write_text(wrong)
        assert report() == 2
        worded(capsys.readouterr().err)


def test_another_baseline_of_an_experiment_is_said(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str], worded: Worded
) -> None:
    folder = make_sweep(("C0", "C1", "PTRW"), steps=20)
    plan = (folder / "plan.json").read_bytes()
    assert report(str(folder), "--baseline", "PTRW", "--gate") == 0
    assert "* The baseline is PTRW, as --baseline says; the plan has C0 (GRPO)." in capsys.readouterr().out
    assert report(str(folder)) == 0
    assert "--baseline" not in capsys.readouterr().out and (folder / "plan.json").read_bytes() == plan
    assert report(str(folder), "--baseline", "C9") == 2
    worded(capsys.readouterr().err)


def test_two_sweeps_are_compared_in_the_methods_that_both_have() -> None:
    def run(path: str, number: int, method: str, seed: int, **levels: Any) -> LoggedRun:
        log = Log(path)
        log.add(1, {"acc": 0.5})
        labels: dict[str, Any] = {"group": method, "seed": seed, **levels}
        made = LoggedRun("rlsweep", f"{path}/{number}", {}, log, {f"rlsweep.{key}": of for key, of in labels.items()})
        made.group = path
        return made

    def named(*runs: LoggedRun) -> list[tuple[str, int, dict[str, Any]]]:
        return [(each.group, each.seed, dict(each.factors)) for each in name(runs, Naming())[0]]

    ppo, dpo, new = (run("old", 0, "ppo", 3, lr=0.1), run("old", 1, "dpo", 3, lr=0.1), run("new", 0, "ppo", 7, lr=0.1))
    assert named(ppo, dpo, new) == [("old", 3, {"lr": 0.1, "method": "ppo"}), ("old", 3, {"lr": 0.1, "method": "dpo"}),
                                    ("new", 7, {"lr": 0.1, "method": "ppo"})]  # fmt: skip
    assert named(dpo, new) == [("old", 3, {"lr": 0.1}), ("new", 7, {"lr": 0.1})]  # a path is a method
    table = LoggedRun("CSV", "x/0", {}, ppo.log)
    table.group = "x"
    assert named(ppo, dpo, table) == [("old", 1, {}), ("old", 2, {}), ("x", 1, {})]


def table(path: str, columns: str, *rows: str) -> None:
    """A CSV table with ten steps of each row, which says what stands before the step, and the value after it."""
    lines = (f"{before},{step},{value}" for row in rows for before, value in [row.split(":")] for step in range(1, 11))
    Path(path).write_text("\n".join([columns, *lines, ""]))


@pytest.mark.parametrize("names", [("1.1", "1.10"), ("7", "007"), ("1000", "1e3"), ("10", "1_0"), ("1", "1.0")])
def test_groups_of_a_table_keep_their_names(names: tuple[str, str]) -> None:
    rows = [f"{name},{seed}:{place}.5" for place, name in enumerate(names) for seed in range(2)]
    table("t.csv", "version,seed,step,acc", *rows)
    assert report("t.csv", "--group", "version", "--seed", "seed", "--metric", "acc") == 0
    found = {(run.group, run.seed): run.curves.values["acc"][0] for run in read_sweep(INTO).runs}
    assert found == {(name, seed): place + 0.5 for place, name in enumerate(names) for seed in range(2)}


@pytest.mark.parametrize("baseline", ["base", "ppo_2"])
def test_a_hypothesis_is_about_the_group_that_has_its_name(baseline: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever name files and pages have for it: two groups differ in a character that these leave out."""
    heights = {"base": 0.5, "ppo 2": 0.7, "ppo_2": 0.3, "up_5%": 0.8}
    rows = (f"{group},{seed},{step},{height + luck}\n" for group, height in heights.items()
            for seed, luck in enumerate(LUCK) for step in range(1, 5))  # fmt: skip
    Path("t.csv").write_text("algo,seed,step,acc\n" + "".join(rows))
    study = "paths: t.csv\ngroup: algo\nseed: seed\nmetric: acc\nbaseline: {}\nanalysis:\n"
    study += "  win_rate: {{against: ppo 2}}\n  hypotheses:\n"
    study += "    H1: {{claim: c, kind: less, group: ppo_2, against: base, metric: acc}}\n"
    study += "    H2: {{claim: c, kind: greater, group: {}, against: ppo 2, metric: acc}}\n"
    study += "    H3: {{claim: c, kind: between, group: base, groups: [ppo 2, ppo_2], metric: acc}}\n"
    for called in ("up_5%", "up_5"):  # the second is that of files and pages
        Path("q.yaml").write_text(study.format(baseline, called))
        assert report("q.yaml") == 0
        verdicts = (INTO / "report" / "tables" / "hypotheses.csv").read_text()
        assert verdicts.count("supported") == 3 and "ppo 2" in verdicts and "up_5%" in verdicts
    Path("q.yaml").write_text(study.format(baseline, "up 5%"))
    assert report("q.yaml") == 2
    refused = "H2.group = 'up 5%': must be one of {}. Fix: write up_5%"
    assert refused.format(", ".join(sorted(heights, key=lambda name: (name != baseline, name)))) in (
        capsys.readouterr().err
    )


def test_levels_that_are_written_in_several_ways_are_one_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    for place, lr in enumerate(("0.1", "1e-1", ".10")):
        table(f"t{place}.csv", "lr,seed,step,acc", f"{lr},{place}:0.5")
    table("t3.csv", "lr,seed,step,acc", "nan,3:0.5", "0_1,4:0.5")
    assert report("g=t?.csv", "--factor", "lr", "--seed", "seed", "--metric", "acc") == 0
    assert "Each is one level of lr, written in several ways: .10 and 0.1 and 1e-1." in capsys.readouterr().out
    assert {level for run in read_sweep(INTO).runs for _, level in run.cell} == {0.1, "nan", "0_1"}


def test_seeds_that_are_in_one_cell_each_are_counted_in_each(capsys: pytest.CaptureFixture[str]) -> None:
    for file, step in (("same", 0), ("distinct", 4)):  # the same runs, whose seeds are 0 to 3 in each task, or 0 to 19
        rows = [f"{group},{seed + step * task},{task}:{0.1 * task + 0.05 * (group == 'b') + 0.01 * seed * (task % 2)}"
                for group in "ab" for task in range(5) for seed in range(4)]  # fmt: skip
        table(f"{file}.csv", "algo,seed,task,step,acc", *rows)
        words = ("--group", "algo", "--seed", "seed", "--factor", "task", "--metric", "acc", "--into", f"{file}/x")
        assert report(f"{file}.csv", *words) == 0
    same, distinct = capsys.readouterr().out.split("Report: same/x")
    note = "No seed is in two cells, so the seeds of each cell are counted from 1."
    assert note in distinct and note not in same
    assert [line for line in same.splitlines() if line.startswith(("a ", "b "))] == [
        line for line in distinct.splitlines() if line.startswith(("a ", "b "))]  # fmt: skip


def test_texts_of_a_configuration_are_levels_as_those_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    for place, lr in enumerate(("1e-3", "0.001", "1e-3", "0.001")):  # YAML reads the first as a text
        percent(f"logs/r{place}/progress.csv", 0.1 * place)
        Path(f"logs/r{place}/config.yaml").write_text(f"algo: {'ab'[place // 2]}\nseed: {place % 2}\nlr: {lr}\n")
    assert report("logs", "--group", "algo", "--seed", "seed", "--factor", "lr", "--metric", "acc") == 0
    assert "Each is one level of lr, written in several ways: 0.001 and 1e-3." in capsys.readouterr().out
    assert {run.cell for run in read_sweep(INTO).runs} == {(("lr", 0.001),)}


@pytest.mark.parametrize(("one", "other"), [(".csv", ".csv.gz"), (".csv", ".tsv"), (".jsonl", ".jsonl.gz")])
@pytest.mark.parametrize("places", ["a b", "."])
def test_a_log_and_its_copy_with_another_ending_are_refused(
    one: str, other: str, places: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("c").mkdir()
    monkeypatch.chdir("c")
    for path in (f"{group}/seed{seed}" for group in "ab" for seed in range(3)):
        if one == ".csv":
            percent(path + one, 0.5)
        else:
            verl(path + one, 0.5)
        text = Path(path + one).read_bytes().replace(b",", b"\t" if other == ".tsv" else b",")
        Path(path + other).write_bytes(gzip.compress(text) if other.endswith(".gz") else text)
    assert report(*places.split(), "--metric", "acc") == 2
    said = capsys.readouterr().err
    assert all(f"3 runs ({group}/seed0, {group}/seed1, {group}/seed2): 2 logs of this run" in said for group in "ab")


def test_a_note_names_the_levels_that_a_mean_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [(g, s, t, lr) for g in "ab" for s in range(3) for t in range(3) for lr in (1, 2) if (g, t) != ("b", 2)]
    table("t.csv", "method,seed,task,lr,step,acc", *(f"{g},{s},t{t},{lr}:{s + t + lr}" for g, s, t, lr in cells))
    factors = ("--factor", "lr", "--factor", "task")
    assert report("t.csv", "--group", "method", "--seed", "seed", *factors, "--metric", "acc") == 0
    assert "b over 4 levels, without task = t2." in (INTO / "report" / "tables" / "main.md").read_text()


def test_what_is_asked_for_is_the_first_that_a_notation_is_said_of(capsys: pytest.CaptureFixture[str]) -> None:
    for group, seed in itertools.product("ab", range(4)):
        text = "".join(f"{step};{place}.91{seed};0,15{step}{seed}\n" for place, step in enumerate((1, 2, 3), 5))
        Path(f"{group}{seed}.csv").write_text("step;score;loss\n" + text)
    assert report("a=a?.csv", "b=b?.csv", "--metric", "score") == 0
    note = next(line for line in capsys.readouterr().out.splitlines() if " more." in line and "score: " in line)
    assert note.index("score: ") < note.index("more") and "loss" not in note.partition("score")[0]


@pytest.mark.parametrize(("direction", "times"), [("", [20, 20]), (", direction: lower", [76, 43])])
def test_the_direction_of_a_threshold_is_declared_or_said(
    direction: str, times: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for group, tau in (("a", 60), ("b", 30)):
        Path(group).mkdir()
        for seed in range(4):
            lines = (f"{k},0.5,{3 * math.exp(-k / tau) + 0.001 * seed}\n" for k in range(1, 201))
            Path(f"{group}/s{seed}.csv").write_text("step,acc,loss\n" + "".join(lines))
    jump = "{claim: c, kind: less, group: b, metric: loss, summary: largest_change}"
    Path("q.yaml").write_text(
        f"paths: [a, b]\nmetric: [acc, loss]\nanalysis:\n  time_to: [{{metric: loss, at: 1.0{direction}}}]\n"
        f"  hypotheses:\n    J: {jump}\n"
        f"    T: {{claim: c, kind: less, group: b, metric: loss, summary: time_to, at: 1.0{direction}}}\n"
    )
    assert report("q.yaml") == 0
    assert ("The times until loss reaches its threshold assume" in capsys.readouterr().out) == (not direction)
    found = json.loads((INTO / "report" / "report.json").read_text())
    reached = next(one for one in found["comparisons"] if one["summary"] == "time_to")
    assert [round(group["mean"]) for group in reached["groups"]] == times
    verdicts = (INTO / "report" / "tables" / "hypotheses.md").read_text()
    assert f"until loss {'falls to' if direction else 'reaches'} 1.000" in verdicts
    assert ("time_to 1.0 (lower)" in (INTO / "report" / "results.csv").read_text()) == bool(direction)
    assert "higher than a (adjusted p" in verdicts and ("supported" in verdicts.partition("| T |")[2]) == bool(
        direction
    )


def test_a_metric_that_is_no_number_from_a_step_on_is_a_gap(capsys: pytest.CaptureFixture[str]) -> None:
    """But not one that is a number where it is evaluated alone, in every tenth step."""
    for group, seed in itertools.product("ab", range(4)):
        rows = (
            f"{step},{'nan' if (group, seed % 2) == ('b', 1) and step > 6 else seed + step},"
            f"{seed if step % 10 == 0 else 'nan'}\n"
            for step in range(100)
        )
        Path(f"{group}{seed}.csv").write_text("step,acc,val\n" + "".join(rows))
    words = ("a=a?.csv", "b=b?.csv", "--metric", "acc", "--metric", "val")
    assert report(*words) == 0
    said = capsys.readouterr().out
    assert said.count("acc is no finite number after step 6 of 99") == 2 and "Measured to step 99" in said
    found = json.loads((INTO / "report" / "report.json").read_text())["comparisons"]
    seeds = {(one["metric"], group["group"]): len(group["values"]) for one in found for group in one["groups"]}
    assert seeds == {("acc", "a"): 4, ("acc", "b"): 2, ("val", "a"): 4, ("val", "b"): 4}
    claim = "{claim: c, kind: less, group: b, metric: '|acc - 1|'}"
    for asked in ("end: own", f"hypotheses: {{H: {claim}}}"):
        Path("own.yaml").write_text(f"paths: [{', '.join(words[:2])}]\nmetric: acc\nanalysis: {{{asked}}}\n")
        assert report("own.yaml") == 0
        assert capsys.readouterr().out.count("acc is no finite number after step 6 of 99") == 2
    assert "undecided with n = 2 and 4" in (INTO / "report" / "tables" / "hypotheses.md").read_text()


def events(folder: str, hparams: bool = False, **values: Sequence[float]) -> None:
    """The event file that torch's SummaryWriter leaves, of scalars by tag; with hyperparameters at its end."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(folder)
    for step, numbers in enumerate(zip(*values.values(), strict=True)):
        tagged = [summary_pb2.Summary.Value(tag=tag, simple_value=x) for tag, x in zip(values, numbers, strict=True)]
        writer.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=tagged)))
    if hparams:
        writer.add_event(event_pb2.Event(summary=hparams_pb({"lr": 1.0})))
    writer.close()


def sizes() -> dict[str, int]:
    sweep = read_sweep(INTO)
    return {str(sweep.label(group)): len(sweep.runs_of(group)) for group in sweep.groups}


def test_a_file_above_several_runs_hides_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty event file, beside runs whose event files end with hyperparameters, and tables."""
    events("logs")
    events("tables/ppo")
    for group, seed in itertools.product(("ppo", "sac"), range(4)):
        events(f"logs/{group}_seed{seed}", hparams=bool(seed % 2), acc=[seed + step for step in range(5)])
        percent(f"tables/{group}/seed{seed}/progress.csv", 0.1 * seed)
    assert report("logs", "--metric", "acc", "--baseline", "ppo") == 0
    assert sizes() == {"ppo": 4, "sac": 4}
    capsys.readouterr()
    assert report("tables/ppo", "tables/sac", "--metric", "acc") == 0
    assert sizes() == {"ppo": 4, "sac": 4}
    assert "Not read: tables/ppo (it has no step, and other runs are below it)." in capsys.readouterr().out


def test_a_log_that_another_one_of_its_run_stands_for_is_named_and_can_be_given(
    capsys: pytest.CaptureFixture[str], worded: Worded
) -> None:
    for group, seed in itertools.product("ab", range(2)):
        events(f"{group}/run_{seed}", loss=[1.0, seed])
        percent(f"{group}/run_{seed}/progress.csv", 0.1 * seed)
    assert report("a", "b", "--metric", "acc") == 2
    worded(capsys.readouterr().err)
    assert report("a", "b", "--metric", "loss") == 0
    plan = json.loads((INTO / "plan.json").read_text())
    assert "Not read: a/run_0/progress.csv, a/run_1/progress.csv, b/run_0/progress.csv" in plan["notes"][-1]
    assert report("a=a/*/progress.csv", "b=b/*/progress.csv", "--metric", "acc") == 0
    assert report("loss=a", "acc=a/*/progress.csv", "--metric", "acc", "--metric", "loss") == 0
    assert "Not read" not in capsys.readouterr().out.rpartition("Does")[2]


def test_a_group_of_several_formats_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        events(f"tb/{seed}", acc=[0.5, 0.6 + seed])
        percent(f"csv/{seed}.csv", 0.1 * seed)
    assert report("a=tb", "b=csv", "--metric", "acc") == 0
    assert "several formats" not in capsys.readouterr().out
    Path("both").mkdir()
    for place in ("tb", "csv"):
        Path(place).rename(Path("both", place))
    assert report("both", "runs_a", "--metric", "acc") == 0
    said = (
        "Runs of several formats count: both (2 CSV, 2 TensorBoard). Give the logs of one if these are the same runs."
    )
    assert said in capsys.readouterr().out


def test_a_log_beside_the_only_run_of_wandb_is_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {Path(f"r{n}/wandb/offline-run-{n}/run-x.wandb").absolute(): f"x{n}" for n in range(3)}
    others = {Path(f"r{n}/metrics.jsonl").absolute(): f"r{n}" for n in range(3)}
    for path in (*found, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    places = {"W&B": found, "JSONL": others}
    assert import_runs._beaten("JSONL", places) == {*others}
    alone = {path: name for path, name in found.items() if "r0" in str(path)}
    below = {Path("r0/a.jsonl").absolute(): "a", Path("r0/b.jsonl").absolute(): "b"}
    assert import_runs._beaten("JSONL", {"W&B": alone, "JSONL": below}) == set()  # of which of them is it?
    shared = {Path(f"wandb/offline-run-{n}/run-x.wandb").absolute(): f"x{n}" for n in range(2)}
    assert import_runs._beaten("JSONL", {"W&B": shared, "JSONL": {Path("m.jsonl").absolute(): "m"}}) == set()


def test_a_step_that_a_run_lacks_is_refused(worded: Worded, capsys: pytest.CaptureFixture[str]) -> None:
    for group, size in (("small", 100), ("large", 400)):
        for seed in range(2):
            history = [{"step": i, "acc": i + seed, **({"tokens": i * size} if seed or group == "small" else {})}
                       for i in range(1, 21)]  # fmt: skip
            folder = Path(f"tr/{group}/seed{seed}")
            folder.mkdir(parents=True)
            state = {"global_step": 20, "max_steps": 20, "log_history": history}
            (folder / "trainer_state.json").write_text(json.dumps(state))
    for step in ("tokens", "tokenz"):
        assert report("tr", "--metric", "acc", "--step", step) == 2
        worded(capsys.readouterr().err)
    Path("map.csv").write_text("run,group,seed\n" + "".join(
        f"tr/{group}/seed{seed},{group},{seed}\n" for group, seed in (("small", 0), ("small", 1), ("large", 1))
    ))  # fmt: skip
    assert report("tr", "--metric", "acc", "--step", "tokens", "--map", "map.csv") == 0  # which leaves it out
    assert {run.curves.steps[-1] for run in read_sweep(INTO).runs} == {2000, 8000}


@pytest.mark.parametrize("step", ["frames", "env frames", "env_frames", "time", "log/time", "global_step"])
def test_a_step_is_a_key_or_a_metric_by_either_of_its_names(step: str) -> None:
    of_lines = step if step in ("frames", "global_step") else "step"
    for group, seed in itertools.product("ab", range(2)):
        rows = [{of_lines: i, "env frames": 2 * i, "time": 2 * i, "acc": i + seed} for i in range(1, 9)]
        Path(group).mkdir(exist_ok=True)
        Path(f"{group}/seed{seed}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert report("a", "b", "--metric", "acc", "--step", step) == 0
    assert {run.curves.steps[-1] for run in read_sweep(INTO).runs} == {8 if step == of_lines else 16}


def test_metrics_that_nobody_asks_for_contradict_no_step(capsys: pytest.CaptureFixture[str]) -> None:
    """As Lightning logs: several updates in an epoch, and an evaluation at its end."""
    for group, seed in itertools.product("ab", range(2)):
        rows = [{"_step": n, "epoch": n // 4, "trainer/global_step": n, **({"val": n + seed} if n % 4 == 3 else {})}
                for n in range(40)]  # fmt: skip
        Path(group).mkdir(exist_ok=True)
        Path(f"{group}/seed{seed}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert report("a", "b", "--metric", "val", "--step", "epoch") == 0
    assert {tuple(run.curves.steps) for run in read_sweep(INTO).runs} == {tuple(range(10))}

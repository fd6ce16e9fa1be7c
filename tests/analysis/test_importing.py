"""Runs of other tools: real event files and real offline runs become an experiment that the report reads."""

from __future__ import annotations

import gzip
import itertools
import json
import pprint
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.data.metric_log import read_histograms
from analysis.data.sweep import Run, Sweep, read_sweep
from analysis.findings.study import Outcome, Study, study
from analysis.sources.formats.wandb_files import WandbFiles
from analysis.sources.import_runs import ImportRequest, import_runs
from analysis.sources.log import BadImport
from analysis.sources.naming import Naming
from analysis.spec.registry import Points
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from launcher import files
from launcher.__main__ import main as launcher
from launcher.run.folder import histograms_path, read_provenance, run_folder, runs_folder
from launcher.run.lifecycle import RunState, State, read_state, write_state
from launcher.tracking import Row, rows
from tests.analysis.conftest import ANALYSIS, MakeSweep, contents, refusal
from tests.wording import Worded

KEYS = Naming(group="method.name", seed="seed")
BY_NAME = Naming(match=r"(?P<group>[a-z]+)-s(?P<seed>\d+)")


def write_events(folder: Path, lines: Iterable[Row]) -> None:
    from launcher.tracking.tensorboard import EventFiles  # makes forks of the process slow

    writer = EventFiles(folder)
    for row in lines:
        writer.row(row)
    writer.close("done")


def events(folder: Path, values: dict[int, float], config: dict[str, Any] | None = None) -> None:
    """A run of TensorBoard: one scalar a step, and its configuration beside it."""
    write_events(folder, (Row(step, 1e9 + step, {"reward": value}) for step, value in values.items()))
    for file in (folder / "tensorboard").iterdir():
        file.rename(folder / file.name)
    (folder / "tensorboard").rmdir()
    if config is not None:
        (folder / "config.yaml").write_text(files.dump_yaml(config))


def config(name: str, seed: object, **more: object) -> dict[str, Any]:
    return {"method": {"name": name, **more}, "seed": seed}


def asked(source: Path, into: Path, naming: Naming = KEYS, **more: Any) -> ImportRequest:
    return ImportRequest((source,), into, naming, **{"metrics": ("reward",), **more})


def imported(source: Path, naming: Naming = KEYS, **more: Any) -> list[Run]:
    """The runs of the experiment multirun/theirs, beside the logs, that an import makes."""
    into = source.parent / "multirun" / "theirs"
    import_runs(asked(source, into, naming, **more))
    return list(read_sweep(into).runs)


def refused(source: Path, naming: Naming = KEYS, **more: Any) -> str:
    """What an import is refused with."""
    return refusal(BadImport, lambda: imported(source, naming, **more))


def written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """FOLDER/logs with these files."""
    for name, content in files.items():
        path = folder / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "logs"


def points(run: Run, metric: str = "reward") -> dict[float, float]:
    values = zip(run.curves.steps.tolist(), run.curves.values[metric].tolist(), strict=True)
    return {step: value for step, value in values if value == value}


def found(into: Path) -> tuple[Sweep, Study]:
    sweep = read_sweep(into)
    return sweep, study(sweep, settings(sweep.plan["analysis"], groups=sweep.groups, baseline=sweep.baseline))


# ---------------------------------------------------------------- TensorBoard


def test_a_sweep_comes_back_from_its_own_event_files_with_the_same_numbers(make_sweep: MakeSweep) -> None:
    folder = make_sweep(groups=("C0", "C1"))
    runs = runs_folder(folder.parent)
    for run in runs.iterdir():
        group, seed = run.name.split("-")
        (run / "config.yaml").write_text(files.dump_yaml(config(group, int(seed))))
        line = {"step": 60, "attempt": 1, "name": "entropy", "edges": [0, 0.5, 2], "counts": [1, 3]}
        histograms_path(run).write_text(json.dumps(line) + "\n")
        write_events(run, rows(run))
    into, logs = folder.parent.parent / "elsewhere" / "theirs", folder.parent.parent / "logs"
    shutil.copytree(runs, logs, ignore=shutil.ignore_patterns("metrics.jsonl"))
    done = import_runs(
        asked(logs, into, metrics=(), analysis={**ANALYSIS, "window": {"points": 20}}, baseline="C0", paired=True)
    )
    assert done.groups == {"C0": 3, "C1": 3} and done.gaps == ()
    (sweep, theirs), (_, ours) = found(into), found(folder)
    assert [run.problem for run in sweep.runs] == [None] * 6 and sweep.plan["steps"] == 60
    assert len(theirs.blocks) == len(ours.blocks) >= 10
    for a, b in zip(theirs.blocks, ours.blocks, strict=True):
        near = {"rel": 1e-5, "abs": 1e-6}  # an event holds a number in single precision
        assert [e.values for e in a.estimates] == [pytest.approx(e.values, **near) for e in b.estimates]
        p = b.comparisons[0].p  # None: a best value is not judged
        assert a.comparisons[0].p == (p if p is None else pytest.approx(p, rel=1e-3))
    histogram = read_histograms(run_folder(into.parent, sweep.runs[0].id), "entropy")[0][60]
    assert (histogram.edges.tolist(), histogram.counts.tolist()) == ([0, 0.5, 2], [1, 3])


def test_imported_again_it_is_the_same_and_a_run_that_went_on_is_longer(tmp_path: Path) -> None:
    logs, multirun = tmp_path / "logs", tmp_path / "multirun"
    for seed in (0, 1):
        events(logs / str(seed), {1: 0.5, 2: 0.75}, config("ppo", seed))
    imported(logs)
    ranges = found(multirun / "theirs")[1].ranges.values()
    assert [common.window for common in ranges] == [Points(points=1)]  # at most a tenth of a log
    first = contents(multirun)
    imported(logs)
    assert contents(multirun) == first
    shutil.rmtree(logs / "1")
    events(logs / "1", {1: 0.5, 2: 0.75, 3: 1.0}, config("ppo", 1))
    assert [run.curves.steps.tolist() for run in imported(logs)] == [[1, 2], [1, 2, 3]]
    assert sorted(path.name for path in multirun.iterdir()) == ["runs", "theirs"]


def test_groups_seeds_and_factors_come_from_names_and_from_a_map(tmp_path: Path) -> None:
    for name in ("ppo/lr0.1/seed0", "ppo/lr0.3/seed0", "a b<script>/lr0.1/seed7"):
        events(tmp_path / "logs" / name, {0: 1.0, 5: 2.0})
    match = Naming(match=r"/(?P<group>[^/]+)/lr(?P<lr>[^/]+)/seed(?P<seed>\d+)")
    import_runs(asked(tmp_path / "logs", tmp_path / "multirun" / "named", match, baseline="ppo"))
    sweep, _ = found(tmp_path / "multirun" / "named")
    assert {(run.group, run.seed, run.cell) for run in sweep.runs} == {
        ("ppo", 0, (("lr", 0.1),)), ("ppo", 0, (("lr", 0.3),)), ("a_b_script", 7, (("lr", 0.1),))
    }  # fmt: skip
    assert sweep.label("a_b_script") == "a b<script>" and sweep.groups[0] == "ppo"
    table = tmp_path / "map.csv"
    table.write_text("run,group,seed\nlogs/ppo/lr0.1/seed0,mine,3\n")
    done = import_runs(asked(tmp_path / "logs", tmp_path / "multirun" / "mapped", Naming(map=table)))
    assert done.groups == {"mine": 1} and done.left_out == ("logs/a b<script>/lr0.1/seed7", "logs/ppo/lr0.3/seed0")


def test_names_in_other_scripts_keep_their_letters(tmp_path: Path) -> None:
    names = {"基线": "基线", "Метод (v2)": "Метод_v2", "हिन्दी/x": "हिन्दी_x", "!": "group", "?!": "group_2"}
    for place, called in enumerate(names):
        for cell, (clip, gamma) in enumerate(((0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2))):
            about = config(called, 0, clip=clip, gamma=gamma)
            events(tmp_path / "logs" / f"{place}-{cell}", {1: 0.5 + cell, 2: place * clip}, about)
    into = tmp_path / "multirun" / "other"
    naming = Naming(group="method.name", seed="seed", factors=("method.clip", "method.gamma"))
    import_runs(asked(tmp_path / "logs", into, naming, baseline="基线"))
    sweep, _ = found(into)
    assert {sweep.label(group): group for group in sweep.groups} == names
    assert main(["report", str(into)]) == 0
    drawn = {path.stem for path in (into / "report" / "figures").glob("heat_*.svg")}
    assert drawn == {f"heat_{group}" for group in names.values()}
    assert 'data-group="Метод_v2"' in (into / "report" / "index.html").read_text(encoding="utf-8")


def test_references_and_factors_that_no_run_has_are_refused_before_anything_is_written(
    tmp_path: Path, worded: Worded
) -> None:
    events(tmp_path / "logs" / "x", {1: 0.5}, config("ppo", 0, env="Pong"))
    logs, naming = tmp_path / "logs", Naming(group="method.name", seed="seed", factors=("method.env",))
    for asks in ({"normalize": {"Pnog": [0, 1]}}, {"select": {"method.lr": "best"}}):
        worded(refusal(BadPlan, lambda asks=asks: imported(logs, naming, analysis=asks, file="study.yaml")))
        assert not (tmp_path / "multirun").exists()
    asks = {"normalize": {"Pong": [0, 1]}, "select": {"method.env": "best"}}
    assert [run.group for run in imported(logs, naming, analysis=asks)] == ["ppo"]


def test_imported_runs_are_compared_as_samples_unless_pairs_are_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for group, seeds in (("a", range(4)), ("b", range(4, 9))):
        for seed in seeds:
            height = 1.0 + 0.1 * seed + 2.0 * (group == "b")
            events(tmp_path / "logs" / f"{group}{seed}", dict.fromkeys(range(1, 21), height), config(group, seed))
    words = "--group method.name --seed seed --metric reward --baseline a"
    given = [str(tmp_path / "logs"), *words.split()]
    assert main(["import", *given, "--into", str(tmp_path / "paired" / "own"), "--paired"]) == 0
    assert "* b: no seed in common with the baseline. Leave out --paired" in capsys.readouterr().out
    into = tmp_path / "apart" / "own"
    into.mkdir(parents=True)
    monkeypatch.chdir(into)
    assert main(["import", *given, "--into", "."]) == 0
    assert "no seed in common" not in capsys.readouterr().out
    study_of = found(into)[1]
    (comparison,) = study_of.primary.comparisons
    assert (comparison.seeds, comparison.seeds_of_b) == ((4, 5, 6, 7, 8), (0, 1, 2, 3))
    assert (comparison.contrast.test, comparison.outcome) == ("welch", Outcome.HIGHER)
    assert main(["report", str(into)]) == 0
    said = capsys.readouterr().out
    assert "b is better than a in the final value of reward: +2.45" in said
    assert "better in 100% of pairs of runs (5 against 4)" in said
    assert "Seeds are not paired" in (into / "report" / "index.html").read_text()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two runs of two methods."""
    events(tmp_path / "logs" / "x", {1: 0.5}, config("ppo", 0, clip=0.2))
    events(tmp_path / "logs" / "y", {1: 0.5}, config("dpo", "one"))
    return tmp_path / "logs"


@pytest.mark.parametrize(
    ("naming", "more"),
    [
        (Naming(), {}), (Naming(group="method.nam", seed="seed"), {}), (KEYS, {}),
        (Naming(group="method.name", match=r"/(?P<seed>\d)"), {}),
        (Naming(match="("), {}), (Naming(match="x"), {}), (Naming("method.name", "seed", ("method.clip",)), {}),
        (Naming(map=Path("none.csv")), {}),
        (Naming("method.name"), {"metrics": ()}),
        (Naming("method.name"), {"baseline": "b"}),
        (Naming("method.name"), {"analysis": {"pairing": "none"}, "file": "study.yaml", "paired": True}),
        (Naming("method.name"), {"analysis": {"axis": "flops"}, "file": "study.yaml"}),
        *((Naming(map=Path("map.csv")), {"map": text}) for text in (
            "run,group\nlogs/x,a\n", "run,group,seed\nlogs/x,a,0\nlogs/x,a,1\n", "run,group,seed\nlogs/z,a,0\n",
            "run,group,seed\n", f"run,group,seed\nlogs/x,a,{2**63}\n",
        )),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_said_with_run_key_and_fix_and_nothing_is_written(
    logs: Path, monkeypatch: pytest.MonkeyPatch, naming: Naming, more: dict[str, Any], worded: Worded
) -> None:
    monkeypatch.chdir(logs.parent)
    more = dict(more)
    if more:
        (logs / "y" / "config.yaml").write_text(files.dump_yaml(config("dpo", 1)))
        naming = naming if naming.map else KEYS
    Path("map.csv").write_text(more.pop("map", ""))
    worded(refused(logs, naming, **more))
    assert not (logs.parent / "multirun").exists()


def test_an_import_goes_into_no_folder_of_something_else(logs: Path) -> None:
    multirun, mapped = logs.parent / "multirun", Naming(map=_map(logs))
    import_runs(asked(logs, multirun / "mine", mapped))
    before = sorted(multirun.rglob("*"))
    for into in ("runs", "Verdicts", "archive", "runs/mine", "mine/x", ".index", "-x", "a b"):
        with pytest.raises(BadImport, match="not the folder of an experiment"):
            import_runs(asked(logs, multirun / into, mapped))
        assert sorted(multirun.rglob("*")) == before, into


def _map(logs: Path) -> Path:
    (logs.parent / "map.csv").write_text("run,group,seed\nlogs/x,a,0\nlogs/y,b,0\n")
    return logs.parent / "map.csv"


def test_runs_of_one_place_are_refused_with_what_tells_them_apart(logs: Path, worded: Worded) -> None:
    events(logs / "y", {1: 0.5}, config("ppo", 0, clip=0.3))
    worded(refused(logs))
    runs = imported(logs, Naming("method.name", "seed", ("method.clip",)))
    assert [run.cell for run in runs] == [(("method.clip", 0.2),), (("method.clip", 0.3),)]


def test_places_and_runs_of_others_are_refused(logs: Path, make_sweep: MakeSweep, worded: Worded) -> None:
    folder = make_sweep(groups=("C0",), seeds=(0,))
    into, other = logs.parent / "multirun" / "theirs", logs.parent / "other" / "logs"
    shutil.copytree(logs / "x", other / "x")
    for request in (
        asked(logs, folder, Naming(map=_map(logs))),
        asked(folder, into),
        asked(folder / "nowhere", into),
        ImportRequest((logs, other), into, KEYS, metrics=("reward",)),
    ):
        worded(refusal(BadImport, lambda request=request: import_runs(request)))
    events(logs / "y", {1: 0.5}, config("dpo", 1))
    run = imported(logs)[0]
    files.write_json(run_folder(into.parent, run.id) / "provenance.json", {"commit": "abc"})
    worded(refused(logs).replace(run.id, "{run}"))


def test_command_says_what_came_and_what_comes_next(
    logs: Path, capsys: pytest.CaptureFixture[str], worded: Worded
) -> None:
    (logs / "y" / "config.yaml").write_text(files.dump_yaml(config("dpo", 1)))
    into = logs.parent / "multirun" / "theirs"
    words = ["import", str(logs), "--into", str(into), "--group", "method.name", "--seed", "seed"]
    for more, code in ((["--metric", "rewart"], 2), (["--metric", "reward"], 0)):
        assert main([*words, *more]) == code
        worded("".join(capsys.readouterr()))
    plan = json.loads((into / "plan.json").read_text())
    assert plan["command"] == f"python -m analysis {' '.join(words)} --metric reward"


def test_launcher_lists_imported_runs_and_leaves_them_alone(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logs / "y" / "config.yaml").write_text(files.dump_yaml(config("dpo", 1)))
    multirun = logs.parent / "multirun"
    first, second = imported(logs, command="python -m analysis import logs")
    where = ["--multirun", str(multirun)]
    assert launcher(["status", "theirs", *where]) == 0
    assert "theirs: 2 runs of 1 step: 2 done" in capsys.readouterr().out
    assert launcher(["sync", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["server"] is None  # nothing was to be sent
    assert launcher(["reproduce", first.id, *where]) == 2
    assert f"run {first.id}: it was imported, not made by launch.py" in capsys.readouterr().err
    state = State(second.id, RunState.FAILED, 1)
    write_state(run_folder(multirun, second.id), state)
    assert launcher(["retry", "theirs", *where]) == 2
    assert "only a command `launch.py -m ...` can be repeated" in capsys.readouterr().err
    assert read_state(run_folder(multirun, second.id)) == state


# ---------------------------------------------------------------- verl


def logged(path: Path, values: dict[int, object], config: dict[str, Any] | None = None) -> Path:
    """A file of verl's logger, and what Hydra leaves in the folder of the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"step": step, "data": {"reward": value, "training/global_step": step}} for step, value in values.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if config is not None:
        (path.with_suffix("") / ".hydra").mkdir(parents=True)
        (path.with_suffix("") / ".hydra" / "config.yaml").write_text(files.dump_yaml(config))
    return path


def test_a_folders_configuration_is_that_of_its_only_run_of_verl(tmp_path: Path) -> None:
    first = logged(tmp_path / "logs" / "a" / "metrics.jsonl", {1: 1.0})
    (first.parent / "config.yaml").write_text(files.dump_yaml(config("ppo", 3)))
    assert [(run.group, run.seed) for run in imported(tmp_path / "logs")] == [("ppo", 3)]
    logged(first.with_name("others.jsonl"), {1: 1.0})
    said = refused(tmp_path / "logs")
    assert "2 runs (logs/a/metrics, logs/a/others): --group method.name: its configuration has no such key" in said


def test_every_bad_line_of_verls_files_is_named_with_file_and_line(tmp_path: Path, worded: Worded) -> None:
    one, other = (logged(tmp_path / "logs" / f"{name}.jsonl", {1: 0.5}) for name in "ab")
    one.write_text('not json\n{"step": 1, "data": {"reward": 1.0}}\n{"step": 2}\n')
    other.write_text('{"step": 1, "data": {"reward": 1.0}}\n{"step": -1, "data": {}}\n\n')
    worded(refused(tmp_path / "logs"))
    assert not (tmp_path / "multirun").exists()


TASK = "\x1b[36m(TaskRunner pid=8213, ip=10.0.0.7)\x1b[0m "
OTHER = "\x1b[36m(WorkerDict pid=8999)\x1b[0m "


def printed(path: Path, name: str, seed: int, values: list[tuple[int, str]], own: str = TASK) -> Path:
    """What verl prints under Ray: its configuration, lines of other processes, a progress bar, and a line a step."""
    tree = {"algorithm": {"adv_estimator": name, "kl": None}, "data": {"seed": seed}, "trainer": {"nnodes": 1, "x": {}}}
    lines = [f"{own}{line}" for line in pprint.pformat(tree, width=40).splitlines()]
    lines.insert(2, f"{OTHER}{{'input': 'of another process'}}")
    for step, numbers in values:
        bar = f"Training Progress:  50%|#####     | {step}/6 [00:01<00:01]\r"
        lines.append(f"{bar if step else ''}{own}step:{step} - {numbers}")
        lines.append(f"{OTHER}INFO step: done - not:a step")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_printed_run_that_began_again_and_logs_that_are_no_run(tmp_path: Path, worded: Worded) -> None:
    again = [(1, "reward:0.1"), (2, "reward:0.2"), (3, "reward:0.3"), (2, "reward:0.5 - val:1"), (2, "late:4")]
    log = printed(tmp_path / "logs" / "run.txt", "grpo", 0, again)
    keys = Naming("algorithm.adv_estimator", "data.seed")
    (run,) = imported(log, keys, metrics=("reward", "late"))
    assert points(run) == {1: 0.1, 2: 0.5} and points(run, "late") == {2: 4}
    cut, other = log.with_name("cut.log"), tmp_path / "other.log"
    cut.write_text(log.read_text().partition("'trainer'")[0] + "\nstep:1 - reward:1\n")
    worded(refused(cut, keys))
    other.write_text("epoch 1: loss 0.5\n")
    worded(refused(other, keys))
    # W&B keeps what was printed in its own folder: one run
    beside = logged(tmp_path / "both" / "ppo.jsonl", {1: 1.0}, config("ppo", 0))
    printed(beside.parent / "files" / "output.log", "grpo", 0, again)
    assert [run.group for run in imported(tmp_path / "both")] == ["ppo"]


# ---------------------------------------------------------------- W&B, and Hugging Face's Trainer

OFFLINE = """
import json, sys
import wandb
folder, jobs = sys.argv[1], json.loads(sys.argv[2])
for job in jobs:
    run = wandb.init(mode="offline", dir=folder, project="p", id=job["id"], job_type=job["group"], reinit="create_new",
                     config={"method": {"name": job["group"]}, "seed": job["seed"]},
                     settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True))
    for line in job["lines"]:
        more = {"h": wandb.Histogram(np_histogram=([1, 3], [0, 1, 2])), "text": "t" * 3000, "deep": {"er": 2.0}}
        run.log({**line, **more}, step=line["step"] if job["own"] else None)
    run.finish(exit_code=job["code"])
"""


def offline(folder: Path, *jobs: dict[str, Any]) -> Path:
    """Real offline runs, written by W&B in a process of its own."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(folder), json.dumps(jobs)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return folder


def job(
    run_id: str, group: str, seed: int, lines: list[dict[str, Any]], code: int = 0, own: bool = True
) -> dict[str, Any]:
    return {"id": run_id, "group": group, "seed": seed, "lines": lines, "code": code, "own": own}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four offline runs: one failed, one resumed from step 3 on."""
    folder = tmp_path_factory.mktemp("theirs")
    curve = [{"step": step, "reward": step / 7, "loss": float("nan")} for step in range(1, 6)]
    later = [{"step": step, "reward": 100.0 + step} for step in range(4, 7)]
    offline(folder, job("a0", "ppo", 0, curve), job("a1", "ppo", 1, curve, code=3), job("b0", "dpo", 0, curve))
    offline(folder, job("b0", "dpo", 0, later), job("b1", "dpo", 1, later, own=False))
    yield folder


@pytest.mark.processes
def test_offline_runs_are_read_whole_to_the_last_digit(theirs: Path, tmp_path: Path) -> None:
    into = tmp_path / "multirun" / "theirs"
    done = import_runs(asked(theirs, into, metrics=("reward", "loss", "deep.er"), baseline="ppo", step="step"))
    assert done.groups == {"ppo": 2, "dpo": 2}
    assert len(done.gaps) == 1 and done.gaps[0].startswith("group ppo, seed 1: exit code 3 (offline-run-")
    runs = {(run.group, run.seed): run for run in found(into)[0].runs}
    first = runs["ppo", 0].curves
    assert first.steps.tolist() == [1, 2, 3, 4, 5]
    assert first.values["reward"].tolist() == [step / 7 for step in range(1, 6)]
    assert first.not_finite == {"loss": 5} and first.values["deep.er"].tolist() == [2.0] * 5
    resumed = runs["dpo", 0]
    assert resumed.curves.values["reward"].tolist() == [1 / 7, 2 / 7, 3 / 7, 104.0, 105.0, 106.0]
    assert (resumed.attempt, resumed.curves.superseded) == (2, 2)
    assert runs["dpo", 1].curves.steps.tolist() == [4, 5, 6]  # --step, not W&B's own
    assert runs["ppo", 1].problem == "failed: exit code 3 (last step 5)"
    kept = read_histograms(run_folder(into.parent, runs["ppo", 0].id), "h")[0][5]
    assert (kept.edges.tolist(), kept.counts.tolist()) == ([0, 1, 2], [1, 3])
    assert main(["report", str(into)]) == 0


@pytest.mark.processes
def test_a_torn_file_is_read_up_to_the_tear_and_a_foreign_one_is_refused(theirs: Path, tmp_path: Path) -> None:
    (whole,) = [path for path in WandbFiles().found(theirs, None) if path.name == "run-a0.wandb"]
    data = whole.read_bytes()
    assert len(data) > 32768, "or no record crosses a block's end"
    for place, (cut, changed) in enumerate(((len(data) // 2, None), (len(data) - 20, None), (len(data), 33000))):
        torn = bytearray(data[:cut])
        if changed is not None:
            torn[changed] ^= 255
        path = tmp_path / f"{place}" / "run-a0.wandb"
        path.parent.mkdir()
        path.write_bytes(torn)
        (run,) = WandbFiles().read({path: "a0"}, None, ())
        assert run.problem == "its file has no end: it was killed, or still runs"
        assert 0 < run.log.steps.max() <= 5 and run.about["method.name"] == "ppo"
    path.write_bytes(data[:7])  # as W&B leaves it if the process is killed at its start
    (run,) = WandbFiles().read({path: "a0"}, None, ())
    assert (run.name, run.problem) == ("a0", "it was killed before W&B wrote its configuration")
    path.write_bytes(b"x" * 99)
    with pytest.raises(BadImport, match="not a file of W&B"):
        list(WandbFiles().read({path: "a0"}, None, ()))
    path.write_bytes(data)
    said = refused(path.parent, step="global_step")
    assert "--step = 'global_step': 1 run of 1 did not record this metric (a0). Fix: " in said


def trainer_state(folder: Path, steps: int, height: float, planned: int = 40, **more: Any) -> None:
    """A state as TRL writes it: entries of training and of evaluation every ten steps, one at the end, and one of an
    evaluation of the best checkpoint thereafter."""
    history: list[dict[str, Any]] = []
    for step in range(10, steps + 1, 10):
        history.append({"epoch": step / 40, "kl": 0.002, "loss": 0.0, "reward": height * step, "step": step})
        history.append({"epoch": step / 40, "eval_reward": height * step / 2, "eval_runtime": 9.1, "step": step})
    if steps == planned:
        history.append({"epoch": 1.0, "step": steps, "total_flos": 0.0, "train_runtime": 99.5})
        history.append({"epoch": 1.0, "eval_reward": 99.0, "eval_runtime": 9.2, "step": steps})
    control = {"TrainerControl": {"args": {"should_training_stop": steps == planned}, "attributes": {}}}
    state = {"best_metric": None, "global_step": steps, "log_history": history, "max_steps": planned}
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({**state, "stateful_callbacks": control, **more}, indent=2))


def test_an_evaluation_after_the_training_of_the_trainer_supersedes_nothing(tmp_path: Path) -> None:
    trainer_state(tmp_path / "out" / "grpo-s0", 40, 1.0)
    for metrics in (("reward",), ("eval_reward", "reward")):
        done = import_runs(asked(tmp_path / "out", tmp_path / "m" / "x", BY_NAME, metrics=metrics))
        (run,) = read_sweep(tmp_path / "m" / "x").runs
        assert points(run) == {10: 10, 20: 20, 30: 30, 40: 40}
        assert "Rows: 10 read, 9 used" in done.read[0] and "1 (evaluated again after the training)" in done.read[1]
    assert points(run, "eval_reward") == {10: 5, 20: 10, 30: 15, 40: 20}


def test_a_state_that_a_callback_stopped_has_ended_and_another_file_is_refused(tmp_path: Path, worded: Worded) -> None:
    stopped = {"TrainerControl": {"args": {"should_training_stop": True}}}
    trainer_state(tmp_path / "out" / "grpo-s0", 20, 1.0, stateful_callbacks=stopped)
    file = tmp_path / "out" / "grpo-s0" / "trainer_state.json"
    assert import_runs(asked(file, tmp_path / "theirs", BY_NAME)).gaps == ()
    file.write_text("[]")
    worded(refused(tmp_path / "out", BY_NAME))


# ---------------------------------------------------------------- CSV files, and what is read of each format


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("episode,reward\n1,2\n", None), ("step,reward\n1,2\n", "epoch"), ("step,reward\n1,2\n0.5,3\n", None),
        ("step,reward\n1,2,9\n", None), ("r,l,t\n1.0,x,2\n", None),
        ("time,a-s0 - reward,b-s0 - reward\n0.5,1,2\n1.5,1,2\n2.5,1,2\n3.5,1,2\n4.5,1,2\n", "time"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read_are_refused_with_the_line_or_the_columns(
    tmp_path: Path, text: str, step: str | None, worded: Worded
) -> None:
    (tmp_path / "a-s0.csv").write_text(text)
    worded(refused(tmp_path / "a-s0.csv", BY_NAME, step=step))
    assert not (tmp_path / "multirun").exists()


def test_a_table_whose_columns_are_runs_says_its_metric(tmp_path: Path) -> None:
    (tmp_path / "acc.csv").write_text("step,ppo_seed0,sac_seed0\n1,0.5,0.75\n")
    said = refused(tmp_path / "acc.csv", Naming(match="/(?P<group>[a-z]+)_"), metrics=("accc",))
    assert said == "--metric accc: no run recorded this metric; the recorded metrics are acc. Fix: write acc"


def verl_files(folder: Path) -> None:
    """Of one a crash cut off the last line; rollouts are no log."""
    for name, seed in (("ppo", 0), ("ppo", 1), ("dpo", 0)):
        values: dict[int, object] = {0: seed / 7, 1: None, 2: 2, 3: "0.5"}
        path = logged(folder / f"{name}-{seed}.jsonl", values, config(name, seed))
    path.write_text(path.read_text() + '{"step": 4, "da')
    (folder / "rollouts").mkdir()
    (folder / "rollouts" / "1.jsonl").write_text('{"input": "a", "output": "b", "step": 1}\n')


def verl_prints(folder: Path) -> None:
    """Early versions round to three decimals; later ones print what numpy prints. A crash cut one off."""
    early = [(0, "reward:0.125"), (1, "reward:0.250 - perf/mfu/actor:-0.011 - text:abc"), (2, "reward:nan - lr:0.000")]
    late = [(1, "reward:np.float64(0.1234567890123) - tokens:64"), (2, "reward:1e-05 - tokens:np.int64(7)")]
    printed(folder / "a.log", "grpo", 0, early)
    whole = printed(folder / "b.out", "rloo", 3, late, own="")
    whole.write_text(whole.read_text() + "step:3 - reward:0.1")
    (folder / "notes.txt").write_text("step:1 was fine\n")


def trainer_states(folder: Path) -> None:
    """The newest state is the run, and the Trainer's own events are no other."""
    for seed, steps in ((0, 20), (0, 40), (1, 20)):
        trainer_state(folder / f"grpo-s{seed}" / f"checkpoint-{steps}", steps, 1.0 + seed)
    events(folder / "grpo-s0" / "runs" / "Nov01_host", {1: 5.0})


def torch_writes(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "a")) as writer:
        writer.add_hparams({"algo": "ppo", "seed": 3, "lr": 0.1}, {"hparam/end": 1.0})
        for step in range(6):
            writer.add_scalar("reward", step / 8, step)
        writer.add_histogram("weights", np.arange(10.0), 5)
        writer.add_text("notes", "hello", 5)
    with SummaryWriter(str(folder / "a"), purge_step=4, filename_suffix=".later") as writer:
        writer.add_scalar("reward", 9.0, 4)


def beside(folder: Path) -> None:
    """A table beside another tool's log is not a second run."""
    events(folder / "a-s0", {1: 1.0, 2: 2.0})
    (folder / "a-s0" / "progress.csv").write_text("step,reward\n1,7\n")


MONITOR = '#{"t_start": 1688057141.4, "env_id": "CartPole-v1"}\nr,l,t\n'
PUBLISHED = "".join(
    f"{env};{algo};{seed};{step};{gain * step + seed};x\n"
    for step in (200, 100)  # in any order
    for env, gain in (("Pong", 1), ("Qbert", 2))
    for algo, gain in (("dqn", gain), ("ppo", gain + 2))
    for seed in (1, 2)
)
RLLIB = 'episode_reward_mean,timesteps_total,done,trial_id,hist\n10.5,4000,False,ab1,"[1.0, 2.0]"\nnan,8000,True,ab1,\n'
VERL = {0: 0.0, 2: 2.0, 3: 0.5}
#: The files, or what writes them; how runs are named; and by group, seed and cell, values of metrics by step.
READ: dict[str, tuple[Any, Naming, dict[tuple[Any, ...], dict[str, dict[int, float]]]]] = {
    "verl's logger": (
        verl_files, KEYS,
        {("ppo", 0): {"reward": VERL}, ("ppo", 1): {"reward": {**VERL, 0: 1 / 7}}, ("dpo", 0): {"reward": VERL}},
    ),
    "verl's console": (
        verl_prints, Naming("algorithm.adv_estimator", "data.seed"),
        {("grpo", 0): {"reward": {0: 0.125, 1: 0.25}, "perf/mfu/actor": {1: -0.011}, "text": {}},
         ("rloo", 3): {"reward": {1: 0.1234567890123, 2: 1e-05}, "tokens": {1: 64, 2: 7}}},
    ),
    "states of the Trainer": (
        trainer_states, BY_NAME,
        {("grpo", 0): {"reward": {10: 10, 20: 20, 30: 30, 40: 40}, "eval_reward": {10: 5, 20: 10, 30: 15, 40: 20}},
         ("grpo", 1): {"reward": {10: 20, 20: 40}}},
    ),
    "torch's writer": (
        torch_writes, Naming("algo", "seed", ("lr",)),
        {("ppo", 3, ("lr", 0.1)): {"reward": {0: 0, 1: 0.125, 2: 0.25, 3: 0.375, 4: 9.0}, "weights": {}}},
    ),
    "a table beside events": (beside, BY_NAME, {("a", 0): {"reward": {1: 1.0, 2: 2.0}}}),
    # keys in any order, empty cells, evaluations in rows of their own, two environments, a last row that was cut off
    "Stable-Baselines3": (
        {"ppo/seed_3/progress.csv":
            "time/iterations,rollout/ep_rew_mean,time/total_timesteps,eval/mean_reward,train/loss\n"
            "1,20.5,100,,\n2,25.0,200,,0.1\n,,200,30.5,\n3,26.0,300,,0.2\n4,27",
         "ppo/seed_3/0.monitor.csv": f"{MONITOR}1.0,40,0.5\n2.0,60,1.5\n",
         "ppo/seed_3/1.monitor.csv": f"{MONITOR}5.0,100,1.0\n", "ppo/notes.csv": "a,b\n1,2\n"},
        Naming(match=r"(?P<group>\w+)/seed_(?P<seed>\d+)"),
        {("ppo", 3): {"rollout/ep_rew_mean": {100: 20.5, 200: 25.0, 300: 26.0}, "eval/mean_reward": {200: 30.5},
                      "r": {40: 1.0, 140: 5.0, 200: 2.0}}},
    ),
    "a published table": (
        {"published.csv": f"\ufeffenv id;algo;seed;global_step;episodic return;note\n{PUBLISHED}"},
        Naming(group="algo", seed="seed", factors=("env id",)),
        {(algo, seed, ("env id", env)): {"episodic_return": {100: 100 * gain + seed, 200: 200 * gain + seed}}
         for env, more in (("Pong", 0), ("Qbert", 1))
         for algo, gain in (("dqn", 1 + more), ("ppo", 3 + more)) for seed in (1, 2)},
    ),
    "monitors of a run that was resumed": (
        {"a-s0/0.monitor.csv": f"{MONITOR}1,10,1\n2,10,3\n3,10,2\n", "a-s0/1.monitor.csv": f"{MONITOR}5,10,2\n"},
        BY_NAME, {("a", 0): {"r": {10: 1, 20: 5, 30: 2, 40: 3}}},
    ),
    "a long table": (
        {"t.csv": "algo,seed,env,step,variable,value\n" + "".join(
            f"{algo},{seed},x,{step},{name},{value}\n" for name, value in (("val acc", 0.5), ("loss", 2), ("algo", 7))
            for algo in "ab" for seed in (0, 1) for step in (1, 2))},
        Naming(group="algo", seed="seed"),
        {(algo, seed): {"val_acc": {1: 0.5, 2: 0.5}, "loss": {1: 2, 2: 2}} for algo in "ab" for seed in (0, 1)},
    ),
    "RLlib": (
        {f"{algo}_0/{name}": text for algo in ("PPO", "IMPALA") for name, text in (
            ("params.json", json.dumps({"algo": algo, "seed": 7, "lr": 5e-05})), ("progress.csv", RLLIB))},
        Naming(group="algo", seed="seed", factors=("lr",)),
        {(algo, 7, ("lr", 5e-05)): {"episode_reward_mean": {4000: 10.5}} for algo in ("PPO", "IMPALA")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_runs_of_a_format_have_their_names_steps_and_values(tmp_path: Path, name: str) -> None:
    made, naming, expected = READ[name]
    (logs := tmp_path / "logs").mkdir()
    written(tmp_path, made) if isinstance(made, dict) else made(logs)
    metrics = {metric: None for of_run in expected.values() for metric, values in of_run.items() if values}
    found = {(run.group, run.seed, *run.cell): run for run in imported(logs, naming, metrics=tuple(metrics))}
    assert found.keys() == expected.keys()
    for place, run in found.items():
        recorded = {key: points(run, key) if key in run.curves.values else {} for key in expected[place]}
        assert recorded == expected[place], place


BY_COLUMN = Naming("algo", "seed")


def verl(*rows: tuple[int, dict[str, Any]]) -> str:
    return "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in rows)


# ---------------------------------------------------------------- logs as people keep them


def published(columns: str, rows: list[tuple[object, ...]]) -> str:
    return "\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n"


ROWS = "step,reward\n1,0.5\n2,0.75\n"
JSON_ROWS = '{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.75}\n'
HALF = {1.0: 0.5, 2.0: 0.75}
#: The files of a run, what its metric is by step, and what is said.
KEPT: dict[str, tuple[dict[str, str | bytes], dict[float, float], str]] = {
    "lines of text first": ({"a-s0.jsonl": '{"event": "resumed"}\n{"step": 0, "note": "x"}\n' + JSON_ROWS}, HALF, ""),
    "null first": ({"a-s0.jsonl": '{"step": 0, "reward": null}\n' + JSON_ROWS}, HALF, ""),
    "a time in each line": ({"a-s0.jsonl": JSON_ROWS.replace("}", ', "at": "2024-01-01T00:00:00"}')}, HALF, ""),
    "packed lines": ({"a-s0.jsonl.gz": gzip.compress(JSON_ROWS.encode())}, HALF, ""),
    "a packed table": ({"a-s0.csv.gz": gzip.compress(ROWS.encode())}, HALF, ""),
    "a packed table that is cut off": ({"a-s0/progress.csv.gz": gzip.compress(ROWS.encode())[:-8]}, HALF, ""),
    "UTF-16": ({"a-s0.csv": ROWS.encode("utf-16")}, HALF, ""),
    "lines of UTF-16": ({"a-s0.jsonl": JSON_ROWS.encode("utf-16")}, HALF, ""),
    "a last number that may be cut off": ({"a-s0.csv": ROWS + "3,1"}, HALF, "1 (last line without an end)"),
    "one row without an end": ({"a-s0.csv": "step,reward\n1,0.5"}, {1: 0.5}, ""),
    "an export without an end": ({"t.csv": "step,a-s0 - reward\n1,0.5\n2,0.75"}, HALF, ""),
    "half a line": ({"a-s0.jsonl": '{"step": 3, "rew\n' + JSON_ROWS}, HALF, "1 (line 1 is incomplete)"),
    "half a line with an object": (
        {"a-s0.jsonl": '{"step": 3, "reward": 1, "x": {"step": 7, "y": 1}\n' + JSON_ROWS}, HALF, "line 1 is incomplete",
    ),
    "half a line before another": (
        {"a-s0.jsonl": '{"step": 3, "reward": 0.1, "x": {"y": 0.' + JSON_ROWS}, HALF,
        "1 (line 1 begins with half of another)",
    ),
    "rows in no order": (
        {"a-s0.csv": published("step,reward", [(step * 13 % 31, step * 13 % 31 / 4) for step in range(31)])},
        {step: step / 4 for step in range(31)}, "",
    ),
    "rows in falling order": (
        {"a-s0.jsonl": "".join(f'{{"step": {9 - step}, "reward": {step}}}\n' for step in range(10))},
        {9 - step: step for step in range(10)}, "",
    ),
    "a column of steps without a cell": ({"a-s0.csv": "global_step,step,reward\n,1,0.5\n,2,0.75\n"}, HALF, ""),
    "a key of steps that is null": ({"a-s0.jsonl": JSON_ROWS.replace("{", '{"global_step": null, ')}, HALF, ""),
    "a comma at the end of each row": ({"a-s0.csv": "step,reward\n1,0.5,\n2,0.75,\n"}, HALF, ""),
    "others beside it": (
        {"a-s0.csv": ROWS, "a-s1.csv": ROWS.replace("step", "epoch"), "a-s2.jsonl": '{"acc": 1}\n', "x/b.csv": "c,d\n"},
        HALF,
        "logs/a-s1.csv (no column is known to count steps; the columns are epoch, reward); "
        "logs/a-s2.jsonl (no key is known to count steps; the keys are acc).",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_a_log_is_read_as_it_is_kept_or_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made, expected, said = KEPT[name]
    done = import_runs(asked(written(tmp_path, made), tmp_path / "multirun" / "theirs", BY_NAME))
    sweep = read_sweep(tmp_path / "multirun" / "theirs")
    (run,) = sweep.runs
    assert (run.group, run.seed, points(run)) == ("a", 0, expected)
    assert said in "\n".join(done.read) and ("Not read" in "\n".join(done.read)) == ("(no " in said)
    assert "(no " not in said or any(said in note for note in sweep.plan["notes"])


def test_a_folder_of_files_that_are_no_logs_says_why(tmp_path: Path) -> None:
    logs = written(tmp_path, {"a.csv": "epoch,reward\n1,2\n", "b.jsonl": '{"step": 1, "a": 1, "b": "x", "c": "y"}\n'})
    assert "a.csv: no column is known to count steps; the columns are epoch, reward; 1 more" in refused(logs, BY_NAME)
    (logs / "a.csv").unlink()
    assert "b.jsonl: its lines have more texts and lists than numbers. Fix: " in refused(logs, BY_NAME)
    assert len(imported(logs / "b.jsonl", Naming(match="(?P<group>b)"), metrics=("a",))) == 1


@pytest.mark.parametrize(
    ("name", "metric"), [("a-s0.jsonl", "val acc (%)"), ("a-s0.csv", "val_acc_(%)"), ("a-s0.log", "val acc (%)")]
)
def test_a_blank_in_the_name_of_a_metric_is_an_underscore(tmp_path: Path, name: str, metric: str) -> None:
    made = {"l": JSON_ROWS, "v": ROWS, "g": "step:1 - reward:0.5\nstep:2 - reward:0.75\n"}[name[-1]]
    (run,) = imported(written(tmp_path, {name: made.replace("reward", "val acc (%)")}), BY_NAME, metrics=(metric,))
    assert points(run, "val_acc_(%)") == HALF


def test_metrics_that_would_share_a_name_are_refused(tmp_path: Path) -> None:
    row = json.dumps({"step": 1, "my acc": 0.1, "my_acc": 0.9})
    (tmp_path / "logs" / "a").mkdir(parents=True)
    (tmp_path / "logs" / "a" / "metrics.jsonl").write_text(row + "\n")
    with pytest.raises(BadImport, match="my acc and my_acc would both be written under this name"):
        import_runs(asked(tmp_path / "logs", tmp_path / "multirun" / "x", metrics=("my acc",)))


ODD = "betas: !!python/tuple [0.9]\nact: !!python/name:m.f ''\nm: !!python/object:m.C {a: 1}\nday: 2024-01-01\n"


def test_a_configuration_of_a_program_is_read_and_a_bad_one_is_needed_for_its_keys_alone(tmp_path: Path) -> None:
    logs = written(tmp_path, {f"a-s{n}/{name}": text for n in (0, 1) for name, text in (
        ("progress.csv", ROWS), ("hparams.yaml", f"algo: x\nseed: {n + 5}\n{ODD}"))})  # fmt: skip
    assert [(run.group, run.seed) for run in imported(logs, BY_COLUMN)] == [("x", 5), ("x", 6)]
    (logs / "a-s0" / "hparams.yaml").rename(logs / "a-s0" / "config.yaml")
    (logs / "a-s0" / "hparams.yaml").write_text("{}\n")  # as Lightning's command line leaves it
    assert [(run.group, run.seed) for run in imported(logs, BY_COLUMN)] == [("x", 5), ("x", 6)]
    (logs / "a-s0" / "config.yaml").unlink()
    assert "no such key; it has none in hparams.yaml, config.yaml, " in refused(logs, BY_COLUMN)
    (logs / "a-s0" / "hparams.yaml").write_text("a: [")
    assert "hparams.yaml: not plain YAML" in refused(logs, BY_COLUMN)
    done = import_runs(asked(logs, tmp_path / "multirun" / "theirs", BY_NAME))
    assert done.groups == {"a": 2} and re.search(r"Not read: \S+a-s0/hparams.yaml \(not plain YAML", done.read[1])


STATE = json.dumps({"global_step": 2, "log_history": [json.loads(line) for line in JSON_ROWS.splitlines()]})


@pytest.mark.parametrize("name", ["progress.csv", "trainer_state.json", "events"])
def test_a_run_in_a_linked_folder_is_read_once(tmp_path: Path, name: str) -> None:
    run = written(tmp_path / "store", {} if name == "events" else {name: STATE if "state" in name else ROWS})
    if name == "events":
        events(run, {1: 0.5, 2: 0.75})
    (logs := tmp_path / "logs").mkdir()
    (logs / "a-s0").symlink_to(run)
    (logs / "latest").symlink_to("a-s0")
    (run / "up").symlink_to(logs)
    (found,) = imported(logs, BY_NAME)
    assert (found.group, found.seed, points(found)) == ("a", 0, HALF)


# ---------------------------------------------------------------- runs that ended before their first step

OF_VERL = verl((1, {"reward": 0.5}), (2, {"reward": 0.75}))
PRINTED = "(TaskRunner pid=1) {'actor_rollout_ref': {'a': 1},\n(TaskRunner pid=1)  'trainer': {}}\n"


@pytest.mark.parametrize(
    ("name", "whole", "died"),
    [
        ("ppo-s{}.jsonl", OF_VERL, b'{"step":1,"da'),
        ("ppo-s{}.jsonl", OF_VERL, b"\0" * 200),
        ("ppo-s{}.csv", ROWS, b"step,rew"),
        ("ppo-s{}/progress.csv", ROWS, b""),
        ("ppo-s{}/0.monitor.csv", '#{"t": 1}\nr,l,t\n0.5,1,1\n0.75,1,2\n', b'#{"t": 1}\nr,l,t\n'),
        ("ppo-s{}.log", PRINTED + "step:1 - reward:0.5\nstep:2 - reward:0.75\n", PRINTED.encode()),
    ],
)
def test_a_run_whose_file_holds_no_whole_line_is_present_and_missing(
    tmp_path: Path, name: str, whole: str, died: bytes
) -> None:
    logs = written(tmp_path, {name.format(0): whole, name.format(1): died})
    runs = imported(logs, BY_NAME, metrics=("r",) if "monitor" in name else ("reward",))
    assert [(run.group, run.seed, run.done) for run in runs] == [("ppo", 0, True), ("ppo", 1, False)]
    assert runs[1].problem == "failed: it ended before it had logged a step"


def test_runs_without_scalars_or_history_are_present_and_what_belongs_to_a_run_is_none(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    events(tmp_path / "logs" / "ppo-s0", {1: 0.5, 2: 0.75})
    SummaryWriter(str(tmp_path / "logs" / "ppo-s1")).close()
    for place in ("ppo-s0/texts", "ppo-s1/texts", "."):
        with SummaryWriter(str(tmp_path / "logs" / place)) as writer:
            writer.add_text("notes", "hello", 0)
    trainer_state(tmp_path / "logs" / "ppo-s2", 40, 1.0)
    written(tmp_path, {"ppo-s3/checkpoint-10/trainer_state.json": b""})
    runs = imported(tmp_path / "logs", BY_NAME)
    assert [(run.seed, run.done) for run in runs] == [(0, True), (1, False), (2, True), (3, False)]
    logs = written(tmp_path / "others", {"a/ppo-s0.jsonl": OF_VERL, "b/x.jsonl": '{"input": "a"}\n', "b/y.jsonl": b""})
    assert len(imported(logs, BY_NAME)) == 1  # files of another program, of which one is empty


# ---------------------------------------------------------------- attempts


def attempts(*parts: range, **counts: int) -> list[tuple[int, dict[str, float]]]:
    """Rows of the steps of each part; a counter goes on where the steps do not."""
    steps = [(part, step) for part, of_part in enumerate(parts) for step in of_part]
    return [(step, {"reward": step + part / 2, **{name: first + row for name, first in counts.items()}})
            for row, (part, step) in enumerate(steps)]  # fmt: skip


def as_table(rows: list[tuple[int, dict[str, float]]]) -> str:
    lines = [",".join(["step", *rows[0][1]]), *(",".join(map(str, (step, *row.values()))) for step, row in rows)]
    return "\n".join(lines) + "\n"


def as_printed(rows: list[tuple[int, dict[str, float]]]) -> str:
    return "".join(f"step:{s} - {' - '.join(f'{k}:{v}' for k, v in row.items())}\n" for s, row in rows)


FORMATS = {"ppo-s0.jsonl": lambda rows: verl(*rows), "ppo-s0.csv": as_table, "ppo-s0.log": as_printed}


@pytest.mark.parametrize(
    ("name", "later"),
    [("ppo-s0.jsonl", range(4, 7)), ("ppo-s0.csv", range(7, 10)), ("ppo-s0.log", range(4, 7))],
    ids=["jsonl, resumed", "csv, at its last step", "log, resumed"],
)
def test_the_later_attempt_counts_from_its_first_step_on_and_this_is_said(
    tmp_path: Path, name: str, later: range, capsys: pytest.CaptureFixture[str]
) -> None:
    first = range(1, 8)
    source = written(tmp_path, {name: FORMATS[name](attempts(first, later))})
    words = ["import", str(source), "--into", str(tmp_path / "m" / "x"), "--match", BY_NAME.match, "--metric", "reward"]
    assert main([str(word) for word in words]) == 0
    (run,) = read_sweep(tmp_path / "m" / "x").runs
    kept = [step for step in first if step < later[0]]
    assert points(run) == {**{step: step for step in kept}, **{step: step + 0.5 for step in later}}
    gone = len(first) - len(kept)
    said = capsys.readouterr().out
    assert f"Rows: {len(first) + len(later)} read, {len(kept) + len(later)} used" in said
    assert f"rows not used: {gone} (superseded by a later attempt from step {later[0]} on)" in said
    assert read_provenance(run_folder(tmp_path / "m", run.id))["imported"]["unused"]


@pytest.mark.parametrize("name", FORMATS)
def test_steps_that_begin_again_are_refused_with_the_counter_that_goes_on(
    tmp_path: Path, name: str, worded: Worded
) -> None:
    source = written(tmp_path, {name: FORMATS[name](attempts(range(5), range(3), global_step=100))})
    worded(refused(source, BY_NAME))
    (run,) = imported(source, BY_NAME, step="global_step")
    assert points(run) == {100 + row: value for row, value in enumerate([0, 1, 2, 3, 4, 0.5, 1.5, 2.5])}
    assert "log/step" in run.curves.values if name.endswith("csv") else True
    nothing = written(tmp_path / "none", {name: FORMATS[name](attempts(range(5), range(8)))})
    worded(refused(nothing, BY_NAME))


LENGTHS = [9, 14, 11, 20, 17, 14, 26, 22, 30, 26, 35, 31]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("lengths", [LENGTHS, [each + place / 100 for place, each in enumerate(LENGTHS)], [200] * 12])
def test_lengths_of_episodes_are_no_steps(tmp_path: Path, name: str, lengths: list[float]) -> None:
    rows = [(int(100 * length), {"reward": place / 8, "episode": place}) for place, length in enumerate(lengths)]
    (run,) = imported(source := written(tmp_path, {name: FORMATS[name](rows)}), BY_NAME, step="episode")
    assert points(run) == {place: place / 8 for place in range(12)}
    assert refused(source, BY_NAME).endswith("Fix: add --step episode, which continues to count")
    alone = [(step, {"reward": row["reward"]}) for step, row in rows]
    source = written(tmp_path / "alone", {name: FORMATS[name](alone)})
    if len({step for step, _ in rows}) == len(rows):
        import_runs(asked(source, into := tmp_path / "m" / "x", BY_NAME))
        assert any("are in no order, and are sorted by" in note for note in read_sweep(into).plan["notes"])
    else:
        assert refused(source, BY_NAME).endswith("more rows. Fix: name what counts the steps by --step")


def test_event_files_of_two_attempts(tmp_path: Path, worded: Worded) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def run(name: str, *parts: list[tuple[str, int, float]]) -> Path:
        folder = tmp_path / name / "ppo-s0"
        for number, part in enumerate(parts):
            with SummaryWriter(str(folder), filename_suffix=f".{number}") as writer:
                for tag, step, value in part:
                    writer.add_scalar(tag, value, step)
            (file,) = folder.glob(f"*.{number}")
            file.rename(folder / f"events.out.tfevents.{number}")
        return folder.parent

    def steps(of: range, tag: str = "reward", more: float = 0.0) -> list[tuple[str, int, float]]:
        return [(tag, step, step + more) for step in of]

    (both,) = imported(run("b", steps(range(1, 4)), steps(range(1, 4), "loss")), BY_NAME, metrics=("reward", "loss"))
    assert points(both) == points(both, "loss") == {1: 1, 2: 2, 3: 3} and both.curves.superseded == 0
    epochs = [[*steps(range(40)), *steps(range(2), "eval")], [*steps(range(40, 42)), *steps(range(1, 3), "eval")]]
    (run_of,) = imported(run("c", *epochs), BY_NAME, metrics=("reward", "eval"))
    assert len(points(run_of)) == 42 and points(run_of, "eval") == {0: 0, 1: 1, 2: 2}
    for seed in range(3):
        with SummaryWriter(str(tmp_path / "lines" / f"ppo-s{seed}")) as writer:
            for step in range(4):
                if seed < 2:
                    writer.add_scalars("a/loss", {"train": step, "val": 2 * step}, step)
                writer.add_scalar("reward", 3 * step, step)
    for line, factor in (("train", 1), ("val", 2)):  # as tensorboardX does
        with SummaryWriter(str(tmp_path / "lines" / "ppo-s2" / "a" / "loss" / line)) as writer:
            for step in range(4):
                writer.add_scalar("a/loss", factor * step, step)
    runs = imported(tmp_path / "lines", BY_NAME, metrics=("reward", "a/loss/val"))
    assert [points(each, "a/loss/val") for each in runs] == [{0: 0, 1: 2, 2: 4, 3: 6}] * 3
    assert [points(each)[3] for each in runs] == [9, 9, 9]
    assert "metrics are a/loss/train, a/loss/val, reward." in refused(tmp_path / "lines", BY_NAME, metrics=("a/loss",))
    killed = [(tag, at, 9.0 if at >= 45 else 1.0) for u in range(0, 100, 10)
              for tag, at in (("reward", u), *([("eval", u * 1000)] if u % 40 == 0 else []))]  # fmt: skip
    resumed = [("eval", 99_000, 2.0), *(("reward", u, 1.0) for u in range(45, 100, 10))]  # by environment steps, first
    (stale,) = imported(run("e", killed, resumed), BY_NAME, metrics=("reward", "eval"))
    assert points(stale) == dict.fromkeys([0, 10, 20, 30, 40, *range(45, 100, 10)], 1.0)
    assert points(stale, "eval") == {0: 1, 40_000: 9, 80_000: 9, 99_000: 2}
    again = run("d", steps(range(4)), steps(range(3), more=0.5))
    worded(refused(again, BY_NAME))


@pytest.mark.processes
def test_two_offline_folders_of_one_run_that_both_begin_at_step_0(tmp_path: Path) -> None:
    for steps in (range(5), range(5, 8)):
        lines = [{"step": step, "global_step": step, "reward": step / 7} for step in steps]
        offline(tmp_path / "logs", job("a", "ppo", 0, lines, own=False))
    offline(tmp_path / "logs", job("b", "ppo", 1, []))
    keys = Naming("method.name", "seed")
    assert re.search(
        r"run-a\.wandb: step 0: this step appears again .*Fix: add --step global_step",
        refused(tmp_path / "logs", keys),
    )
    runs = imported(tmp_path / "logs", keys, step="global_step")
    assert points(runs[0]) == {step: step / 7 for step in range(8)}
    assert [run.done for run in runs] == [True, False]  # the other has no history


# ---------------------------------------------------------------- rows that would overwrite each other


TASKS = [
    (*of, number / 7)
    for number, of in enumerate(itertools.product(("dqn", "ppo"), (1, 2), "ab", (0.1, 0.2), (10, 20, 30)))
]


def test_rows_of_one_run_and_step_that_differ_are_refused_with_the_columns_that_tell_them_apart(
    tmp_path: Path, worded: Worded
) -> None:
    source = written(tmp_path, {"t.csv": published("algo,seed,env,lr,step,reward", TASKS)})
    worded(refused(source, BY_COLUMN))
    worded(refused(source, Naming("algo", "seed", ("env",))))
    worded(refused(source, Naming("algo", "lr", ("env", "lr"))))
    worded(refused(source, Naming(seed="seed")))
    assert len(imported(source, Naming("algo", "seed", ("env", "lr")))) == 16
    long = [(algo, seed, 1, name, seed) for algo in "ab" for seed in range(4) for name in ("reward", "loss")]
    source = written(tmp_path / "long", {"t.csv": published("algo,seed,step,metric,value", long)})
    assert refused(source, Naming("algo")).endswith("Fix: add --seed seed")


@pytest.mark.parametrize("order", [None, lambda row: row[2]])
def test_a_table_of_several_runs_that_is_named_as_one_is_refused(tmp_path: Path, order: Any, worded: Worded) -> None:
    rows = [(seed, env, step, seed + step / 7) for seed in (1, 2) for env in "ab" for step in range(3)]
    table = published("seed,env,step,reward", sorted(rows, key=order) if order else rows)
    worded(refused(written(tmp_path, {"ppo-s0.csv": table}), BY_NAME))


def test_rows_that_only_repeat_others_are_dropped_and_counted(tmp_path: Path, worded: Worded) -> None:
    rows = [("dqn", 1, step, step / 7) for step in (1, 2, 3, 2)]
    (run,) = imported(written(tmp_path, {"t.csv": published("algo,seed,step,reward", rows)}), BY_COLUMN)
    assert points(run) == {1: 1 / 7, 2: 2 / 7, 3: 3 / 7}
    about = read_provenance(run_folder(tmp_path / "multirun", run.id))["imported"]
    assert (about["rows"], about["unused"]) == (4, {"repeated": 1})
    rows[-1] = ("dqn", 1, 2, 9.0)
    worded(refused(written(tmp_path, {"t.csv": published("algo,seed,step,reward", rows)}), BY_COLUMN))


def test_columns_of_one_name_are_refused_and_a_header_that_comes_again_is_not_a_row(
    tmp_path: Path, worded: Worded
) -> None:
    worded(refused(written(tmp_path / "a", {"ppo-s0.csv": "step,ep len,ep_len\n1,2,3\n"}), BY_NAME))
    (run,) = imported(written(tmp_path / "b", {"ppo-s0.csv": f"{ROWS}step,reward\n2,3\n3,4\n"}), BY_NAME)
    assert points(run) == {1: 0.5, 2: 3, 3: 4}


# ---------------------------------------------------------------- cells, and memory


def column(*cells: str, beside: tuple[str, ...] = (), delimiter: str = ",") -> str:
    """A table with a metric of these cells, and perhaps another."""
    columns = [["step", *map(str, range(1, len(cells) + 1))], ["reward", *cells], *([["x", *beside]] if beside else [])]
    return "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in zip(*columns, strict=True)) + "\n"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (column("960.5", "1,234.5", "2,400.0"), (960.5, 1234.5, 2400)),
        (column("960", "1,234", "1,234,567"), (960, 1234, 1234567)),
        (column("960", "1,234", "2,400", beside=("0.5", "0.25", "1")), (960, 1234, 2400)),
        (column("0,5", "1,234", "12,5"), (0.5, 1.234, 12.5)),
        (column("960,5", "1.234,5", "2.400"), (960.5, 1234.5, 2400)),
        (column("960", "1.234", "2.400", beside=("0,5", "0,6", "1"), delimiter=";"), (960, 1234, 2400)),
        (column("1.234", "2.400", "3.5"), (1.234, 2.4, 3.5)),
        (column("1.234", "2.400", "960", beside=("64,64",) * 3), (1.234, 2.4, 960)),
        (column("960", "1,234", "5", beside=("64,64",) * 3), "'1,234' may be 1234 or 1.234, and no other cell says"),
        (column("NaN", "1.234", "2.400", beside=("64,64",) * 3, delimiter="\t"), "'1.234' may be 1234 or 1.234"),
        (column("1\u202f234,5", "1 234 567,5", "3"), (1234.5, 1234567.5, 3)),
        (column("1'234.5", "2", "3"), (1234.5, 2, 3)),
        (column("73.1%", "74 %", "100%"), (0.731, 0.74, 1)),
        (column("np.float64(1.5)", "numpy.float32(2)", "np.int64(3)"), (1.5, 2, 3)),
        (column(" 5 ", "1e3", "1_000"), (5, 1000, 1000)),
        (column("\u22125.5", "+7", "-1.5E-2"), (-5.5, 7, -0.015)),
        (column("inf", "-Infinity", "True"), (float("inf"), float("-inf"), 1)),
        (column("NaN", "", "3"), (None, None, 3)),
        (column("N/A", "None", "-"), None),
        (column("960", "1,234", "2,400"), "line 3: reward = '1,234' may be 1234 or 1.234, and no other cell says"),
        (column("0.5", "0,6", "1"), "line 3: reward = '0,6' has another decimal mark than line 2"),
        (column("73.1%", "0.74", "1"), "line 3: reward = '0.74' has another use of the percent sign than line 2"),
        (column("1", "$5", "3"), "line 3: reward = '$5': not a number"),
        (column("1", "2", "3 pts"), "line 4: reward = '3 pts': not a number"),
        (column("1", "12,34,567", "3"), "line 3: reward = '12,34,567': not a number"),
    ],
)  # fmt: skip
def test_a_cell_is_read_in_the_notation_of_its_column_or_refused_by_line(
    tmp_path: Path, text: str, values: tuple[float | None, ...] | str | None
) -> None:
    source = written(tmp_path, {"ppo-s0.csv": text})
    if isinstance(values, str):
        with pytest.raises(BadImport, match=re.escape(values)):
            imported(source, BY_NAME)
    elif values is None:
        with pytest.raises(BadImport, match="no run recorded this metric"):
            imported(source, BY_NAME)
    else:
        (run,) = imported(source, BY_NAME)
        assert points(run) == {step: value for step, value in enumerate(values, start=1) if value is not None}


def test_steps_with_thousands_and_columns_that_nothing_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path, {"ppo-s0.csv": 'step,reward,note\n"500",1%,5\n"1,000",2%,five\n"1,500",3%,\n'})
    words = ["--into", str(tmp_path / "m" / "x"), "--match", str(BY_NAME.match), "--metric", "reward"]
    assert main(["import", str(source), *words]) == 0
    (run,) = read_sweep(tmp_path / "m" / "x").runs
    assert points(run) == {500: 0.01, 1000: 0.02, 1500: 0.03} and "note" not in run.curves.values
    said = capsys.readouterr().out
    assert "* Recorded, not read: 1 metric (note). --metric reads more." in said
    assert "reward: '1%' is read as 0.01" in said


def test_text_in_other_logs_that_is_no_number_is_refused(tmp_path: Path) -> None:
    for number, (name, text, said) in enumerate((
        ("ppo-s0.jsonl", verl((1, {"reward": 1}), (2, {"reward": "1,234.5"})), "line 2: reward = '1,234.5'"),
        ("ppo-s0.log", "step:1 - reward:0.5\nstep:2 - reward:73.1%\n", "step 2: reward = '73.1%'"),
    )):  # fmt: skip
        with pytest.raises(BadImport, match=re.escape(said)):
            imported(written(tmp_path / str(number), {name: text}), BY_NAME)


REPORTED = """
import sys
from pathlib import Path
from analysis.__main__ import main
assert main(["report", sys.argv[1], "--into", sys.argv[1] + ".d/m", "--group", "algo", "--metric", "a"]) == 0
# not getrusage, whose peak begins with that of the process which starts this one
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.processes
@pytest.mark.parametrize("end", ["csv", "jsonl"])
def test_a_report_takes_at_most_half_as_much_again_as_the_columns_asked_for(tmp_path: Path, end: str) -> None:
    peaks, rows, others = [], 300_000, "0.125,word" + 9 * ",7"
    (tmp_path / "config.yaml").write_text("algo: ppo\n")
    for number in (100, rows):
        with (log := tmp_path / f"run.{end}").open("w") as file:
            file.write("" if end == "jsonl" else "step,a,b,note,c,d,e,f,g,h,i,j,k\n")
            for row in range(number):
                line = f'{{"step": {row}, "a": {row / 7}, "b": 0.5, "c": 1, "d": 2, "e": 3, "f": "x"}}'
                file.write(f"{line if end == 'jsonl' else f'{row},{row / 7:.6f},{others}'}\n")
        command = [sys.executable, "-c", REPORTED, str(log)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2])
        assert done.returncode == 0, done.stderr
        peaks.append(1024 * int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 1.5 * 8 * 2 * rows

"""Runs of other tools: real event files and real offline runs become an experiment that the report reads."""

from __future__ import annotations

import json
import pprint
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.data.metric_log import read_histograms
from analysis.data.sweep import Sweep, read_sweep
from analysis.findings.outcomes import Outcome
from analysis.findings.study import Study, study
from analysis.sources import BadImport, ImportRequest, Naming, import_runs
from analysis.sources.formats.wandb_files import WandbFiles
from analysis.spec.registry import Points
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from launcher import files
from launcher.__main__ import main as launcher
from launcher.run.folder import histograms_path, run_folder, runs_folder
from launcher.run.lifecycle import RunState, State, read_state, write_state
from launcher.tracking import Row, rows
from launcher.tracking.tensorboard import EventFiles
from tests.analysis.conftest import ANALYSIS, MakeSweep, refusal
from tests.wording import Worded

KEYS = Naming(group="method.name", seed="seed")


def events(folder: Path, values: dict[int, float], config: dict[str, Any] | None = None) -> None:
    """A run of TensorBoard: one scalar a step, and its configuration beside it."""
    writer = EventFiles(folder)
    for step, value in values.items():
        writer.row(Row(step, 1e9 + step, {"reward": value}))
    writer.close("done")
    for file in (folder / "tensorboard").iterdir():
        file.rename(folder / file.name)
    (folder / "tensorboard").rmdir()
    if config is not None:
        (folder / "config.yaml").write_text(files.dump_yaml(config))


def config(name: str, seed: object, **more: object) -> dict[str, Any]:
    return {"method": {"name": name, **more}, "seed": seed}


def asked(source: Path, into: Path, naming: Naming = KEYS, **more: Any) -> ImportRequest:
    return ImportRequest((source,), into, naming, **{"metrics": ("reward",), **more})


def refused(source: Path, into: Path, naming: Naming = KEYS, **more: Any) -> str:
    """What an import is refused with."""
    return refusal(BadImport, lambda: import_runs(asked(source, into, naming, **more)))


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
        writer = EventFiles(run)
        for row in rows(run):
            writer.row(row)
        writer.close("done")
    into, logs = folder.parent.parent / "elsewhere" / "theirs", folder.parent.parent / "logs"
    shutil.copytree(runs, logs, ignore=shutil.ignore_patterns("metrics.jsonl"))
    done = import_runs(asked(logs, into, metrics=(), analysis=ANALYSIS, baseline="C0", paired=True))
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
    into = tmp_path / "multirun" / "theirs"
    for seed in (0, 1):
        events(tmp_path / "logs" / str(seed), {1: 0.5, 2: 0.75}, config("ppo", seed))
    import_runs(asked(tmp_path / "logs", into))
    assert found(into)[1].settings.window == Points(points=20)
    first = {path: path.read_bytes() for path in sorted(into.parent.rglob("*")) if path.is_file()}
    import_runs(asked(tmp_path / "logs", into))
    assert {path: path.read_bytes() for path in sorted(into.parent.rglob("*")) if path.is_file()} == first
    shutil.rmtree(tmp_path / "logs" / "1")
    events(tmp_path / "logs" / "1", {1: 0.5, 2: 0.75, 3: 1.0}, config("ppo", 1))
    import_runs(asked(tmp_path / "logs", into))
    assert [run.curves.steps.tolist() for run in found(into)[0].runs] == [[1, 2], [1, 2, 3]]
    assert sorted(path.name for path in into.parent.iterdir()) == ["runs", "theirs"]


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
    names = {
        "基线": "基线",
        "Метод (v2)": "Метод_v2",
        "طريقة": "طريقة",
        "हिन्दी/x": "हिन्दी_x",
        "!": "group",
        "?!": "group_2",
    }
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
    naming = Naming(group="method.name", seed="seed", factors=("method.env",))
    into = tmp_path / "multirun" / "theirs"
    for asks in ({"normalize": {"Pnog": [0, 1]}}, {"select": {"method.lr": "best"}}):
        wanted = asked(tmp_path / "logs", into, naming, analysis=asks, file="study.yaml")
        worded(refusal(BadPlan, lambda wanted=wanted: import_runs(wanted)))
        assert not (tmp_path / "multirun").exists()
    asks = {"normalize": {"Pong": [0, 1]}, "select": {"method.env": "best"}}
    assert import_runs(asked(tmp_path / "logs", into, naming, analysis=asks)).groups == {"ppo": 1}


def test_imported_runs_are_compared_as_samples_unless_pairs_are_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert main(["import", *given, "--into", str(into)]) == 0
    assert "no seed in common" not in capsys.readouterr().out
    study_of = found(into)[1]
    (comparison,) = study_of.primary.comparisons
    assert (comparison.contrast.test, comparison.seeds) == ("welch", (4, 5, 6, 7, 8))
    assert comparison.seeds_of_b == (0, 1, 2, 3)
    assert comparison.outcome is Outcome.HIGHER and comparison.interval is not None and comparison.interval[0] > 0
    assert main(["report", str(into)]) == 0
    said = capsys.readouterr().out
    assert "b is better than a in the final value of reward: +2.45" in said
    assert "better in 100% of pairs of runs (5 against 4)" in said
    page = (into / "report" / "index.html").read_text()
    assert "Seeds are not paired" in page


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two runs of two methods."""
    events(tmp_path / "logs" / "x", {1: 0.5}, config("ppo", 0, clip=0.2))
    events(tmp_path / "logs" / "y", {1: 0.5}, config("dpo", "one"))
    return tmp_path / "logs"


@pytest.mark.parametrize(
    ("naming", "more"),
    [
        (Naming(), {}),
        (Naming(group="method.nam", seed="seed"), {}),
        (KEYS, {}),
        (Naming(group="method.name", match=r"/(?P<seed>\d)"), {}),
        (Naming(match="("), {}),
        (Naming(match="x"), {}),
        (Naming("method.name", "seed", ("method.clip",)), {}),
        (Naming(map=Path("none.csv")), {}),
        (Naming("method.name"), {"metrics": ()}),
        (Naming("method.name"), {"baseline": "b"}),
        (Naming("method.name"), {"analysis": {"pairing": "none"}, "file": "study.yaml", "paired": True}),
        *(
            (Naming(map=Path("map.csv")), {"map": text})
            for text in (
                "run,group\nlogs/x,a\n",
                "run,group,seed\nlogs/x,a,0\nlogs/x,a,1\n",
                "run,group,seed\nlogs/z,a,0\n",
                "run,group,seed\n",
                f"run,group,seed\nlogs/x,a,{2**63}\n",
            )
        ),
    ],
)
def test_what_cannot_be_imported_is_said_with_run_key_and_fix_and_nothing_is_written(
    logs: Path, monkeypatch: pytest.MonkeyPatch, naming: Naming, more: dict[str, Any], worded: Worded
) -> None:
    monkeypatch.chdir(logs.parent)
    more = dict(more)
    if more:
        (logs / "y" / "config.yaml").write_text(files.dump_yaml(config("dpo", 1)))
        naming = naming if naming.map else KEYS
    Path("map.csv").write_text(more.pop("map", ""))
    worded(refused(logs, logs.parent / "multirun" / "theirs", naming, **more))
    assert not (logs.parent / "multirun").exists()


@pytest.mark.parametrize("into", ["runs", "Verdicts", "archive", "runs/mine", "mine/x", ".index", "-x", "a b"])
def test_an_import_goes_into_no_folder_of_something_else(logs: Path, into: str) -> None:
    multirun = logs.parent / "multirun"
    import_runs(asked(logs, multirun / "mine", Naming(map=_map(logs))))
    before = sorted(multirun.rglob("*"))
    with pytest.raises(BadImport, match="not the folder of an experiment"):
        import_runs(asked(logs, multirun / into, Naming(map=_map(logs))))
    assert sorted(multirun.rglob("*")) == before


def _map(logs: Path, seed: int = 0) -> Path:
    (logs.parent / "map.csv").write_text(f"run,group,seed\nlogs/x,a,{seed}\nlogs/y,b,0\n")
    return logs.parent / "map.csv"


def test_runs_of_one_place_are_refused_with_what_tells_them_apart(logs: Path, worded: Worded) -> None:
    events(logs / "y", {1: 0.5}, config("ppo", 0, clip=0.3))
    into = logs.parent / "multirun" / "theirs"
    worded(refused(logs, into))
    import_runs(asked(logs, into, Naming("method.name", "seed", ("method.clip",))))
    assert [run.cell for run in found(into)[0].runs] == [(("method.clip", 0.2),), (("method.clip", 0.3),)]


def test_places_and_runs_of_others_are_refused(logs: Path, make_sweep: MakeSweep, worded: Worded) -> None:
    folder = make_sweep(groups=("C0",), seeds=(0,))
    into = logs.parent / "multirun" / "theirs"
    worded(refused(logs, folder, Naming(map=_map(logs))))
    worded(refused(folder, into))
    worded(refused(folder / "nowhere", into))
    shutil.copytree(logs / "x", logs.parent / "other" / "logs" / "x")
    twice = ImportRequest((logs, logs.parent / "other" / "logs"), into, KEYS, metrics=("reward",))
    worded(refusal(BadImport, lambda: import_runs(twice)))
    events(logs / "y", {1: 0.5}, config("dpo", 1))
    import_runs(asked(logs, into))
    run = found(into)[0].runs[0]
    files.write_json(run_folder(into.parent, run.id) / "provenance.json", {"commit": "abc"})
    worded(refused(logs, into).replace(run.id, "{run}"))


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
    into = logs.parent / "multirun" / "theirs"
    import_runs(asked(logs, into, command="python -m analysis import logs"))
    (first, second) = found(into)[0].runs
    where = ["--multirun", str(into.parent)]
    assert launcher(["status", "theirs", *where]) == 0
    assert "theirs: 2 runs of 1 step: 2 done" in capsys.readouterr().out
    assert launcher(["sync", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["server"] is None  # nothing was to be sent
    assert launcher(["reproduce", first.id, *where]) == 2
    assert f"run {first.id}: it was imported, not made by launch.py" in capsys.readouterr().err
    state = State(second.id, RunState.FAILED, 1)
    write_state(run_folder(into.parent, second.id), state)
    assert launcher(["retry", "theirs", *where]) == 2
    assert "only a command `launch.py -m ...` can be repeated" in capsys.readouterr().err
    assert read_state(run_folder(into.parent, second.id)) == state


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
    into = tmp_path / "multirun" / "theirs"
    import_runs(asked(tmp_path / "logs", into))
    assert [(run.group, run.seed) for run in found(into)[0].runs] == [("ppo", 3)]
    logged(first.with_name("others.jsonl"), {1: 1.0})
    said = refused(tmp_path / "logs", into)
    assert "2 runs (logs/a/metrics, logs/a/others): --group method.name: its configuration has no such key" in said


def test_every_bad_line_of_verls_files_is_named_with_file_and_line(tmp_path: Path, worded: Worded) -> None:
    one, other = (logged(tmp_path / "logs" / f"{name}.jsonl", {1: 0.5}) for name in "ab")
    one.write_text('not json\n{"step": 1, "data": {"reward": 1.0}}\n{"step": 2}\n')
    other.write_text('{"step": 1, "data": {"reward": 1.0}}\n{"step": -1, "data": {}}\n\n')
    worded(refused(tmp_path / "logs", tmp_path / "multirun" / "theirs"))
    assert not (tmp_path / "multirun").exists()


# ---------------------------------------------------------------- what verl prints

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
    import_runs(asked(log, tmp_path / "multirun" / "one", keys, metrics=("reward", "late")))
    (run,) = found(tmp_path / "multirun" / "one")[0].runs
    assert run.curves.steps.tolist() == [1, 2] and run.curves.values["reward"].tolist() == [0.1, 0.5]
    assert run.curves.values["late"].tolist()[1] == 4
    cut = log.with_name("cut.log")
    cut.write_text(log.read_text().partition("'trainer'")[0] + "\nstep:1 - reward:1\n")
    worded(refused(cut, tmp_path / "multirun" / "two", keys))
    other = tmp_path / "other.log"
    other.write_text("epoch 1: loss 0.5\n")
    worded(refused(other, tmp_path / "multirun" / "three", keys))
    # W&B keeps what was printed in its own folder: one run
    beside = logged(tmp_path / "both" / "ppo.jsonl", {1: 1.0}, config("ppo", 0))
    printed(beside.parent / "files" / "output.log", "grpo", 0, again)
    assert import_runs(asked(tmp_path / "both", tmp_path / "multirun" / "four")).groups == {"ppo": 1}


# ---------------------------------------------------------------- W&B

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
    with pytest.raises(BadImport, match="--step = 'global_step': no line has this metric"):
        list(WandbFiles().read({path: "a0"}, "global_step", ()))


# ---------------------------------------------------------------- Hugging Face's Trainer, TRL


def trainer_state(folder: Path, steps: int, height: float, planned: int = 40, **more: Any) -> None:
    """A state as TRL writes it: entries of training and of evaluation every ten steps, and one at the end."""
    history: list[dict[str, Any]] = []
    for step in range(10, steps + 1, 10):
        history.append({"epoch": step / 40, "kl": 0.002, "loss": 0.0, "reward": height * step, "step": step})
        history.append({"epoch": step / 40, "eval_reward": height * step / 2, "eval_runtime": 9.1, "step": step})
    if steps == planned:
        history.append({"epoch": 1.0, "step": steps, "total_flos": 0.0, "train_runtime": 99.5})
    control = {"TrainerControl": {"args": {"should_training_stop": steps == planned}, "attributes": {}}}
    state = {"best_metric": None, "global_step": steps, "log_history": history, "max_steps": planned}
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({**state, "stateful_callbacks": control, **more}, indent=2))


def test_a_state_that_a_callback_stopped_has_ended_and_another_file_is_refused(tmp_path: Path, worded: Worded) -> None:
    stopped = {"TrainerControl": {"args": {"should_training_stop": True}}}
    trainer_state(tmp_path / "out" / "grpo-s0", 20, 1.0, stateful_callbacks=stopped)
    named = Naming(match=r"(?P<group>\w+)-s(?P<seed>\d+)")
    file = tmp_path / "out" / "grpo-s0" / "trainer_state.json"
    assert import_runs(asked(file, tmp_path / "theirs", named)).gaps == ()
    file.write_text("[]")
    worded(refused(tmp_path / "out", tmp_path / "theirs", named))


# ---------------------------------------------------------------- CSV files


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("episode,reward\n1,2\n", None),
        ("step,reward\n1,2\n", "epoch"),
        ("step,reward\n1,2\n0.5,3\n", None),
        ("step,reward\n1,2,9\n", None),
        ("r,l,t\n1.0,x,2\n", None),
    ],
)
def test_tables_that_cannot_be_read_are_refused_with_the_line_or_the_columns(
    tmp_path: Path, text: str, step: str | None, worded: Worded
) -> None:
    (tmp_path / "a-s0.csv").write_text(text)
    naming = Naming(match=r"(?P<group>\w)-s(?P<seed>\d)")
    worded(refused(tmp_path / "a-s0.csv", tmp_path / "theirs", naming, step=step))
    assert not (tmp_path / "theirs").exists()


# ---------------------------------------------------------------- what is read of each format


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
SEEDED = Naming(match=r"(?P<group>\w+)-s(?P<seed>\d+)")
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
        trainer_states, SEEDED,
        {("grpo", 0): {"reward": {10: 10, 20: 20, 30: 30, 40: 40}, "eval_reward": {10: 5, 20: 10, 30: 15, 40: 20}},
         ("grpo", 1): {"reward": {10: 20, 20: 40}}},
    ),
    "torch's writer": (
        torch_writes, Naming("algo", "seed", ("lr",)),
        {("ppo", 3, ("lr", 0.1)): {"reward": {0: 0, 1: 0.125, 2: 0.25, 3: 0.375, 4: 9.0}, "weights": {}}},
    ),
    "a table beside events": (beside, SEEDED, {("a", 0): {"reward": {1: 1.0, 2: 2.0}}}),
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
    logs = tmp_path / "logs"
    logs.mkdir()
    for path, text in made.items() if isinstance(made, dict) else ():
        (logs / path).parent.mkdir(parents=True, exist_ok=True)
        (logs / path).write_text(text, encoding="utf-8")
    if not isinstance(made, dict):
        made(logs)
    metrics = {metric: None for of_run in expected.values() for metric, values in of_run.items() if values}
    import_runs(asked(logs, tmp_path / "theirs", naming, metrics=tuple(metrics)))
    found = {}
    for run in read_sweep(tmp_path / "theirs").runs:
        curves = {key: zip(run.curves.steps, values, strict=True) for key, values in run.curves.values.items()}
        found[run.group, run.seed, *run.cell] = {
            key: {int(step): value for step, value in curve if value == value} for key, curve in curves.items()
        }
    assert found.keys() == expected.keys()
    for run, metrics in expected.items():
        assert {key: found[run].get(key, {}) for key in metrics} == metrics, run

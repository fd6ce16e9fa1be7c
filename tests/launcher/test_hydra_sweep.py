"""Programs of @hydra.main under `hydra/sweeper=rlsweep`, as their users start them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import rlsweep
from launcher.run.folder import metrics_path, read_config, read_summary, runs_folder
from launcher.run.lifecycle import RunState, find_state
from tests.launcher import fake_batch
from tests.launcher.made import read_log
from tests.results import logged
from tests.trees import git, write
from tests.waiting import ended, until

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
PROGRAM = """
    import dataclasses, enum, json, logging, os, sys, time
    from pathlib import Path
    import hydra, rlsweep
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig

    class Mode(enum.Enum):
        OK = 1
        RAISE = 2
        EXIT = 3
        VANISH = 4

    @dataclasses.dataclass
    class Config:
        mode: Mode = Mode.OK
        seed: int = 0
        x: float = 1.0
        steps: int = 0
        checkpoints: bool = False

    ConfigStore.instance().store("config", Config)

    @hydra.main(version_base=None, config_name="config")
    def main(config):
        logging.getLogger(__name__).info("x is %s", config.x)
        job = HydraConfig.get()
        print(json.dumps({"cwd": os.getcwd(), "dir": job.runtime.output_dir}), flush=True)
        assert isinstance(config.mode, Mode)
        if config.mode == Mode.RAISE:
            raise ValueError("broken")
        if config.mode == Mode.EXIT:
            sys.exit(0)
        if config.mode == Mode.VANISH:
            os._exit(0)
        folder = Path(job.runtime.output_dir)
        begin = 0
        if config.checkpoints:
            run = rlsweep.context()
            kept = run.folder / "step" if run else folder / "step"
            begin = int(kept.read_text()) if kept.exists() else 0
        for step in range(begin + 1, config.steps + 1):
            rlsweep.log(step, {"score": config.x * step, "began": begin})
            (folder / "step").write_text(str(step))
            while step == 3 and not Path("go").exists():
                if config.checkpoints and run and run.stop_requested():
                    return None
                time.sleep(0.05)
        return {"twice": 2 * config.x}

    if __name__ == "__main__":
        main()
"""


def write_program(folder: Path, task: str, before: str = "", config: Mapping[str, Any] | None = None) -> None:
    """Write train.py with a program of @hydra.main: what stands before its task, the body of the task, and its
    configuration."""
    head = "import hydra, importlib, os, signal, sys, time\nfrom pathlib import Path\n" + textwrap.dedent(before)
    head += f"\nfrom hydra.core.config_store import ConfigStore\nConfigStore.instance().store('own', {config or {}})\n"
    task = textwrap.indent(textwrap.dedent(task), "    ")
    decorated = f"@hydra.main(version_base=None, config_path=None, config_name='own')\ndef main(config):\n{task}"
    write(folder, {"train.py": f"{head}\n{decorated}\nif __name__ == '__main__':\n    main()\n"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, {"train.py": PROGRAM})


def start(
    folder: Path, *words: str, more: Mapping[str, str] | None = None, program: Sequence[str] = ("train.py",)
) -> subprocess.Popen[str]:
    environment = {**os.environ, **(more or {}), "PYTHONPATH": str(ROOT)}
    environment.pop("RLSWEEP_MULTIRUN", None)
    command = [sys.executable, *program, "-m", "hydra/sweeper=rlsweep", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def sweep(folder: Path, *words: str, code: int = 0, program: Sequence[str] = ("train.py",)) -> str:
    process = start(folder, *words, program=program)
    said = process.communicate()[0]
    assert process.returncode == code, said
    return said


def runs(folder: Path) -> list[Path]:
    return sorted(runs_folder(folder / "multirun").glob("*"))


def state(run: Path) -> RunState:
    found = find_state(run)
    assert found is not None
    return found.state


def returned(run: Path) -> Any:
    """What the job of a run has returned."""
    summary = read_summary(run)
    assert summary is not None
    return summary["value"]


def printed(run: Path) -> list[dict[str, Any]]:
    logs = sorted((run / "attempts").glob("*/stdout.log"))
    return [json.loads(line) for log in logs for line in log.read_text().splitlines() if line.startswith("{")]


def test_a_sweep_runs_each_job_once_and_its_outputs_are_where_hydra_puts_them(folder: Path) -> None:
    sweep(folder, "x=1,2", "seed=0,1", "hydra.sweep.dir=out", "hydra.sweep.subdir=${hydra.job.override_dirname}")
    assert len(runs(folder)) == 4
    for run in runs(folder):
        (output,) = printed(run)
        place = Path(output["dir"])
        assert output["cwd"] == str(folder) and place.parent == folder / "out" and place.resolve() == run / "job"
        assert (place / "train.log").read_text().count("[__main__][INFO] - x is") == 1
        assert (place / ".hydra" / "overrides.yaml").is_file()
        assert returned(run)["twice"] in (2, 4)
    for program in (["train.py"], ["-m", "cProfile", "-o", "profile", "train.py"]):
        sweep(folder, "x=2.0,1e0", "seed=0,1", program=program)
        assert all(len(printed(run)) == 1 for run in runs(folder))
    sweep(folder, "x=1,2,3", "seed=0")
    assert len(runs(folder)) == 5


def test_a_place_that_a_key_of_the_job_names_is_its_own(tmp_path: Path) -> None:
    """Also of a program with the name of rlsweep's own."""
    write_program(tmp_path, "return config.lr", config={"lr": "???"})
    (tmp_path / "train.py").rename(tmp_path / "launch.py")
    (tmp_path / "rlsweep.toml").touch()
    sweep(tmp_path, "lr=0.1,0.2", "hydra.sweep.dir=out", "hydra.sweep.subdir='at ${lr}'", program=["launch.py"])
    first, second = sorted(runs(tmp_path), key=returned)
    assert [(tmp_path / "out" / f"at {lr}").resolve() for lr in (0.1, 0.2)] == [first / "job", second / "job"]
    command(tmp_path, "rerun", first.name)
    assert [state(run) for run in runs(tmp_path)] == [RunState.DONE] * 2


def test_a_sweep_prints_what_hydras_own_sweeper_prints(folder: Path) -> None:
    formats = [f"hydra.{name}_logging.formatters.simple.format='{name} %(message)s'" for name in ("hydra", "job")]
    words = ["mode=OK,RAISE", "x=2,1", *formats]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ours, own = (
        subprocess.run(
            [sys.executable, "train.py", "-m", f"hydra/sweeper={name}", f"hydra.sweep.dir={name}", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        for name in ("rlsweep", "basic")
    )
    assert ours.stdout.replace("/rlsweep/", "/basic/") == own.stdout and own.stderr in ours.stderr, ours.stderr


def test_only_a_function_that_returns_is_done(folder: Path) -> None:
    said = sweep(folder, "mode=OK,RAISE,EXIT,VANISH", "hydra.sweeper.cluster={name: local, breaker: null}", code=1)
    assert "1 done, 3 failed" in said and "ValueError: broken" in said and "SystemExit: 0" in said
    assert [state(run) for run in runs(folder)].count(RunState.DONE) == 1


@pytest.mark.parametrize("checkpoints", ["false", "true"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_job_continues_if_it_asks_and_begins_in_a_clean_folder_if_not(
    folder: Path, checkpoints: str, number: signal.Signals
) -> None:
    words = ["steps=6", f"checkpoints={checkpoints}", "hydra.job.chdir=false"]
    process = start(folder, *words)
    until(lambda: len(runs(folder)) == 1 and len(read_log(metrics_path(runs(folder)[0])).records) == 3)
    process.send_signal(number)
    process.communicate()
    (run,) = runs(folder)
    until(lambda: state(run) in (RunState.PREEMPTED, RunState.RUNNING))
    (folder / "go").touch()
    if number == signal.SIGKILL:
        (plan,) = (folder / "multirun").glob("*/plan.json")
        command(folder, "resume", plan.parent.name)
    else:
        sweep(folder, *words)
    # Of a job that watches and returns because it was asked to stop, the rest would be missing if it were done.
    began = [0, 0, 0, 3, 3, 3] if checkpoints == "true" else [0] * 6
    assert [(row["step"], row["began"]) for row in logged(run)] == [*enumerate(began, start=1)]
    assert (run / "job" / "step").read_text() == "6"
    assert (run / "attempts" / "1" / "job" / "step").exists() == (checkpoints == "false")


@pytest.mark.parametrize("handler", ["sys.exit(1)", "asked.append(True)"])
def test_a_program_that_handles_sigterm_itself_is_interrupted(tmp_path: Path, handler: str) -> None:
    task = f"""
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: {handler})
        Path("begun").touch()
        while not asked and not Path("go").exists():
            time.sleep(0.05)
    """
    write_program(tmp_path, task)
    process = start(tmp_path)
    until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert state(runs(tmp_path)[0]) == RunState.PREEMPTED
    (tmp_path / "go").touch()
    sweep(tmp_path)


def test_a_report_compares_groups_by_what_the_program_logs(folder: Path) -> None:
    (folder / "go").touch()
    own = ("experiment.baseline=A", "experiment.name=first", "analysis.primary.metric=score")
    groups = "+hydra.sweeper.experiment.groups={A: {x: 1}, B: {x: 2}}"
    said = sweep(folder, "steps=5", "seed=0,1,2", groups, *(f"hydra.sweeper.{word}" for word in own))
    assert (folder / "multirun" / "first" / "report" / "index.html").is_file() and "B" in said


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("analysis.primary.direction=min", "must be higher, lower or null"),
        ("analysis.primary.summary=last", "hydra.sweeper.analysis.primary.summary = last: must be one of final, auc"),
        ("experiment.baseline=a", "must be one of the groups: train"),
        ("seed_key=sed", "no job's configuration has this key. Fix: write hydra.sweeper.seed_key=seed"),
        ("seed_key=no", "Fix: name the key of the seed, such as seed"),
        ("experiment.name=Runs", "which cannot be archive, bases, cache, code, launches, runs, verdicts"),
    ],
)
def test_a_wrong_question_is_refused_before_anything_is_written(folder: Path, word: str, said: str) -> None:
    refused = sweep(folder, "x=1,2", "hydra.sweeper.analysis.primary.metric=score", f"hydra.sweeper.{word}", code=2)
    assert said in refused and "Fix: " in refused and "Traceback" not in refused, refused
    assert not (folder / "multirun").exists()


def test_a_project_that_is_not_installed_brings_a_scheduler_and_a_figure(folder: Path) -> None:
    points = '[project]\nname = "own"\n[project.entry-points]\n'
    points += "".join(f'"rlsweep.{group}" = {{fake = "own.{group}"}}\n' for group in ("schedulers", "analysis"))
    figure = "from analysis.spec.registry import figure\n\n@figure('own')\ndef own(*_):\n    print('drawn')\n"
    package = {"__init__.py": "", "schedulers.py": "from tests.launcher.fake_batch import *\n"}
    package |= {"conf/cluster/fake.yaml": fake_batch.CONF, "analysis.py": figure}
    write(folder, {"rlsweep.toml": "", "pyproject.toml": points, **{f"own/{name}": package[name] for name in package}})
    (folder / "conf/cluster").mkdir(parents=True)
    (folder / "conf/cluster/local.yaml").write_text("nodes: 3\n")  # a group of the program's own
    (folder / "go").touch()
    asked = (
        "x=1",
        "steps=5",
        "hydra.sweeper.analysis.primary.metric=score",
        "+hydra.sweeper.analysis.figures=[{own: [score]}]",
    )
    said = sweep(folder, *asked, "hydra.sweeper.cluster=fak", code=2)
    assert "no conf/cluster/fak.yaml; available: fake, local, ray, slurm. Fix: use fake" in said
    said = sweep(folder, *asked, "hydra.sweeper.cluster=fake")
    assert "1 to run on Fake" in said and "drawn" in said, said


def test_values_that_differ_each_time_and_too_large_numbers_make_no_other_runs(tmp_path: Path) -> None:
    resolvers = """
        import uuid
        from omegaconf import OmegaConf
        OmegaConf.register_new_resolver("uuid", lambda: uuid.uuid4().hex)
        OmegaConf.register_new_resolver("once", lambda: uuid.uuid4().hex, use_cache=True)
    """
    config = {"id": "${uuid:}", "kept": "${once:}", "name": "${id}-${lr}", "lr": 1.0,
              "logger": {"id": "${uuid:}"}}  # fmt: skip
    write_program(tmp_path, "import rlsweep\nrlsweep.log(1, {'acc': 10**400})", resolvers, config)
    asked = ("lr=0.5,inf", "hydra.sweeper.analysis.primary.metric=acc", "hydra.sweeper.ignore=[logger]")
    said = sweep(tmp_path, *asked)
    assert "These keys get another value each time, so they are no part of a run: id, kept, name" in said
    assert ": 2 of 2 runs are done" in sweep(tmp_path, *asked)


def test_what_a_program_logs_keeps_the_keys_of_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rlsweep.log(np.int64(3), {"acc": np.float32(0.5), "step": 7, "attempt": 9, "time": 0.0})
    for step in (-1, 1.5, "x"):
        with pytest.raises(ValueError, match="must be an integer, 0 or more"):
            rlsweep.log(step, {})  # type: ignore[arg-type]
    (line,) = logged(tmp_path)
    assert line.pop("time") > 1e9
    assert line == {"step": 3, "acc": 0.5, "log/step": 7, "log/attempt": 9, "log/time": 0.0}


def test_a_program_alone_logs_beside_its_own_output(folder: Path) -> None:
    (folder / "go").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "train.py", "steps=2", "hydra.run.dir=here"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    assert [line["step"] for line in logged(folder / "here")] == [1, 2]


def edited_while_it_waits(folder: Path, process: subprocess.Popen[str]) -> None:
    """Edit the program once its first job waits; the jobs that start later have the code of the launch."""
    until(lambda: any(metrics_path(run).exists() for run in runs(folder)))
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(text.replace("2 * config.x", "3 * config.x"))
    (folder / "go").touch()
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert sorted(returned(run)["twice"] for run in runs(folder)) == [2, 4, 6]


@pytest.mark.parametrize("library", ["enum", "jaxlib"])  # of which no job is a fork
def test_an_edit_changes_no_job_of_the_launch(folder: Path, library: str) -> None:
    (folder / "jaxlib.py").touch()
    (folder / "train.py").write_text((folder / "train.py").read_text().replace("enum,", f"enum, {library},"))
    process = start(folder, "x=1,2,3", "steps=4", "hydra.sweeper.cluster={name: local, slots: 1}")
    edited_while_it_waits(folder, process)


def test_jobs_of_edited_code_are_named_also_in_a_copy_of_the_folder(tmp_path: Path) -> None:
    study, copy = write(tmp_path / "study", {"train.py": PROGRAM, "rlsweep.toml": ""}), tmp_path / "copy"
    first = sweep(study, "x=1,2")
    assert "no report, because hydra.sweeper.analysis.primary.metric names no metric" in first
    (record,) = (json.loads(path.read_text()) for path in (study / "multirun/code").glob("*.json"))
    assert record["root"] == str(study) and "./train.py" in record["modules"]
    shutil.copytree(study, copy)
    assert "other code" not in sweep(copy, "x=1,2")
    write(copy, {"train.py": PROGRAM.replace("2 * config.x", "3 * config.x")})
    said = sweep(copy, "x=1,2")
    assert "2 done by other code: train.py changed since. They stay as they are; hydra.sweeper.code=rerun runs" in said
    for project, changed in ((study, False), (copy, True)):
        said = command(project, "verify", runs(project)[0].name)
        assert (f"{project / 'train.py'}: then as the run used it, now changed" in said) == changed
    name = "hydra.sweeper.experiment.name=more"
    assert "2 done by other code: train.py changed since; 1 run to run" in sweep(copy, "x=1,2,3", name, code=2)
    shutil.rmtree(study)
    sweep(copy, "x=1,2", "hydra.sweeper.code=rerun")
    assert sorted(returned(run)["twice"] for run in runs(copy)) == [3.0, 6.0]


def test_a_job_that_has_returned_is_not_done_twice(folder: Path) -> None:
    (folder / "go").touch()
    sweep(folder, "steps=4")
    (run,) = runs(folder)
    written = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({**written, "state": "preempted", "finished": None}))
    sweep(folder, "steps=4")
    assert state(run) == RunState.DONE and len(printed(run)) == 1
    assert [row["step"] for row in logged(run)] == [1, 2, 3, 4]
    assert (run / "job" / "step").read_text() == "4"


def test_a_job_whose_process_dies_while_its_log_is_read_is_not_done_twice(tmp_path: Path) -> None:
    task = """
        with open("calls", "a") as file:
            print("called", file=file)
        Path("log.csv").write_text("step,val/acc\\n1,0.5\\n2,0.75\\n")
        importlib.import_module("analysis.sources.import_runs").collect = lambda *places: os._exit(3)
    """
    write_program(tmp_path, task)
    sweep(tmp_path, "hydra.job.chdir=true")
    (run,) = runs(tmp_path)
    assert (run / "job" / "calls").read_text() == "called\n" and (run / "attempts" / "2").exists()
    assert [row["val/acc"] for row in logged(run)] == [0.5, 0.75]


def test_metrics_come_from_what_a_program_leaves(tmp_path: Path) -> None:
    before = """
        import atexit, csv
        from hydra.core.hydra_config import HydraConfig

        def write(folder, name, x, steps):
            with open(folder / f"{len(name)}.csv", "w") as file:
                csv.writer(file).writerows([["step", name], *([step, x * step] for step in range(1, steps + 1))])
    """
    task = """
        folder = Path(HydraConfig.get().runtime.output_dir)
        write(folder, "val/acc", config.x, 3)
        atexit.register(write, folder, "loss", config.x, steps=4)
        atexit.register(os._exit, 3)
        atexit.unregister(os._exit)
    """
    write_program(tmp_path, task, before)
    said = sweep(tmp_path, "+x=1,2", "hydra.sweeper.analysis.primary.metric=val/acc")
    rows = [logged(run) for run in runs(tmp_path)]
    assert sorted((third["val/acc"], last["loss"]) for *_, third, last in rows) == [(3, 4), (6, 8)]
    assert "val/acc" in said


def test_metrics_of_several_logs_are_named_after_their_logs_where_these_do_not_agree(tmp_path: Path) -> None:
    before = """
        import json
        from hydra.core.hydra_config import HydraConfig
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        def events(folder, **values):
            writer = EventFileWriter(str(folder))
            for step, numbers in enumerate(zip(*values.values())):
                tagged = [summary_pb2.Summary.Value(tag=tag, simple_value=x) for tag, x in zip(values, numbers)]
                writer.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=tagged)))
            writer.close()
    """
    task = """
        folder = Path(HydraConfig.get().runtime.output_dir)
        events(folder / "tb" / "train", loss=[0.5, 0.25, 0.125], lr=[0.123456, 0.2, 0.3])
        events(folder / "tb" / "val", loss=[0.75, 0.5])
        (folder / "tb" / "rounded.csv").write_text("step,lr,reward\\n0,0.1235,1\\n1,0.2,2\\n2,0.3,3\\n3,0.4,4\\n")
        rows = [{"step": step, "length": 10 + step} for step in range(2)]
        (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
        (folder / "table.csv").write_text("step,x\\n1,1\\n1,2\\n")
    """
    write_program(tmp_path, task, before)
    said = sweep(tmp_path, "+x=1", "hydra.sweeper.analysis.primary.metric=loss", code=1)
    assert "the recorded metrics are " in said and "train/loss" in said and "val/loss" in said
    (run,) = runs(tmp_path)
    rows = [{key: row[key] for key in row if key not in ("attempt", "time")} for row in logged(run)]
    assert rows == [
        {"step": 0, "train/loss": 0.5, "val/loss": 0.75, "lr": 0.1235, "reward": 1, "length": 10},
        {"step": 1, "train/loss": 0.25, "val/loss": 0.5, "lr": 0.2, "reward": 2, "length": 11},
        {"step": 2, "train/loss": 0.125, "lr": 0.3, "reward": 3},
        {"step": 3, "lr": 0.4, "reward": 4},
    ]
    noted = (run / "attempts" / "1" / "stderr.log").read_text()
    assert "the job's metrics: several logs have other values of loss; each is named after its log" in noted
    assert "the job's metrics: not read: " in noted and "table.csv" in noted


@pytest.mark.parametrize("ends", ["before", "after"])
def test_nothing_is_lost_if_an_attempt_ends_without_a_step(tmp_path: Path, ends: str) -> None:
    """Before it has asked for the files of the last one, or after the training."""
    task = """
        import json, rlsweep
        attempt = int(os.environ["RLSWEEP_RUN"].rpartition(":")[2])
        Path("made/kept").mkdir(parents=True, exist_ok=True)
        Path("made/log.txt").write_text(str(attempt))
        if attempt == 2 and config.ends == "before":
            raise OSError("the data cannot be reached")
        rlsweep.context()
        checkpoint = Path("made/kept/step")
        for step in range(1 + (int(checkpoint.read_text()) if checkpoint.exists() else 0), 7):
            if config.ends == "before" and attempt == 1 and step == 4:
                raise OSError("first")
            rlsweep.log(step, {"score": attempt})
            checkpoint.write_text(str(step))
        if config.ends == "after" and attempt < 3:
            raise OSError("the figures cannot be drawn")
    """
    write_program(tmp_path, task)
    words = (f"+ends={ends}", "hydra.job.chdir=true", "hydra.sweeper.experiment.name=train")
    sweep(tmp_path, *words, code=1)
    command(tmp_path, "resume", "train", code=1)
    command(tmp_path, "resume", "train")
    (run,) = runs(tmp_path)
    assert state(run) == RunState.DONE
    scores = [1, 1, 1, 3, 3, 3] if ends == "before" else [1] * 6
    assert [(row["step"], row["score"]) for row in logged(run)] == [*enumerate(scores, start=1)]
    assert (run / "job" / "made" / "log.txt").read_text() == "3"


def test_logs_that_cannot_be_read_cost_the_others_nothing(tmp_path: Path) -> None:
    task = """
        Path("metrics.csv").write_text("step,acc\\n1,0.5\\n2,0.75\\n")
        Path("per_class.csv").write_text("step,class,acc\\n1,0,0.25\\n1,1,0.5\\n")
        Path("epochs.csv").write_text("epoch,loss\\n1,0.25\\n")
    """
    write_program(tmp_path, task)
    sweep(tmp_path, "+x=1", "hydra.job.chdir=true", "hydra.sweeper.analysis.primary.metric=acc")
    (run,) = runs(tmp_path)
    assert [(row["step"], row["acc"]) for row in logged(run)] == [(1, 0.5), (2, 0.75)]
    noted = (run / "attempts" / "1" / "stderr.log").read_text()
    assert "the job's metrics: not read: " in noted and "per_class.csv" in noted
    assert "epochs.csv (no column is known to count steps" in noted


@pytest.mark.parametrize("log", ["two files", "two calls"])
@pytest.mark.parametrize("at", [5, 6, 7])
def test_an_interruption_changes_no_metric_of_several_logs(tmp_path: Path, log: str, at: int) -> None:
    task = """
        import rlsweep
        run, checkpoint = rlsweep.context(), Path("step")
        start = int(checkpoint.read_text()) if checkpoint.exists() else 0
        for step in range(start + 1, 11):
            for name, every in (("loss", 1), ("acc", 3)):
                if step % every == 0 and config.log == "two calls":
                    rlsweep.log(step, {name: step / 10})
                elif step % every == 0:
                    with open(f"{name}.csv", "a") as file:
                        file.write((f"step,{name}\\n" if step == every else "") + f"{step},{step / 10}\\n")
            if step % 4 == 0:
                Path("draft").write_text(str(step))
                Path("draft").rename(checkpoint)
            if step == config.at and run.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    write_program(tmp_path, task)
    sweep(tmp_path, f"+log={log}", f"+at={at}", "hydra.job.chdir=true")
    (run,) = runs(tmp_path)
    found = {name: [(row["step"], row[name]) for row in logged(run) if name in row] for name in ("loss", "acc")}
    assert found == {"loss": [(n, n / 10) for n in range(1, 11)], "acc": [(n, n / 10) for n in (3, 6, 9)]}


def test_each_launch_links_all_its_jobs(folder: Path) -> None:
    for place, words in (("a", "x=1,2,1.0"), ("b", "x=2,1"), ("c", "x=1")):
        sweep(folder, words, f"hydra.sweep.dir=swept/{place}")
    one, other = (run / "job" for run in sorted(runs(folder), key=lambda run: read_config(run)["config"]["x"]))
    for place, jobs in (("a", [one, other, one]), ("b", [other, one]), ("c", [one])):
        made = {path.name: path.resolve() for path in (folder / "swept" / place).iterdir() if path.is_symlink()}
        assert made == {str(number): job.resolve() for number, job in enumerate(jobs)}
    (folder / "swept/d/1").mkdir(parents=True)
    said = sweep(folder, "x=2,1", "hydra.sweep.dir=swept/d")
    assert f"Other files are in the way of links to {folder}/multirun/runs/ID/job: swept/d/1\n" in said


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_launch_says_that_its_jobs_see_no_gpu(folder: Path, gpus: int) -> None:
    process = start(folder, f"hydra.sweeper.resources.gpus={gpus}", more={"CUDA_VISIBLE_DEVICES": "0"})
    assert ("The jobs see no GPU; hydra.sweeper.resources.gpus=1" in process.communicate()[0]) == (gpus == 0)
    assert process.returncode == 0


@pytest.mark.parametrize("library", ["enum", "jaxlib"])  # of which no job is a fork
def test_a_command_counts_with_its_options_and_those_of_the_program(tmp_path: Path, library: str) -> None:
    before = f"""
        import argparse, {library}
        own = argparse.ArgumentParser(add_help=False)
        own.add_argument("--reward", default="dense")
        options, sys.argv[1:] = own.parse_known_args()
        importlib.import_module("hydra.core.config_store").ConfigStore.instance().store("other", {{"x": 2}})
    """
    task = """
        if not Path("go").exists():
            raise ValueError
        return [config.x, options.reward]
    """
    write_program(tmp_path, task, before, {"x": 1})
    (tmp_path / "jaxlib.py").touch()
    program = ["-X", "utf8", "train.py"]
    for more in ([], ["--reward", "sparse"], ["--config-name", "other"]):
        sweep(tmp_path, code=1, program=[*program, *more])
    (tmp_path / "go").touch()
    plans = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "multirun").glob("*/plan.json")}
    commands = {plan["command"].removesuffix(" -m hydra/sweeper=rlsweep") for plan in plans.values()}
    assert commands == {f"python train.py{more}" for more in ("", " --reward sparse", " --config-name other")}
    assert "train" in plans  # without options, as before
    command(tmp_path, "resume", *plans)
    assert sorted(map(returned, runs(tmp_path))) == [[1, "dense"], [1, "sparse"], [2, "dense"]]
    write(tmp_path / "a", {"train.py": (tmp_path / "train.py").read_text(), "jaxlib.py": ""})
    refused = "the plan of this name has runs of train.py:main, not of a/train.py:main. Fix: choose another name"
    (tmp_path / "rlsweep.toml").touch()
    assert refused in sweep(tmp_path, program=["a/train.py"], code=2)
    assert len(runs(tmp_path)) == 3


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["+lr=0.5,0.9", "exclude=[{+lr:0.9}]"], [("train", 0.5)]),
        (["+lr=0.5,0.9", "exclude=[{lr:[0.9,0.7]}]"], [("train", 0.5)]),
        (["+lr=[8],[8,8]", "exclude=[{lr:[[8,8]]}]"], [("train", [8])]),
        (["+lr=1", "groups={ok:{x:1},other:{x:2}}", "exclude=[{x:2.0}]"], [("ok", 1)]),
        (["x=1,2", "exclude=[{x:3}]"], [("train", None)] * 2),  # the command line changes the levels
    ],
)
def test_exclusions_leave_out_jobs_by_any_key_of_the_sweep(folder: Path, words: list[str], left: Any) -> None:
    sweep(
        folder, *(word if word[0] in "+x" else f"++hydra.sweeper.experiment.{word}" for word in (*words, "name=train"))
    )
    plan = json.loads((folder / "multirun" / "train" / "plan.json").read_text())
    configs = {run.name: read_config(run)["config"] for run in runs(folder)}
    assert [(entry["group"], configs[entry["id"]].get("lr")) for entry in plan["runs"]] == left


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("hydra.sweeper.experiment.exclude=[{group:nobody}]", "this exclusion leaves out no job"),
        ("hydra.sweeper.experiment.exclude=[{lr:0.9}]", "exclude[0].lr: the sweep sets no such key; it sets seed"),
        ("seed=+4,5", "write all seeds, such as seed=0,1,4,5"),
        ("hydra.sweeper.ignore=[steps] steps=1,2", "steps = 1,2: its levels are the same runs"),
        ("hydra/launcher=joblib", "hydra/launcher = joblib: rlsweep starts the jobs of a program itself. Fix: write"),
    ],
)
def test_what_leaves_out_or_adds_nothing_is_refused(folder: Path, word: str, said: str) -> None:
    declared = [] if word.startswith("seed") else ["hydra.sweeper.experiment.seeds=[0,1]"]
    assert said in sweep(folder, *declared, *word.split(), code=2)
    assert not (folder / "multirun").exists()


def test_libraries_that_compute_in_threads_are_in_no_fork_and_callbacks_are_called_there_too(tmp_path: Path) -> None:
    before = """
        import jaxlib
        from hydra.experimental.callback import Callback

        class Note(Callback):
            def on_job_end(self, config, job_return, **_):
                open(f"{job_return.return_value}.txt", "x").close()
    """
    library = """
        import queue, threading

        asked, answers = queue.Queue(), queue.Queue()

        def compute():
            while True:
                answers.put(2 * asked.get())

        threading.Thread(target=compute, daemon=True).start()
    """
    write_program(tmp_path, "jaxlib.asked.put(config.x)\nreturn jaxlib.answers.get(timeout=20)", before)
    write(tmp_path, {"jaxlib.py": library})
    sweep(tmp_path, "+x=1,2", "+hydra.callbacks.note._target_=__main__.Note")
    assert sorted(returned(run) for run in runs(tmp_path)) == [2, 4]
    assert {path.name for path in tmp_path.glob("*.txt")} == {"2.txt", "4.txt"}


@pytest.mark.parametrize("profiled", [False, True])
@pytest.mark.parametrize("program", [["train.py"], ["-m", "pkg.train"]])
def test_a_job_that_is_no_fork_spawns_processes_that_know_its_main_module(
    tmp_path: Path, program: list[str], profiled: bool
) -> None:
    before = """
        import dataclasses, inspect, multiprocessing
        import jaxlib

        @dataclasses.dataclass
        class Number:
            value: int

        def squared(number):
            return Number(number.value ** 2)
    """
    task = """
        values = []
        Path(__file__).write_text("edited")
        assert sys.argv[0] == __file__ and "value ** 2" in inspect.getsource(squared)
        for method in ("spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                values += pool.map_async(squared, [Number(2), Number(3)]).get(timeout=60)
        return [number.value for number in values]
    """
    folder = tmp_path if program[0] != "-m" else tmp_path / "pkg"
    folder.mkdir(exist_ok=True)
    write_program(folder, task, before if folder == tmp_path else f"{textwrap.dedent(before)}from . import other\n")
    (folder / "other.py").touch()
    (tmp_path / "jaxlib.py").touch()
    program = [*(["-m", "cProfile", "-o", "profile"] if profiled else []), *program]
    script = folder / "train.py"
    text = script.read_text()
    sweep(tmp_path, program=program)
    (run,) = runs(tmp_path)
    assert returned(run) == [4, 9, 4, 9] and script.read_text() == "edited"
    script.write_text(text)
    assert "train: 1 of 1 runs are done" in sweep(tmp_path, program=program)


MAIN = "hydra.main(version_base=None, config_path=None)"
DECORATED = f"@{MAIN}\n@doubled\ndef main(config):\n    return config.x\n"
GUARD = "if __name__ == '__main__':\n    "
TASKS = {  # what @hydra.main calls, in ways that a program may write it; each doubles x
    "decorated": f"{DECORATED}\n{GUARD}main()",
    "renamed": f"main = {MAIN}(doubled(task))\n{GUARD}main()",
    "object": f"main = {MAIN}(Twice(task))\n{GUARD}main()",
    "closure": f"main = {MAIN}(twice(task))\n{GUARD}main()",
    "elsewhere": f"from inner.beside import main\n{GUARD}main()",
    "unguarded": f"{DECORATED}\nmain()",
}


@pytest.mark.parametrize("form", TASKS)
def test_another_process_calls_the_function_that_hydra_called(tmp_path: Path, form: str) -> None:
    program = """
        import functools
        import hydra

        def task(config):
            return config.x

        def doubled(function):
            return functools.wraps(function)(lambda config: 2 * function(config))

        def twice(function):
            return lambda config: 2 * function(config)

        class Twice:
            def __init__(self, function):
                self.function = function
            def __call__(self, config):
                return 2 * self.function(config)
    """
    program = textwrap.dedent(program)
    train = "import sys; sys.path.insert(0, '/nowhere')\n"  # as `import ray` does
    train += f"{program}{TASKS[form]}\n"
    write(tmp_path, {"inner/__init__.py": "", "inner/beside.py": program + DECORATED, "train.py": train})
    sweep(tmp_path, "+x=2", "hydra.job.name=it")
    (run,) = runs(tmp_path)
    assert returned(run) == 4
    config = read_config(run)
    assert config["program"].startswith("inner/beside.py:" if form == "elsewhere" else "train.py:")
    again = f"from launcher.worker import hydra_job; from omegaconf import OmegaConf; start = {config['start']!r}"
    call = "print(hydra_job._loaded(start)(OmegaConf.create({'x': 3})))"
    done = subprocess.run([sys.executable, "-c", f"{again}; {call}"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "6\n", done.stderr


@pytest.mark.parametrize("mode", ["w", "a", "x"])
def test_a_log_that_an_attempt_begins_anew_continues_that_of_the_last(tmp_path: Path, mode: str) -> None:
    task = """
        checkpoint = Path("step")
        done = int(checkpoint.read_text()) if checkpoint.exists() else 0
        place = Path(f"version_{done}" if config.mode == "x" else ".")
        place.mkdir(exist_ok=True)
        with open(place / "progress.csv", config.mode) as file:
            if not file.tell():
                print("step,score", file=file)
            for step in range(done + 1, 7):
                print(f"{step},{done}", file=file, flush=True)
                checkpoint.write_text(str(step - step % 2))
                if step == done + 3:
                    os.kill(os.getpid(), signal.SIGKILL)
    """
    write_program(tmp_path, task)
    own = ("hydra.sweeper.resumes=true", "hydra.sweeper.experiment.name=train")
    words = (f"+mode={mode}", "hydra.job.chdir=true", *own)
    sweep(tmp_path, *words)
    (run,) = runs(tmp_path)
    rows = logged(run)
    assert [(row["step"], row["score"]) for row in rows] == [(1, 0), (2, 0), (3, 2), (4, 2), (5, 4), (6, 4)]
    # What is appended to a file is all of the attempt that wrote to it last.
    assert [row["attempt"] for row in rows] == ([3] * 6 if mode == "a" else [1, 1, 2, 2, 3, 3])
    assert "train: 1 of 1 runs are done" in sweep(tmp_path, *words)
    said = command(tmp_path, "status")
    assert "train: 1 run: 1 done" in said and said.splitlines()[2].split() == ["train", "1", "1", "6"]


@pytest.mark.parametrize("log", ["once", "each", "json", "tensorboard"])
def test_a_log_to_which_attempts_without_a_checkpoint_append_is_that_of_the_last(tmp_path: Path, log: str) -> None:
    """Each begins with the first step again. CSV with a header `once`, or with one of `each` attempt."""
    task = """
        attempts = Path("attempts")
        number = int(attempts.read_text()) + 1 if attempts.exists() else 1
        attempts.write_text(str(number))
        if config.log == "tensorboard":
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
            writer = EventFileWriter(".")
        file = open("progress.csv" if config.log in ("once", "each") else "progress.jsonl", "a")
        if config.log == "each" or config.log == "once" and not file.tell():
            print("step,score", file=file)
        for step in range(1, 7):
            if config.log == "tensorboard":
                value = summary_pb2.Summary.Value(tag="score", simple_value=number)
                writer.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[value])))
                writer.flush()
            else:
                text = f'{{"step": {step}, "score": {number}}}' if config.log == "json" else f"{step},{number}"
                print(text, file=file, flush=True)
            if step == number + 2 and number < 3:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    write_program(tmp_path, task)
    sweep(tmp_path, f"+log={log}", "hydra.job.chdir=true", "hydra.sweeper.resumes=true")
    (run,) = runs(tmp_path)
    assert [(row["step"], row["score"]) for row in logged(run)] == [(step, 3) for step in range(1, 7)]


@pytest.mark.parametrize("root", ["", "${hydra:runtime.cwd}/"])
def test_a_file_that_jobs_write_where_the_configuration_names_it_makes_no_other_run(tmp_path: Path, root: str) -> None:
    config = {"x": 1, "save_path": f"{root}model.txt", "data": f"{root}data.txt"}
    write_program(tmp_path, "Path(config.save_path).write_text(Path(config.data).read_text())", config=config)
    (tmp_path / "data.txt").write_text("one")
    sweep(tmp_path, "x=1,2")
    sweep(tmp_path, "x=1,2")
    assert len(runs(tmp_path)) == 2 and (tmp_path / "model.txt").exists()
    (tmp_path / "data.txt").write_text("two")  # which jobs only read
    sweep(tmp_path, "x=1,2", "hydra.sweeper.code=accept")
    assert len(runs(tmp_path)) == 4


@pytest.mark.parametrize("end", ["raise ValueError", "os._exit(1)"])
def test_the_same_runs_are_asked_for_again_whatever_jobs_have_written(tmp_path: Path, end: str) -> None:
    config = {"x": 1, "save_path": "model_${x}.txt", "moved": "moved_${x}.txt", "results": "results.csv"}
    task = f"""
        Path(config.save_path).write_text("begun")
        Path("new").write_text("1")
        os.replace("new", config.moved)
        with open(config.results, "a") as file:
            print(config.x, file=file)
        if not Path("go").exists():
            {end}
    """
    write_program(tmp_path, task, config=config)
    (tmp_path / "results.csv").write_text("x\n")  # the second job begins after the first has written into it
    words = ["x=1,2", "hydra.sweeper.cluster={name: local, slots: 1, breaker: null}"]
    assert "other content" not in sweep(tmp_path, *words, code=1)
    first = runs(tmp_path)
    (tmp_path / "go").touch()
    (plan,) = (tmp_path / "multirun").glob("*/plan.json")
    command(tmp_path, "resume", plan.parent.name)
    sweep(tmp_path, *words)
    (tmp_path / "results.csv").unlink()
    sweep(tmp_path, *words)
    assert runs(tmp_path) == first and len(first) == 2


def test_an_input_that_nobody_knows_who_has_changed_stops_the_jobs_that_begin_later(tmp_path: Path) -> None:
    task = "open(config.data, 'r+').close()\nos.system(f'echo {config.x} > data.txt')"
    write_program(tmp_path, task, config={"x": 1, "data": "data.txt"})
    (tmp_path / "data.txt").write_text("0")
    said = sweep(tmp_path, "x=1,2", "hydra.sweeper.cluster={name: local, slots: 1}", code=1)
    assert "data.txt has other content than when the run was planned" in said


REPEATED = {
    "train.py": "from pkg import task\n\nif __name__ == '__main__':\n    task.main()\n",
    "pkg/__init__.py": "",
    "pkg/__main__.py": "from .task import main\n\nmain()\n",
    "pkg/task.py": """
        import hydra, rlsweep
        from hydra.core.config_store import ConfigStore
        from pkg.rate import RATE

        ConfigStore.instance().store("config", {"x": 1, "offset": {"_target_": "offsets.offset"}})

        @hydra.main(version_base=None, config_name="config")
        def main(config):
            offset = hydra.utils.instantiate(config.offset)
            for step in range(1, 4):
                rlsweep.log(step, {"score": config.x * step * RATE + offset})
            return {"offset": offset}

        if __name__ == "__main__":
            main()
    """,
    "pkg/rate.py": "RATE = 2\n",
    "offsets.py": "def offset():\n    return 5\n",
}


def command(folder: Path, *words: str, code: int = 0) -> str:
    """A command of the installed program, which does not have the program's folder on its path."""
    environment = {**os.environ, "TMPDIR": str(folder.parent)}
    for name in ("PYTHONPATH", "RLSWEEP_MULTIRUN"):
        environment.pop(name, None)
    program = str(Path(sys.executable).with_name("rlsweep"))
    done = subprocess.run([program, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("program", [["train.py"], ["-m", "pkg.task"], ["-m", "pkg"]])
def test_verify_repeats_a_job_with_the_code_it_had(tmp_path: Path, program: list[str]) -> None:
    folder = write(tmp_path / "my program", {**REPEATED, ".gitignore": "multirun\n__pycache__\n"})
    git(folder, "init", "-q")
    git(folder, "add", "pkg", "train.py", ".gitignore")
    git(folder, "commit", "-q", "-m", "all")
    write(folder, {"pkg/rate.py": "RATE = 3\n"})  # the patch has it, and offsets.py, which is new
    sweep(folder, "x=1", program=program)
    (run,) = runs(folder)
    assert "other code" not in command(folder, "status")
    links = {link: link.readlink() for link in folder.rglob("*") if link.is_symlink()}
    write(folder, {"pkg/rate.py": "RATE = 4\n"})
    (folder / "offsets.py").unlink()
    git(folder, "commit", "-q", "-a", "-m", "later")
    said = command(folder, "verify", run.name, "--run")
    assert "3 steps are equal" in said
    (patch,) = (path for path in run.glob("*.patch") if path.name != "dirty.patch")  # that is rlsweep's own
    assert f"{folder} at commit {git(folder, 'rev-parse', 'HEAD~1')[:12]} with {patch}" in said
    assert {link: link.readlink() for link in folder.rglob("*") if link.is_symlink()} == links
    (patch.parent / patch.name).write_text(patch.read_text().replace("return 5", "return '***'"))  # a masked secret
    said = command(folder, "verify", run.name, "--run", code=2)
    assert "has offsets.py as" in said or f"has {folder}/offsets.py as" in said
    (folder / "offsets.py").write_text(REPEATED["offsets.py"])
    assert "3 steps are equal" in command(folder, "verify", run.name, "--run")


def test_a_child_that_a_job_forks_is_not_the_run(tmp_path: Path) -> None:
    write_program(
        tmp_path,
        """
        if (child := os.fork()) == 0:
            if config.child == "raise":
                raise RuntimeError("in the child alone")
            return sys.exit(0) if config.child == "exit" else 7
        assert os.waitpid(child, 0)[1] == (256 if config.child == "raise" else 0)
        return 1
        """,
    )
    sweep(tmp_path, "+child=raise,exit,return")
    assert [returned(run) for run in runs(tmp_path)] == [1, 1, 1]


@pytest.mark.parametrize("killed", ["false", "true"])
def test_a_child_that_a_job_leaves_ends_with_it_and_keeps_nobody_waiting(tmp_path: Path, killed: str) -> None:
    task = """
        if (child := os.fork()) == 0:
            time.sleep(100)
            os._exit(0)
        Path(f"child{child}").touch()
        if config.killed and not Path("once").exists():
            Path("once").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 1
    """
    write_program(tmp_path, task)
    ended(start(tmp_path, f"+killed={killed}"), seconds=90)
    children = [int(path.name.removeprefix("child")) for path in tmp_path.glob("child*")]
    until(lambda: not any(map(psutil.pid_exists, children)), seconds=9)
    assert len(children) == (2 if killed == "true" else 1) and [returned(run) for run in runs(tmp_path)] == [1]


@pytest.mark.parametrize("watches", ["false", "true"])
def test_a_job_ends_its_children_with_sigterm(tmp_path: Path, watches: str) -> None:
    before = """
        import multiprocessing, rlsweep

        def asleep(begun):
            begun.set()
            for _ in range(2):
                try:
                    time.sleep(50)
                except Exception:
                    pass
    """
    task = """
        run = rlsweep.context() if config.watches else None
        processes = multiprocessing.get_context("fork")
        begun = processes.Event()
        child = processes.Process(target=asleep, args=(begun,))
        child.start()
        begun.wait()
        child.terminate()
        child.join()
        return child.exitcode
    """
    write_program(tmp_path, task, before)
    sweep(tmp_path, f"+watches={watches}")
    assert [returned(run) for run in runs(tmp_path)] == [-signal.SIGTERM]


def test_a_run_that_is_stopped_at_once_each_time_is_left(tmp_path: Path) -> None:
    write_program(tmp_path, "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)")
    assert "10 attempts in a row were stopped within 60 s" in sweep(tmp_path, code=1)
    (run,) = runs(tmp_path)
    assert state(run) == RunState.PREEMPTED and len([*(run / "attempts").iterdir()]) == 10


def test_a_run_whose_state_is_torn_is_listed_and_run_anew(folder: Path) -> None:
    (folder / "rlsweep.toml").touch()
    sweep(folder, "x=1,2", "hydra.sweeper.experiment.name=e")
    torn, other = runs(folder)
    (torn / "state.json").write_text("")
    assert f"{torn}/state.json: not JSON" in sweep(folder, "x=1,2", "hydra.sweeper.experiment.name=e", code=2)
    assert f"{torn.name}" in command(folder, "logs", "e") and other.name not in command(folder, "logs", "e")
    command(folder, "rerun", torn.name)
    assert [state(run) for run in runs(folder)] == [RunState.DONE] * 2
    assert (folder / "multirun" / "archive" / f"{torn.name}.1" / "state.json").read_text() == ""


def test_what_is_damaged_beside_a_run_is_named_before_the_run_is_archived(folder: Path) -> None:
    """A run that is archived, or whose folder was deleted, is still one that its plan names."""
    (folder / "rlsweep.toml").touch()
    name = "hydra.sweeper.experiment.name=e"
    sweep(folder, "x=1,2", name)
    first, second = runs(folder)
    declared = folder / "multirun" / "e" / "hypotheses.json"
    declared.write_text("")
    said = command(folder, "rerun", first.name, code=2)
    assert f"{declared}: declarations" in said and "nothing was written or run" in said and first.is_dir()
    declared.unlink()
    (code,) = (folder / "multirun" / "code").iterdir()
    whole = code.read_text()
    code.write_text("")
    said = sweep(folder, "x=1,2", name, code=2)
    assert f"{code}: not a record of code" in said and "the code of its runs then counts as not known" in said
    code.write_text(whole)
    (second / "summary.json").write_text("")
    said = sweep(folder, "x=1,2,3", name, code=1)
    assert "1 run unreadable" in said and len(runs(folder)) == 3
    for one in (first, second):
        shutil.rmtree(one)
    assert f"{first}: no state.json" in command(folder, "logs", first.name, code=2)
    command(folder, "rerun", second.name)
    assert [state(run) for run in runs(folder)] == [RunState.DONE] * 3


def test_runs_are_run_again_where_they_are_and_none_is_changed_if_that_is_refused(folder: Path) -> None:
    (folder / "rlsweep.toml").touch()
    script, moved = folder / "train.py", folder / "moved"
    name = "hydra.sweeper.experiment.name=e"
    sweep(folder, "mode=OK,RAISE", name, code=1)
    (folder / "multirun").rename(moved)

    def states() -> dict[str, tuple[str, int]]:
        found = {path.name: find_state(path) for path in runs_folder(moved).iterdir()}
        return {run_id: (state.state, state.attempt) for run_id, state in found.items() if state is not None}

    before, there = states(), ("--multirun", str(moved))
    script.write_text(script.read_text().replace('ValueError("broken")', 'ValueError("still broken")'))
    said = command(folder, "resume", "e", *there, code=2)
    assert "Fix: add hydra.sweeper.code=rerun" in said and "nothing was written or run" in said and states() == before
    for attempt, choice in enumerate(("hydra.sweeper.code=accept", "accept_code=true"), 2):
        script.write_text(script.read_text().replace("broken", "still broken"))
        said = command(folder, "resume", "e", choice, *there, code=1)
        assert "1 run to resume" in said and sorted(states().values()) == [("done", 1), ("failed", attempt)]
    before, program = states(), script.read_text()
    script.write_text("import no_such_module")
    assert "No module named 'no_such_module'" in command(folder, "rerun", "e", *there, code=2) and states() == before
    script.write_text(program.replace("mode == Mode.RAISE", "mode == Mode.EXIT"))
    command(folder, "rerun", "e", "rerun=changed", *there)
    assert states() == dict.fromkeys(before, ("done", 1)) and not runs(folder)

"""What the user sees while runs are executed; output that cannot be written is dropped."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.commands import sweeper
from launcher.execution import progress
from launcher.execution.progress import Display
from launcher.run import catalog, lifecycle
from launcher.run.folder import cache_folder, runs_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from launcher.status import standing
from launcher.status.standing import Index, remaining_seconds, stand
from tests.launcher.conftest import ROOT
from tests.launcher.made import make_plan, make_run


@pytest.fixture
def look(tmp_path, monkeypatch):
    """The standing of two running runs, after 4 and 0 of 10 steps of 2 s each, and of a queued one."""
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "_SHARE", 1e9)
    monkeypatch.setattr(progress, "_SUMMARY_EVERY_S", 0.0)
    for run_id, state, steps in (("aa", "running", 4), ("bb", "running", 0), ("cc", "submitted", 0)):
        folder = make_run(tmp_path, run_id, RunState.PLANNED, steps=steps)
        if state == "running":
            with lifecycle.locked(folder):
                assert lifecycle.acquire(folder, 1) is not None
        write_state(folder, read_state(folder).replace(state=RunState(state), pid=os.getpid()))
    make_plan(tmp_path, "study", {"A": ["aa", "bb"], "B": ["cc"]})
    index = Index(tmp_path)
    return lambda: [stand(tmp_path, catalog.read_plan(tmp_path, "study"), index)]


def shown(display):
    for run_id in ("aa", "bb", "cc"):
        display.started(run_id, f"title of {run_id}")
    display.tick()
    return display


def test_the_time_left_is_the_one_that_status_gives(look):
    (standing,) = look()
    # 6, 10 and 10 steps of 2 s, two at a time.
    assert remaining_seconds([standing]) == standing.remaining_seconds == 26.0
    assert {run_id: run.work_seconds for run_id, run in standing.running.items()} == {"aa": 12.0, "bb": 20.0}


def test_a_run_in_a_queue_is_queued_until_it_runs(look, tmp_path, capsys):
    shown(Display(3, tmp_path, look, True))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [f"{run_id} queued   title of {run_id}" for run_id in ("aa", "bb", "cc")]
    assert sorted(lines[3:5]) == [f"{run_id} started  title of {run_id}" for run_id in ("aa", "bb")]
    assert lines[5:] == ["0/3 ended; 1 queued; running: title of aa 4/10, title of bb preparing; about 26 s left"]


def test_without_a_queue_a_run_that_was_submitted_has_started(look, tmp_path, capsys):
    display = shown(Display(3, tmp_path, look, False))
    display.ended("aa", RunState.DONE, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "aa started  title of aa" and "queued" not in "".join(lines)
    assert lines[-1] == "aa done     title of aa  [1/3]"


def test_a_job_of_a_program_which_logs_as_many_steps_as_it_likes_has_no_total_and_no_time_left(
    look, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(standing, "planned_steps", lambda _: None)
    plan = tmp_path / "study/plan.json"
    plan.write_text(plan.read_text().replace('"steps": 10', '"steps": null'))
    document = look()[0].document()
    assert document["steps"] is document["work_seconds"] is document["remaining_seconds"] is None
    shown(Display(3, tmp_path, look, True))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "0/3 ended; 1 queued; running: title of aa step 4, title of bb preparing"


def test_what_a_run_builds_for_the_others_is_named_once(look, tmp_path, capsys):
    draft = cache_folder(tmp_path) / "models" / ".ab12.draft"
    draft.mkdir(parents=True)
    draft.with_name(".left.draft").mkdir()
    draft.with_name(".left.lock").touch()  # of a process that was killed
    with draft.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        display = shown(Display(3, tmp_path, look, False))
        display.tick()
    said = f"building models/ab12 in {cache_folder(tmp_path)}, once for all runs that share it"
    out = capsys.readouterr().out
    assert out.count(said) == out.count("building") == 1


@pytest.mark.parametrize("words", [[], ["trainer.steps=3"], ["seed=0,1", "cluster=local"]])
def test_a_command_without_an_experiment_or_a_method_explains_and_runs_nothing(tmp_path, capsys, words):
    assert sweeper.run([*words, f"multirun={tmp_path / 'multirun'}"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "python launch.py -m experiment=quickstart" in err and "bnto_main" in err
    assert not (tmp_path / "multirun").exists()


LOST = [">&-", ">/dev/full", "| head -1 >/dev/null", ">&- 2>&-", ">/dev/full 2>&1", "<&- >&-"]


def in_shell(command: str, output: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python with that output, and with the program's own exit code in a pipe, too."""
    redirected, pipe = ("", output) if output.startswith("|") else (output, "")
    with tempfile.NamedTemporaryFile("r") as code:
        # `sh` has no pipefail.
        done = subprocess.run(
            ["sh", "-c", f"{{ {sys.executable} {command} {redirected}; echo $? > {code.name}; }} {pipe}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        done.returncode = int(code.read())
    return done


@pytest.fixture(scope="module")
def multirun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    for number in range(3):
        make_run(folder, f"{number:016x}", RunState.DONE, steps=2)
    make_plan(folder, "study", {"A": [f"{number:016x}" for number in range(3)]})
    return folder


STATUS, RUNS = "-m launcher status study --multirun {}", "-m launcher runs --json --multirun {}"
OTHERS = [
    "-m launcher --help",
    "-m launcher plan method=c0_grpo seed=0 multirun={}",
    "-m analysis --help",
    "launch.py --cfg job method=c0_grpo",
]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        *((STATUS, output) for output in LOST),
        *((RUNS, output) for output in (">/dev/full", ">/dev/full 2>&1", "| head -1 >/dev/null")),
        *((command, output) for command in OTHERS for output in (">/dev/full", "<&- >&-")),
    ],
)
def test_a_command_ends_as_if_its_output_were_read(command: str, output: str, multirun: Path) -> None:
    done = in_shell(command.format(multirun), output)
    lost = "--json" in command and output.startswith(">/dev/full")  # a program that reads it must know
    assert done.returncode == lost and "Traceback" not in done.stderr and str(multirun) not in done.stderr, done.stderr
    told = done.stderr == "standard output cannot be written (No space left on device); it is dropped\n"
    assert told if output == ">/dev/full" else done.stderr == "", done.stderr


@pytest.mark.parametrize("output", [">&- 2>&-", ">/dev/full"])
def test_a_usage_error_keeps_its_exit_code(output: str, multirun: Path) -> None:
    assert in_shell(f"-m launcher status none --multirun {multirun}", output).returncode == 2


def test_an_output_that_can_be_written_is_as_before(multirun: Path) -> None:
    code = """
import subprocess, sys
from launcher.project import drop_what_cannot_be_written
drop_what_cannot_be_written()
print("é", end=""); sys.stdout.write("1\\n")
sys.stdout.flush(); sys.stdout.buffer.write(b"2\\n"); print("3", file=sys.stderr)
sys.stdout.flush(); subprocess.run(["echo", "4"]); print(sys.stdout.encoding, sys.stdout.isatty())
"""
    for options in ([], ["-u"]):
        done = subprocess.run([sys.executable, *options, "-c", code], cwd=ROOT, capture_output=True, check=True)
        assert done.stdout.decode() == "é1\n2\n4\nutf-8 False\n" and done.stderr == b"3\n"


@pytest.mark.train
@pytest.mark.processes
@pytest.mark.parametrize("output", LOST)
def test_a_sweep_goes_on_and_reports_without_an_output(output: str, tmp_path: Path) -> None:
    words = "method=c0_grpo seed=0,1 trainer.steps=2 task.warm_start.steps=2 cluster.slots=1"
    done = in_shell(f"launch.py -m {words} multirun={tmp_path}", output)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "multirun" not in done.stderr, done.stderr
    assert [read_state(folder).state for folder in runs_folder(tmp_path).iterdir()] == [RunState.DONE] * 2
    assert len(list(tmp_path.glob("*/report/index.html"))) == 1

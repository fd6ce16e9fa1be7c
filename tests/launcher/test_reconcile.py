"""What a launch says when there is nothing to run, or nowhere to write; and Ctrl-C at awkward moments."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.commands import sweeper
from launcher.errors import InvalidPlan
from launcher.execution import sweep
from launcher.execution.progress import Display
from launcher.execution.reconciler import interruptible
from launcher.planning import freeze, planner
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from tests.launcher.conftest import ROOT
from tests.waiting import DEADLINE


def frozen(multirun, **states):
    """A frozen plan of as many seeds as there are states, in these."""
    seeds = ",".join(map(str, range(len(states))))
    planned = planner.make(ROOT, ["method=c0_grpo", f"seed={seeds}", f"multirun={multirun}"])
    freeze.freeze(planned)
    for run_id, (cause, state) in zip(planned.runs, states.items(), strict=True):
        folder = run_folder(multirun, run_id)
        write_state(folder, read_state(folder).replace(state=state, message=cause))
    return planned


def test_failed_runs_are_told_by_cause_with_commands_for_their_folder_as_many_as_fit(tmp_path, capfd):
    causes = [*(f"reward 0.{seed} of step {seed}" for seed in range(3)), *(f"cause_{letter}" for letter in "abcdef")]
    planned = frozen(tmp_path, **dict.fromkeys(causes, RunState.FAILED), not_wanted=RunState.CANCELLED)
    assert sweep.sweep(ROOT, planned).code == 1
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "adhoc-c0_grpo: not done: 1 cancelled, 9 failed"
    single = [f"1 run failed: cause_{letter}" for letter in "abcd"]
    assert said[1:10:2] == ["3 runs failed: reward 0.0 of step 0", *single]
    firsts = [run_id for place, run_id in enumerate(planned.runs) if place in (0, 3, 4, 5, 6)]
    assert [line.split()[:5] for line in said[2:11:2]] == [f"python -m launcher logs {id}".split() for id in firsts]
    again = f"to run the failed runs again: python -m launcher resume adhoc-c0_grpo --multirun {tmp_path}"
    assert said[11:] == ["and 3 more causes; `status --json` lists all of them", again]


def test_a_folder_that_cannot_be_made_is_a_problem_of_the_plan():
    planned = planner.make(ROOT, ["method=c0_grpo", "seed=0", "multirun=/proc/none"])
    with pytest.raises(InvalidPlan, match="this folder cannot be created"):
        sweep.sweep(ROOT, planned)


def test_a_state_that_cannot_be_read_ends_a_launch_in_one_line(tmp_path, capfd):
    frozen(tmp_path, one=RunState.DONE)
    (path,) = tmp_path.glob("runs/*/state.json")
    path.write_text("")
    assert sweeper.run(["method=c0_grpo", "seed=0", f"multirun={tmp_path}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: not JSON") and f"Fix: restore the file, or move {path.parent} away" in line


def test_a_configuration_that_was_lost_is_written_again(tmp_path):
    planned = frozen(tmp_path, one=RunState.PREEMPTED)
    (path,) = tmp_path.glob("runs/*/config.yaml")
    before = path.read_bytes()
    path.unlink()
    freeze.freeze(planned)
    assert path.read_bytes() == before


class InterruptedFile(io.RawIOBase):
    """A file whose third writing is interrupted."""

    def __init__(self) -> None:
        self.written = b""
        self._count = 0

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._count += 1
        if self._count == 3:
            signal.raise_signal(signal.SIGINT)
        self.written += bytes(data)
        return len(data)


def test_an_interruption_in_the_middle_of_a_line_is_counted(monkeypatch):
    file = InterruptedFile()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(file)))
    display = Display(1, Path(), lambda: (), False)
    with interruptible(display.say) as interruption:
        for _ in range(5):
            display.say("a line")
    assert (interruption.count, interruption.announced) == (1, False)  # the reconciler announces it in its next turn
    assert file.written.decode() == "a line\n" * 5


def ran(script: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a script."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout, done.stderr


def test_an_interruption_while_it_plans_leaves_no_traceback():
    script = """
import runpy, signal, sys
class Now:
    def find_spec(self, name, path=None, target=None):
        if name == "launcher.planning.planner":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Now())
sys.argv = ["launch.py", "-m", "experiment=quickstart"]
runpy.run_path("launch.py", run_name="__main__")
"""
    assert ran(script) == (130, "", "interrupted\n")


def test_the_server_of_workers_outlives_an_interruption_of_its_imports():
    script = """
import os, signal
os.environ["RLSWEEP_WARM"] = "json"
import launcher.worker.warm
os.kill(os.getpid(), signal.SIGINT)
print("lives")
"""
    assert ran(script)[:2] == (0, "lives\n")


def test_the_server_of_workers_collects_no_garbage_while_it_imports_and_none_of_it_later():
    script = """
import gc, os
import launcher.worker.provenance
started = []
gc.callbacks.append(lambda phase, info: started.append(phase))
os.environ["RLSWEEP_WARM"] = "omegaconf,pydantic"
import launcher.worker.warm
print(started, gc.isenabled(), gc.get_freeze_count() > 10_000)
first = gc.get_freeze_count()
with launcher.project.uncollected():
    made = [[] for _ in range(100)]
print(gc.get_freeze_count() == first)
"""
    assert ran(script)[:2] == (0, "[] True True\nTrue\n")


def test_a_second_signal_in_the_middle_of_the_first_is_no_deadlock():
    script = """
import os, signal, sys
from pathlib import Path
from launcher.worker.attempt import Attempt
attempt = Attempt(Path("multirun/runs/0123"), 1, None)
signal.signal(signal.SIGTERM, lambda *_: attempt.request_stop("signal"))
def everywhere(frame, event, _):
    sys.settrace(None)
    os.kill(os.getpid(), signal.SIGTERM)
    sys.settrace(everywhere)
    return everywhere
sys.settrace(everywhere)
attempt.request_stop("signal")
sys.settrace(None)
print(attempt.stop_requested())
"""
    assert ran(script) == (0, "True\n", "")

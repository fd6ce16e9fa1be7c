"""Cancelling: what waits at once, what runs through its worker; only `resume` takes it up again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from launcher import files
from launcher.planning import freeze
from launcher.run import lifecycle, stop_request
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import Claim, FailureKind, RunState, State, WorkerExit, read_state, write_state
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make
from tests.launcher.test_sweep import SMALL
from tests.waiting import DEADLINE, ended, until


def test_an_unknown_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="runs/nosuch: this run does not exist"):
        stop_request.cancel(tmp_path, "nosuch")


@pytest.mark.processes
def test_a_running_run_saves_a_checkpoint_and_is_not_taken_up_again(sweeps):
    launcher = sweeps.start_held(*SMALL)
    victim = until(sweeps.logging)[0]
    assert stop_request.cancel(sweeps.multirun, victim.name) == "asked"
    until(lambda: lifecycle.read_claim(victim) is None)
    sweeps.release()
    ended(launcher, 1)
    state = sweeps.states()[victim.name]
    assert state["error"] is None
    assert state["state"] == "cancelled" and re.match(
        r"cancelled by \S+ on \S+ at \d{4}-\d\d-\d\d \d\d:\d\d", state["cause"]
    )
    last = [step for step, _ in sweeps.values()[victim.name]][-1]
    assert max(path.name for path in victim.glob("checkpoints/*")) == f"step_{last:06d}"
    others = {state["state"] for name, state in sweeps.states().items() if name != victim.name}
    assert others == {"done"}
    _, output = sweeps.run(*SMALL)
    assert "RAN \n" in output


@pytest.mark.processes
def test_a_request_reaches_a_worker_that_no_signal_can_reach(sweeps):
    """As on another host: only the file system is shared."""
    launcher = sweeps.start_held(*SMALL, "seed=0")
    victim = until(sweeps.logging)[0]
    owner = lifecycle.read_claim(victim)
    with lifecycle.locked(victim):
        stop_request.ask(victim, owner, FailureKind.CANCELLED, "somebody elsewhere")
    launcher.communicate()
    assert (sweeps.states()[victim.name]["state"], sweeps.states()[victim.name]["cause"]) == (
        "cancelled",
        "somebody elsewhere",
    )


@pytest.mark.parametrize(
    ("kind", "state", "code"),
    [
        (FailureKind.NODE_FAILURE, RunState.LOST, WorkerExit.PREEMPTED),
        (FailureKind.LOST, RunState.LOST, WorkerExit.PREEMPTED),
        (FailureKind.EXTERNALLY_CANCELLED, RunState.PREEMPTED, WorkerExit.PREEMPTED),
        (FailureKind.CANCELLED, RunState.CANCELLED, WorkerExit.CANCELLED),
    ],
)
def test_a_worker_that_was_asked_to_stop_ends_as_it_says(tmp_path, kind, state, code):
    planned = make("method=c0_grpo", "seed=0", "trainer.steps=10000", f"multirun={tmp_path}")
    freeze.freeze(planned)
    folder = run_folder(tmp_path, next(iter(planned.runs)))
    command = [sys.executable, "-m", "launcher.worker", str(folder), "--train", "tests.launcher.steps:train"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "STEPS_SECONDS": "0.05"})
    until(lambda: metrics_path(folder).exists())
    with lifecycle.locked(folder):
        stop_request.send(folder, lifecycle.read_claim(folder), kind, "the cluster")
    assert process.wait(DEADLINE) == code
    ended = read_state(folder)
    assert (ended.state, ended.failure_kind, ended.message) == (state, kind, "the cluster")


@pytest.mark.processes
def test_a_cancelled_run_whose_worker_dies_is_cancelled(sweeps):
    launcher = sweeps.start(
        *SMALL, "seed=0", "cluster.grace_s=0.5", STEPS_END=json.dumps({"0": "hang"}), STEPS_SECONDS="0"
    )
    victim = until(sweeps.logging)[0]
    assert stop_request.cancel(sweeps.multirun, victim.name) == "asked"
    launcher.communicate()
    state = sweeps.states()[victim.name]
    assert state["state"] == "cancelled" and state["cause"].endswith("; signal 9 (SIGKILL)")


@pytest.mark.processes
def test_a_request_that_came_too_late_still_keeps_the_run_from_being_taken_up_again(sweeps):
    code, output = sweeps.run(*SMALL, "seed=0", "cluster.retry.exception=3", STEPS_END=json.dumps({"0": "late"}))
    assert code == 1, output
    (state,) = sweeps.states().values()
    assert (state["state"], state["cause"], state["attempt"]) == ("cancelled", "too late", 1)


@pytest.mark.processes
def test_a_request_outlives_its_dead_owner_for_the_next_launch(sweeps):
    sweeps.run(*SMALL, "seed=0", "cluster.retry.lost=0", STEPS_END=json.dumps({"0": "exit"}))
    (folder,) = (sweeps.multirun / "runs").iterdir()
    dead = Claim(lifecycle.hostname(), 2**30, 1, lifecycle.boot_id(), "dead", 1)
    stop_request.ask(folder, dead, FailureKind.CANCELLED, "nobody wants it")
    for state in (RunState.RUNNING, RunState.PREEMPTED):
        files.create_atomic(folder / "claim.json", json.dumps(vars(dead)))
        write_state(folder, State(folder.name, state, attempt=1))
        assert sweeps.run(*SMALL, "seed=0")[0] == 1
        assert (sweeps.states()[folder.name]["state"], sweeps.states()[folder.name]["attempt"]) == ("cancelled", 1)

"""A run that makes no step for a long time: when it counts as stalled, and how it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from launcher.run import lifecycle
from launcher.run.folder import attempt_folder, stacks_path
from launcher.run.lifecycle import HEARTBEAT_S
from launcher.worker import stall
from launcher.worker.stall import FIRST_S, LEAST_S, Watchdog, limit_of
from tests.launcher.conftest import ROOT
from tests.waiting import ended, until


@pytest.mark.parametrize(
    ("steps", "given", "limit"),
    [
        ((), None, FIRST_S),
        ((1.0, 1.0, 500.0), None, LEAST_S),
        ((400.0, 200.0, 300.0), None, 3000.0),
        ((400.0, 200.0, 300.0), 60.0, 60.0),
        ((), 60.0, 60.0),
    ],
)
def test_the_limit_is_ten_median_steps_and_at_least_half_an_hour(steps, given, limit):
    assert limit_of(steps, given) == limit


@pytest.fixture
def watchdog(tmp_path, monkeypatch):
    """A watchdog of 12 s on a clock that the test sets."""
    clock = [0.0]
    monkeypatch.setattr(stall.time, "monotonic", lambda: clock[0])
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    watched = Watchdog(tmp_path, 1, 12.0)
    yield watched, clock, tmp_path
    watched.close()


def test_only_the_time_without_a_step_counts(watchdog):
    watched, clock, _ = watchdog
    for beat in range(1, 43):  # with a step in every other one, and at the end none
        clock[0] += HEARTBEAT_S
        if beat <= 40 and beat % 2 == 0:
            watched.stepped()
        assert watched.beat() is None
    clock[0] += HEARTBEAT_S
    assert "no step for 15 s, after 20 steps of this attempt; see" in watched.beat()


def test_a_process_that_was_stopped_is_not_stalled(watchdog):
    watched, clock, _ = watchdog
    clock[0] += 36000.0  # SIGSTOP; then the first beat
    assert watched.beat() is None
    clock[0] += HEARTBEAT_S
    assert "before the first step of this attempt" in watched.beat()


def test_the_file_has_the_stacks_of_all_threads_and_what_the_children_do(tmp_path):
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    watched = Watchdog(tmp_path, 1, None)  # its timer ends a process that hangs: this one may be slow
    with subprocess.Popen(["sleep", "600"]) as child:
        until(lambda: "sleep 600; state S" in stall.describe(child.pid))
        watched.dump()
        child.kill()
    watched.close()
    text = stacks_path(tmp_path, 1).read_text()
    assert "test_the_file_has_the_stacks" in text and f"child {child.pid}: sleep 600; state S" in text


@pytest.mark.processes
def test_a_forked_child_writes_its_stack_into_the_same_file(tmp_path):
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    program = f"""
import os, sys, time
from pathlib import Path
from launcher.worker.stall import Watchdog
watched = Watchdog(Path({str(tmp_path)!r}), 1, None)
def asleep_in_the_child():
    time.sleep(60)
child = os.fork()
if child == 0:
    asleep_in_the_child()
time.sleep(1)
watched.dump()
os.kill(child, 9)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    assert "in asleep_in_the_child" in stacks_path(tmp_path, 1).read_text()


@pytest.mark.processes
def test_a_stalled_run_is_ended_with_its_stacks_and_resumed_by_rule(sweeps):
    """One run sleeps; another also holds Python's lock, so that no thread of its process can end it."""
    code, output = sweeps.run(
        *("method=c0_grpo", "seed=0,1,2", "trainer.steps=4", "trainer.checkpoint_every=2", "cluster.slots=3"),
        *("cluster.stall_s=3", "cluster.retry.stalled=1"),
        STEPS_END='{"0": "hang", "1": "freeze"}',
    )
    assert code == 1, output
    ended = {state["state"]: state for state in sweeps.states().values()}
    assert len(ended) == 2 and {state["kind"] for state in sweeps.states().values()} == {"stalled", None}
    for run_id, state in sweeps.states().items():
        stacks = [path.read_text() for path in (sweeps.multirun / "runs" / run_id).glob("attempts/*/stacks.txt")]
        if state["state"] == "done":
            assert not stacks
            continue
        assert (state["attempt"], state["ends"]) == (2, {"stalled": 2}) and "stacks.txt" in state["cause"]
        assert len(stacks) == 2 and all("steps.py" in text for text in stacks)
        assert f"{run_id} stalled: " in output
    until(lambda: not sweeps.alive())


HANGING = """
import os, signal, sys, time
from pathlib import Path
from launcher.worker.stall import Watchdog
watched = Watchdog(Path(sys.argv[1]), 1, 0.5)
watched.grace_s = 0.0
watched._timer.stdin.write(b"2\\n")  # instead of the heartbeat's two beats
print("begun", flush=True)
time.sleep(float(sys.argv[2]))
watched.close()
print("ended", flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("group", [False, True])
def test_a_worker_that_was_stopped_for_longer_than_the_limit_goes_on_and_one_that_hangs_ends(group, tmp_path):
    """The timer of a process that hangs does not expire while it, or its whole group, is stopped."""
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    command = [sys.executable, "-c", HANGING, str(tmp_path)]
    more = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "1"], **more, start_new_session=True) as stopped:
        assert stopped.stdout.readline() == "begun\n"
        send = os.killpg if group else os.kill
        send(stopped.pid, signal.SIGSTOP)
        time.sleep(4)
        send(stopped.pid, signal.SIGCONT)
        assert (stopped.stdout.readline(), stopped.wait()) == ("ended\n", 0)
    assert not stacks_path(tmp_path, 1).exists()
    if not group:
        assert subprocess.run([*command, "600"], **more).returncode == -signal.SIGKILL
        assert "most recent call first" in stacks_path(tmp_path, 1).read_text()


@pytest.mark.processes
def test_a_run_that_is_stopped_longer_than_the_limit_is_done_with_one_attempt(sweeps):
    words = ("method=c0_grpo", "seed=0", "trainer.steps=12", "trainer.checkpoint_every=4", "cluster.slots=1")
    launcher = sweeps.start_held(*words, "cluster.stall_s=2")
    (folder,) = until(sweeps.logging)
    owner = lifecycle.read_claim(folder)
    assert owner is not None
    os.kill(owner.pid, signal.SIGSTOP)
    time.sleep(20)  # 2 s, 2 s to stop, two heartbeats
    os.kill(owner.pid, signal.SIGCONT)
    sweeps.release()
    ended(launcher)
    (state,) = sweeps.states().values()
    assert (state["state"], state["attempt"], state["ends"]) == ("done", 1, {})

"""Sweeps as stories: done, again, killed, interrupted, two at once, failing."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from launcher.run import lifecycle
from launcher.run.lifecycle import RunState
from tests.waiting import ended, until

pytestmark = pytest.mark.processes
# One method, four seeds, two workers.
SMALL = ("method=c0_grpo", "seed=0,1,2,3", "trainer.steps=12", "trainer.checkpoint_every=4", "cluster.slots=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The lines of a sweep that nothing disturbed."""
    from tests.launcher.conftest import Sweeps

    sweep = Sweeps(tmp_path_factory.mktemp("whole") / "multirun")
    code, output = sweep.run(*SMALL)
    assert code == 0, output
    return sweep


def test_every_run_ends_done_with_its_files(whole):
    states = whole.states()
    assert len(states) == 4 and {state["state"] for state in states.values()} == {"done"}
    for run_id in states:
        folder = whole.multirun / "runs" / run_id
        assert json.loads((folder / "summary.json").read_text())["steps"] == 12
        assert json.loads((folder / "provenance.json").read_text())["packages"]["hydra-core"]
        assert (folder / "attempts/1/stdout.log").read_text() == "walked\n"
        assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step_000008", "step_000012"}
        assert not (folder / "claim.json").exists()


def test_a_killed_worker_is_lost_and_its_run_taken_up_again(whole, sweeps):
    launcher = sweeps.start_held(*SMALL)
    checkpoint = until(lambda: list(sweeps.multirun.glob("runs/*/checkpoints/step_*")))[0]
    victim = checkpoint.parents[1].name
    os.kill(sweeps.states()[victim]["pid"], signal.SIGKILL)
    sweeps.release()
    output = ended(launcher)
    assert f"{victim} lost: signal 9 (SIGKILL); resuming it" in output
    assert sweeps.values() == whole.values()
    state = sweeps.states()[victim]
    assert (state["state"], state["attempt"], state["ends"]) == ("done", 2, {"lost": 1})
    assert not list(sweeps.multirun.glob("runs/*/.tmp-*"))


def test_after_a_killed_launcher_no_worker_lives_long_and_nothing_runs_twice(whole, sweeps):
    launcher = sweeps.start_held(*SMALL)
    until(lambda: list(sweeps.multirun.glob("runs/*/checkpoints/step_*")))
    launcher.kill()
    # At once: the next launcher waits for the orphans to let go.
    code, output = sweeps.run(*SMALL)
    assert code == 0, output
    assert not sweeps.alive()
    assert sweeps.values() == whole.values()
    assert {state["state"] for state in sweeps.states().values()} == {"done"}


def test_an_orphan_saves_a_checkpoint_and_says_why(sweeps):
    launcher = sweeps.start_held(*SMALL)
    until(lambda: len(sweeps.logging()) == 2)
    launcher.kill()
    until(lambda: not sweeps.alive())
    preempted = [state for state in sweeps.states().values() if state["state"] == "preempted"]
    assert [state["cause"] for state in preempted] == ["launcher gone"] * 2


def test_two_launchers_never_run_one_run_twice(whole, sweeps):
    first = sweeps.start(*SMALL, STEPS_SECONDS="0.05")
    second = sweeps.start(*SMALL, STEPS_SECONDS="0.05")
    for process in (first, second):
        ended(process)
    assert sweeps.values() == whole.values()
    assert {state["attempt"] for state in sweeps.states().values()} == {1}


def test_interrupted_once_the_runs_checkpoint_and_the_command_goes_on_later(whole, sweeps):
    launcher = sweeps.start_held(*SMALL)
    until(lambda: len(sweeps.logging()) == 2)
    launcher.send_signal(signal.SIGINT)
    ended(launcher, 1)
    kinds = sorted(state["state"] for state in sweeps.states().values())
    assert kinds == ["planned", "planned", "preempted", "preempted"]
    assert sweeps.run(*SMALL)[0] == 0
    assert sweeps.values() == whole.values()


def test_failures_say_what_happened_and_are_not_taken_up_again(sweeps):
    ends = json.dumps({"1": "raise", "2": "diverge", "3": "exit"})
    code, output = sweeps.run(*SMALL, STEPS_END=ends)
    assert code == 1
    planned = json.loads((sweeps.multirun / "adhoc/plan.json").read_text())["runs"]
    by_seed = {entry["seed"]: sweeps.states()[entry["id"]] for entry in planned}
    found = [tuple(by_seed[seed][key] for key in ("state", "kind", "attempt", "devices")) for seed in range(4)]
    failed = [("failed", "exception", 1, 1), ("diverged", "diverged", 1, 1), ("failed", "lost", 3, 1)]
    assert found == [("done", None, 1, 1), *failed]
    assert by_seed[1]["cause"] == "ValueError: seed 1 ends here"
    assert list(by_seed[3]["device_seconds"]) == ["1", "2", "3"]
    assert "raise ValueError" in by_seed[1]["error"]["traceback"]
    assert by_seed[3]["cause"] == "exit code 7 without a terminal state (lost 3 times)"
    code, output = sweeps.run(*SMALL)
    assert "RAN \n" in output


def test_over_its_time_a_run_saves_a_checkpoint_and_goes_on_while_it_gets_further(whole, sweeps):
    code, output = sweeps.run(*SMALL, "seed=0,1", "cluster.limit_s=1", STEPS_SECONDS="0.2")
    assert code == 0, output
    assert sweeps.values() == {run_id: whole.values()[run_id] for run_id in sweeps.states()}
    assert [set(state["ends"]) for state in sweeps.states().values()] == [{"time_out"}] * 2, output


def test_a_run_that_does_not_stop_is_killed_at_its_limit(sweeps):
    limits = ("cluster.limit_s=1", "cluster.grace_s=0.5", "seed=0")
    code, _ = sweeps.run(*SMALL, *limits, STEPS_END=json.dumps({"0": "deaf"}))
    (state,) = sweeps.states().values()
    assert (code, state["state"], state["kind"]) == (1, "failed", "time_out")
    assert state["cause"] == "over the limit of 1 s for an attempt; signal 9 (SIGKILL)"


def test_interrupted_twice_the_runs_are_killed_and_the_command_goes_on_later(whole, sweeps):
    launcher = sweeps.start(*SMALL, STEPS_END=json.dumps({"0": "hang", "1": "hang"}))
    until(lambda: len(sweeps.logging()) == 2)
    launcher.send_signal(signal.SIGINT)
    assert until(lambda: "stopping" in launcher.stdout.readline())
    launcher.send_signal(signal.SIGINT)
    ended(launcher, 1)
    killed = [state for state in sweeps.states().values() if state["state"] != "planned"]
    how = ("preempted", "interrupted twice; signal 9 (SIGKILL)")
    assert [(state["state"], state["cause"]) for state in killed] == [how] * 2
    assert sweeps.run(*SMALL)[0] == 0
    assert sweeps.values() == whole.values()


def test_what_a_worker_started_ends_with_it(sweeps):
    sweeps.run(*SMALL, "seed=3", "cluster.retry.lost=0", STEPS_END=json.dumps({"3": "orphan"}))
    (pid,) = (int(path.read_text()) for path in sweeps.multirun.glob("runs/*/child"))
    until(lambda: lifecycle.process_start(pid) is None)


def test_five_failures_in_a_row_with_one_cause_stop_the_rest(sweeps):
    """Each message holds another response."""
    ends = json.dumps({str(seed): "words" for seed in range(12)})
    seeds = f"seed={','.join(map(str, range(12)))}"
    code, output = sweeps.run("method=c0_grpo", seeds, "trainer.steps=4", "cluster.slots=1", STEPS_END=ends)
    assert code == 1
    assert "5 failures in a row with the same cause" in output and "7 runs were not submitted" in output
    assert "steps.py:" in output
    kinds = [state["state"] for state in sweeps.states().values()]
    assert (kinds.count("failed"), kinds.count("planned")) == (5, 7)


def test_a_folder_that_is_removed_meanwhile_ends_no_other_run(sweeps):
    launcher = sweeps.start_held(*SMALL, "cluster.slots=1")
    until(sweeps.logging)
    waiting = [name for name, state in sweeps.states().items() if state["state"] == RunState.PLANNED]
    shutil.rmtree(sweeps.multirun / "runs" / waiting[-1])
    sweeps.release()
    output, _ = launcher.communicate()
    assert f"{waiting[-1]} was deleted; the same command creates it again" in output
    assert [state["state"] for state in sweeps.states().values()] == ["done"] * 3
    code, output = sweeps.run(*SMALL)
    assert code == 0 and f"RAN {waiting[-1]}\n" in output

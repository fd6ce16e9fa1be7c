"""cancel and resume: what waits ends at once, what runs through its worker, and only `resume` takes it up again."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys

import pytest

from launcher import files
from launcher.__main__ import main
from launcher.commands.resume import _overrides, reset
from launcher.planning import freeze
from launcher.run import lifecycle, stop_request
from launcher.run.folder import checkpoints, run_folder
from launcher.run.lifecycle import Claim, FailureKind, RunState, State, WorkerExit, read_state, write_state
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make
from tests.launcher.made import execute, make_checkpoint, make_plan, make_run
from tests.launcher.steps import Preempted
from tests.launcher.test_sweep import SMALL
from tests.results import only_state
from tests.waiting import ended, until


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
    assert (state["error"], state["state"]) == (None, "cancelled")
    assert re.match(r"cancelled by \S+ on \S+ at \d{4}-\d\d-\d\d \d\d:\d\d", state["cause"])
    last = [step for step, _ in sweeps.values()[victim.name]][-1]
    assert max(path.name for path in victim.glob("checkpoints/*")) == f"step_{last:06d}"
    assert {state["state"] for name, state in sweeps.states().items() if name != victim.name} == {"done"}
    _, output = sweeps.run(*SMALL)
    assert "RAN \n" in output


@pytest.mark.processes
def test_a_request_reaches_a_worker_that_no_signal_can_reach(sweeps):
    """As on another host: only the file system is shared."""
    launcher = sweeps.start_held(*SMALL, "seed=0")
    victim = until(sweeps.logging)[0]
    with lifecycle.locked(victim):
        stop_request.ask(victim, lifecycle.read_claim(victim), FailureKind.CANCELLED, "somebody elsewhere")
    launcher.communicate()
    state = only_state(sweeps.multirun)
    assert (state["state"], state["cause"]) == ("cancelled", "somebody elsewhere")


def asked_to_stop(config, run):
    """A training whose worker is asked to stop, for the reason that the run's folder has."""
    run.log(1, {"value": 1})
    with lifecycle.locked(run.folder):
        kind = FailureKind((run.folder / "reason").read_text())
        stop_request.send(run.folder, lifecycle.read_claim(run.folder), kind, "the cluster")
    until(run.stop_requested)
    raise Preempted("stopped after step 1")


@pytest.mark.parametrize(
    ("kind", "state", "code"),
    [
        (FailureKind.NODE_FAILURE, RunState.LOST, WorkerExit.PREEMPTED),
        (FailureKind.EXTERNALLY_CANCELLED, RunState.PREEMPTED, WorkerExit.PREEMPTED),
        (FailureKind.CANCELLED, RunState.CANCELLED, WorkerExit.CANCELLED),
    ],
)
def test_a_worker_that_was_asked_to_stop_ends_as_it_says(tmp_path, kind, state, code):
    planned = make("method=c0_grpo", "seed=0", f"multirun={tmp_path}")
    freeze.freeze(planned)
    folder = run_folder(tmp_path, next(iter(planned.runs)))
    (folder / "reason").write_text(kind)
    assert execute(folder, f"{__name__}:asked_to_stop") == code
    ended = read_state(folder)
    assert (ended.state, ended.failure_kind, ended.message) == (state, kind, "the cluster")


@pytest.mark.processes
def test_a_cancelled_run_whose_worker_dies_is_cancelled(sweeps):
    launcher = sweeps.start(*SMALL, "seed=0", "cluster.grace_s=0.5", STEPS_END='{"0": "hang"}')
    victim = until(sweeps.logging)[0]
    assert stop_request.cancel(sweeps.multirun, victim.name) == "asked"
    launcher.communicate()
    state = only_state(sweeps.multirun)
    assert state["state"] == "cancelled" and state["cause"].endswith("; signal 9 (SIGKILL)")


@pytest.mark.processes
def test_a_request_that_came_too_late_still_keeps_the_run_from_being_taken_up_again(sweeps):
    code, output = sweeps.run(*SMALL, "seed=0", "cluster.retry.exception=3", STEPS_END='{"0": "late"}')
    assert code == 1, output
    state = only_state(sweeps.multirun)
    assert (state["state"], state["cause"], state["attempt"]) == ("cancelled", "too late", 1)


@pytest.mark.processes
def test_a_request_outlives_its_dead_owner_for_the_next_launch(sweeps):
    sweeps.run(*SMALL, "seed=0", "cluster.retry.lost=0", STEPS_END='{"0": "exit"}')
    (folder,) = (sweeps.multirun / "runs").iterdir()
    dead = Claim(socket.gethostname(), 2**30, 1, lifecycle.boot_id(), "dead", 1)
    stop_request.ask(folder, dead, FailureKind.CANCELLED, "nobody wants it")
    for state in (RunState.RUNNING, RunState.PREEMPTED):
        files.create_atomic(folder / "claim.json", json.dumps(vars(dead)))
        write_state(folder, State(folder.name, state, attempt=1))
        assert sweeps.run(*SMALL, "seed=0")[0] == 1
        found = only_state(sweeps.multirun)
        assert (found["state"], found["attempt"]) == ("cancelled", 1)


@pytest.fixture
def multirun(tmp_path):
    failed = {"failure_kind": "exception", "message": "ValueError: x", "failure_counts": {"exception": 1}}
    make_run(tmp_path, "done", RunState.DONE)
    make_run(tmp_path, "wait", RunState.PLANNED, steps=0)
    make_checkpoint(make_run(tmp_path, "half", RunState.PREEMPTED), 4)
    make_run(tmp_path, "fail", RunState.FAILED, **failed)
    make_run(tmp_path, "memo", RunState.FAILED, failure_kind="out_of_memory", message="MemoryError")
    make_plan(tmp_path, "study", {"A": ["done", "wait", "half", "fail", "memo", "none"]})
    return tmp_path


def states(multirun):
    return {name: read_state(run_folder(multirun, name)).state for name in ("done", "wait", "half", "fail", "memo")}


def test_waiting_runs_are_cancelled_at_once_and_ended_ones_stay(multirun, said):
    answers = json.loads(said("cancel study --json", multirun))
    assert answers == {"done": "done", "wait": "cancelled", "half": "cancelled", "fail": "failed", "memo": "failed"}
    assert states(multirun)["wait"] == states(multirun)["half"] == RunState.CANCELLED
    assert [step for step, _ in checkpoints(run_folder(multirun, "half"))] == [4]


def test_some_runs_are_cancelled_by_their_ids_and_the_answer_says_so(multirun, said):
    assert said("cancel wa hal", multirun).splitlines() == ["wait cancelled", "half cancelled", "2 runs: 2 cancelled"]
    assert states(multirun)["fail"] == RunState.FAILED


def test_one_wrong_word_cancels_nothing(multirun, capsys):
    before = states(multirun)
    assert main(["cancel", "wait", "studi", "--multirun", str(multirun)]) == 2
    assert "did you mean study?" in capsys.readouterr().err and states(multirun) == before


def test_of_a_thousand_runs_the_answer_fits_on_a_screen(tmp_path, said):
    ids = [f"r{number:04d}" for number in range(60)]
    for run_id in ids:
        make_run(tmp_path, run_id, RunState.PLANNED, steps=0)
    make_plan(tmp_path, "wide", {"A": ids})
    lines = said("cancel wide", tmp_path).splitlines()
    assert len(lines) < 24 and lines[-1] == "60 runs: 60 cancelled"


def test_a_run_that_is_to_run_again_has_no_cause_and_no_counts(multirun):
    assert reset(multirun, "fail") and not reset(multirun, "done")
    again = read_state(run_folder(multirun, "fail"))
    assert (again.state, again.failure_kind, again.message, again.failure_counts) == (RunState.PLANNED, None, None, {})


@pytest.mark.parametrize(
    "command", ["launch.py -m method=nosuch", "launch.py -m method=c0_grpo 'task=***'", "rm -rf $(things)"]
)
def test_a_command_that_is_no_sound_plan_changes_nothing(multirun, command, capsys, worded):
    make_plan(multirun, "study", {"A": ["done", "fail"]}, f"python {command}" if "launch" in command else command)
    assert main(["resume", "study", "--multirun", str(multirun)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and read_state(run_folder(multirun, "fail")).message == "ValueError: x"
    worded(err)


def test_a_run_that_the_command_plans_no_more_stays_as_it_is(multirun, capsys, worded):
    make_plan(multirun, "study", {"A": ["fail"]}, "python launch.py -m method=c0_grpo")
    assert main(["resume", "study", "--multirun", str(multirun)]) == 1
    worded(capsys.readouterr())
    assert read_state(run_folder(multirun, "fail")).message == "ValueError: x"


def test_the_folder_of_a_command_is_named_once(multirun):
    command = "python launch.py -m seed=0"
    for _ in range(3):
        words = _overrides(multirun, shlex.split(command))
        command = shlex.join(["python", "launch.py", "-m", *words])
    assert words == ["seed=0", f"multirun='{multirun.resolve()}'"]


@pytest.mark.processes  # waits for what does not answer
def test_a_stopped_process_that_holds_a_lock_keeps_no_other_run_from_its_end(multirun, said):
    with lifecycle.locked(run_folder(multirun, "wait")), lifecycle.locked(run_folder(multirun, "fail")):
        answers = json.loads(said("cancel study --json", multirun, code=1))
        with pytest.raises(lifecycle.Locked):
            reset(multirun, "fail")
    assert (answers["wait"], answers["half"]) == ("locked", "cancelled")
    assert [*states(multirun).values()] == ["done", "planned", "cancelled", "failed", "failed"]


def retry(multirun, *words):
    command = [sys.executable, "-m", "launcher", "resume", *words, "--multirun", str(multirun)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_with_nothing_to_retry_nothing_runs(multirun):
    done = retry(multirun, "done", "--json")  # which points standard output elsewhere
    assert done.returncode == 0 and json.loads(done.stdout) == {"retried": [], "commands": [], "exit_code": 0}


@pytest.mark.processes
def test_a_failed_run_is_run_again_by_the_experiments_own_command(sweeps):
    """In a folder of its own with an odd name, though the command named another."""
    small = ("method=c0_grpo", "seed=0,1", "trainer.steps=4", "trainer.checkpoint_every=4", "task.warm_start.steps=3")
    sweeps.run(*small, STEPS_END='{"0": "raise", "1": "raise"}')
    moved = sweeps.multirun.rename(sweeps.multirun.with_name("it's $(moved)"))
    first, second = (path.name for path in (moved / "runs").iterdir())
    done = retry(moved, first, "--json")
    assert done.returncode == 1, done.stderr  # the other still waits for its own retry
    document = json.loads(done.stdout)
    assert document["retried"] == [first] and "launch.py -m method=c0_grpo" in document["commands"][0]
    assert read_state(moved / "runs" / first).state == RunState.DONE
    assert read_state(moved / "runs" / second).state == RunState.FAILED
    assert not sweeps.multirun.exists()


@pytest.mark.processes
def test_an_interruption_ends_the_retry_of_all_experiments(sweeps):
    small = ("method=c0_grpo", "trainer.steps=400", "trainer.checkpoint_every=400", "task.warm_start.steps=3")
    for seed, name in enumerate(("first", "second")):
        sweeps.run(*small, f"seed={seed}", f"experiment.name={name}", STEPS_END=json.dumps({str(seed): "raise"}))
    command = [sys.executable, "-m", "launcher", "resume", "first", "second", "--multirun", str(sweeps.multirun)]
    retrying = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: any(len(path.read_text().splitlines()) > 2 for path in sweeps.multirun.glob("runs/*/metrics.jsonl")))
    retrying.send_signal(signal.SIGINT)
    output = ended(retrying, 130)
    found = {state["id"]: state["state"] for state in sweeps.states().values()}
    assert sorted(found.values()) == ["planned", "preempted"] and "\nsecond:" not in output, output

"""cancel and retry: what is wanted no more, and what is wanted again."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys

import pytest

from launcher.__main__ import main
from launcher.commands.resume import _overrides, reset
from launcher.run import lifecycle
from launcher.run.folder import checkpoints, run_folder
from launcher.run.lifecycle import RunState, read_state
from tests.launcher.conftest import ROOT
from tests.launcher.made import make_checkpoint, make_plan, make_run
from tests.waiting import ended, until


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


def test_waiting_runs_are_cancelled_at_once_and_ended_ones_stay(multirun, capsys):
    assert main(["cancel", "study", "--json", "--multirun", str(multirun)]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert answers == {"done": "done", "wait": "cancelled", "half": "cancelled", "fail": "failed", "memo": "failed"}
    assert states(multirun)["wait"] == states(multirun)["half"] == RunState.CANCELLED
    assert [step for step, _ in checkpoints(run_folder(multirun, "half"))] == [4]


def test_some_runs_are_cancelled_by_their_ids_and_the_answer_says_so(multirun, capsys):
    assert main(["cancel", "wa", "hal", "--multirun", str(multirun)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == ["wait cancelled", "half cancelled", "2 runs: 2 cancelled"]
    assert states(multirun)["fail"] == RunState.FAILED


def test_one_wrong_word_cancels_nothing(multirun, capsys):
    before = states(multirun)
    assert main(["cancel", "wait", "studi", "--multirun", str(multirun)]) == 2
    assert "did you mean study?" in capsys.readouterr().err and states(multirun) == before


def test_of_a_thousand_runs_the_answer_fits_on_a_screen(tmp_path, capsys):
    ids = [f"r{number:04d}" for number in range(60)]
    for run_id in ids:
        make_run(tmp_path, run_id, RunState.PLANNED, steps=0)
    make_plan(tmp_path, "wide", {"A": ids})
    assert main(["cancel", "wide", "--multirun", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 24 and lines[-1] == "60 runs: 60 cancelled"


def retry(multirun, *words):
    command = [sys.executable, "-m", "launcher", "resume", *words, "--multirun", str(multirun)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


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
def test_a_stopped_process_that_holds_a_lock_keeps_no_other_run_from_its_end(multirun, capsys):
    with lifecycle.locked(run_folder(multirun, "wait")), lifecycle.locked(run_folder(multirun, "fail")):
        assert main(["cancel", "study", "--json", "--multirun", str(multirun)]) == 1
        answers = json.loads(capsys.readouterr().out)
        with pytest.raises(lifecycle.Locked):
            reset(multirun, "fail")
    assert (answers["wait"], answers["half"]) == ("locked", "cancelled")
    assert {name: state for name, state in states(multirun).items() if name in ("done", "wait", "fail", "memo")} == {
        **{"done": RunState.DONE, "wait": RunState.PLANNED, "fail": RunState.FAILED, "memo": RunState.FAILED}
    }


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

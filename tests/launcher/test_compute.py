"""The compute of runs: what every attempt took is recorded, failed and lost ones too, and status and plan say it."""

from __future__ import annotations

import json
import os

import pytest

from launcher import files
from launcher.__main__ import main
from launcher.run import lifecycle, stop_request
from launcher.run.folder import run_folder, to_json
from launcher.run.lifecycle import Claim, FailureKind, RunState, State, archive, find_state, read_state, write_state
from tests.launcher.experiments import make
from tests.launcher.made import make_plan, make_run

OWNER = Claim("elsewhere", 1, 1, "boot", "token", 1)


@pytest.fixture
def clock(monkeypatch):
    """The time of day, in a list of one number."""
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


def test_each_attempt_counts_with_its_devices_and_how_it_ended(clock):
    state = lifecycle.submitted(lifecycle.created("aa"), "launch", devices=4)
    clock[0] += 500  # it waits in a queue
    state = lifecycle.started(state, OWNER, "launch", 0)
    clock[0] += 10
    state = lifecycle.ended(state, FailureKind.LOST, "gone", {}, progressed=False)
    clock[0] += 100
    state = lifecycle.submitted(state, "launch", devices=2)
    second = Claim("elsewhere", 1, 1, "boot", "token", 2)
    state = lifecycle.started(state, second, "launch", 0)
    clock[0] += 30
    assert lifecycle.running_seconds(state, clock[0]) == 60
    state = lifecycle.finished(state)
    assert state.device_seconds == {"1": 40.0, "2": 60.0} and lifecycle.running_seconds(state, clock[0]) == 0
    assert lifecycle.unfinished_seconds(state.device_seconds, state.attempt, state.state) == 40
    assert lifecycle.unfinished_seconds(state.device_seconds, state.attempt, RunState.FAILED) == 100


def test_a_clock_that_was_set_back_takes_nothing_away(clock):
    state = lifecycle.started(lifecycle.created("aa"), OWNER, None, 0)
    clock[0] -= 500
    assert lifecycle.finished(state).device_seconds == {"1": 0.0}


def test_a_state_without_attempts_is_written_as_older_versions_did():
    assert {"devices", "device_seconds"}.isdisjoint(to_json(State("aa", RunState.PLANNED)))


def test_a_lost_attempt_counts_until_its_last_sign(tmp_path, clock):
    folder = make_run(tmp_path, "aa", RunState.RUNNING, attempt=1, started=1000.0, devices=2)
    for path in folder.iterdir():
        os.utime(path, (1000.0, 1000.0))
    files.write_json(folder / "claim.json", to_json(OWNER))
    os.utime(folder / "claim.json", (1070.0, 1070.0))
    clock[0] = 90_000.0  # somebody looks the next day
    assert lifecycle.spent_seconds(tmp_path, ["aa"], clock[0]) == {"aa": 140.0}
    state = lifecycle.with_lost_attempt(folder, read_state(folder))
    assert state.device_seconds == {"1": 140.0} and state.state == RunState.RUNNING
    later = lifecycle.ended(state, FailureKind.CANCELLED, "enough", {}, progressed=False)
    assert later.device_seconds == {"1": 140.0}, "it was counted before"
    assert lifecycle.with_lost_attempt(folder, later) is later


def test_cancelling_a_dead_run_does_not_count_the_time_since_its_death(tmp_path, clock):
    folder = make_run(tmp_path, "aa", RunState.RUNNING, attempt=1, started=1000.0)
    for path in folder.iterdir():
        os.utime(path, (1030.0, 1030.0))
    clock[0] = 90_000.0
    assert stop_request.cancel(tmp_path, "aa") == "cancelled"
    assert find_state(folder).device_seconds == {"1": 30.0}


def test_archived_attempts_and_unreadable_runs(tmp_path):
    make_run(tmp_path, "aa", RunState.FAILED, attempt=1, device_seconds={"1": 5.0})
    archive(tmp_path, "aa")
    make_run(tmp_path, "aa", RunState.DONE, attempt=1, device_seconds={"1": 7.0})
    archive(tmp_path, "aa")
    make_run(tmp_path, "aa", RunState.DONE, attempt=2, device_seconds={"1": 1.0, "2": 11.0})
    (make_run(tmp_path, "bb", RunState.DONE) / "state.json").write_text("{")
    assert lifecycle.spent_seconds(tmp_path, ["aa", "bb", "cc"], 0.0) == {"aa": 24.0, "bb": 0.0, "cc": 0.0}


def test_status_says_what_was_spent_and_how_much_of_it_on_failures(tmp_path, capsys):
    make_run(tmp_path, "aa", RunState.DONE, attempt=2, device_seconds={"1": 1800.0, "2": 3600.0})
    make_run(tmp_path, "bb", RunState.FAILED, attempt=1, device_seconds={"1": 900.0})
    running = make_run(tmp_path, "cc", RunState.PLANNED)
    make_plan(tmp_path, "study", {"A": ["aa", "bb"], "B": ["cc", "aa"]})
    main(["status", "study", "--multirun", str(tmp_path)])
    line = "compute until now: 1.75 hours, 0.75 of them in attempts that failed or were interrupted"
    assert line in capsys.readouterr().out.splitlines()
    with lifecycle.locked(running):
        owner = lifecycle.acquire(running, 1)
    write_state(running, lifecycle.started(read_state(running), owner, None, 0))
    started = read_state(running)
    write_state(running, started.replace(started=started.started - 7200))
    main(["status", "study", "--json", "--multirun", str(tmp_path)])
    study = json.loads(capsys.readouterr().out)["study"]
    assert study["device_hours"] == pytest.approx(3.75, abs=0.1) and study["unfinished_device_hours"] == 0.75


def test_plan_says_what_the_attempts_of_its_runs_took(tmp_path, capsys):
    from launcher.planning import freeze

    words = ("method=c0_grpo", "experiment.name=adhoc", "seed=0,1", f"multirun={tmp_path}")
    planned = make(*words)
    freeze.freeze(planned)
    folder = run_folder(tmp_path, next(iter(planned.runs)))
    write_state(folder, read_state(folder).replace(device_seconds={"1": 5400.0}))
    assert main(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert "2 runs, 0 done; their attempts took 1.50 CPU-hours until now\n" in out

"""status: what it counts, how long it says it takes, and what it shows of failures."""

from __future__ import annotations

import json

import pytest

from launcher.__main__ import main
from launcher.run import lifecycle
from launcher.run.catalog import read_plan
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from launcher.status.standing import Index, RunningRun, stand
from launcher.text import clean, duration
from tests.launcher.made import METRIC, make_plan, make_run


def status(multirun, capsys, *words):
    """Exit code and the JSON object."""
    code = main(["status", *words, "--json", "--multirun", str(multirun)])
    return code, json.loads(capsys.readouterr().out)


def screen(multirun, capsys, *words):
    main(["status", *words, "--multirun", str(multirun)])
    return capsys.readouterr().out


@pytest.fixture
def multirun(tmp_path):
    """Two groups: what is done took 2 s a step, of 10 steps a run."""
    make_run(tmp_path, "a1", RunState.DONE, steps=10, value=0.25)
    make_run(tmp_path, "a2", RunState.DONE, steps=10, value=0.75)
    make_run(tmp_path, "b1", RunState.PREEMPTED, steps=4, value=0.5)
    make_run(tmp_path, "b2", RunState.PLANNED, steps=0)
    make_plan(tmp_path, "study", {"A": ["a1", "a2"], "B": ["b1", "b2", "b3"]})
    return tmp_path


def test_states_metric_and_work_left_are_counted_by_group(multirun, capsys, worded):
    code, document = status(multirun, capsys, "study")
    study = document["study"]
    assert (code, study["total"]) == (0, 5)
    assert study["states"] == {"new": 1, "planned": 1, "done": 2, "preempted": 1}
    assert study["groups"] == {"A": {"done": 2}, "B": {"new": 1, "planned": 1, "preempted": 1}}
    assert study["metric"]["name"] == METRIC and study["metric"]["last"] == {"A": 0.5, "B": 0.5}
    # Six steps of b1 and ten each of b2 and b3, at 2 s; nobody is at it, so nobody knows until when.
    assert (study["work_seconds"], study["remaining_seconds"]) == (52.0, None)
    worded(screen(multirun, capsys, "study"))


def test_a_run_that_says_running_but_has_no_owner_is_lost(multirun, capsys):
    folder = run_folder(multirun, "b1")
    write_state(folder, read_state(folder).replace(state=RunState.RUNNING, attempt=2))
    _, document = status(multirun, capsys, "study")
    assert document["study"]["states"]["lost"] == 1
    (failure,) = document["study"]["failures"]
    assert (failure["state"], failure["example"], failure["runs"]) == ("lost", "b1", 1)


def test_a_running_run_has_its_own_number_of_steps(tmp_path):
    folder = make_run(tmp_path, "c1", RunState.RUNNING, steps=3)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("steps: 10", "steps: 6"))
    make_plan(tmp_path, "study", {"C": ["c1"]})
    with lifecycle.locked(folder):
        assert lifecycle.acquire(folder, 1) is not None
    now = stand(tmp_path, read_plan(tmp_path, "study"), Index(tmp_path))
    assert now.running == {"c1": RunningRun(3, 6, 6.0)}  # the longest run of the experiment has 10


def test_failures_are_grouped_by_cause_and_name_the_command_that_shows_more(multirun, capsys, worded):
    for number in range(3):
        failed = {"failure_kind": "exception", "message": f"ValueError: batch of {number} at 0x7f{number}"}
        make_run(multirun, f"f{number}", RunState.FAILED, finished=float(number), **failed)
    make_run(multirun, "g0", RunState.DIVERGED, message="Diverged: value is not finite", failure_kind="diverged")
    make_plan(multirun, "bad", {"F": ["f0", "f1", "f2", "g0"]})
    code, document = status(multirun, capsys, "bad")
    first, second = document["bad"]["failures"]
    assert code == 1
    assert (first["runs"], first["kind"], first["example"]) == (3, "exception", "f2")
    assert (second["runs"], second["state"], second["example"]) == (1, "diverged", "g0")
    worded(screen(multirun, capsys, "bad"))


def test_without_a_name_each_experiment_is_a_row(multirun, capsys, worded):
    make_plan(multirun, "other", {"A": ["a1"]})
    assert set(status(multirun, capsys)[1]) == {"study", "other"}
    worded(screen(multirun, capsys))
    worded(screen(multirun / "empty", capsys))
    assert status(multirun / "empty", capsys) == (0, {})


def test_of_a_hundred_groups_the_done_ones_are_only_counted(tmp_path, capsys, worded):
    groups = {f"G{number:03d}": [f"r{number:03d}"] for number in range(100)}
    for (run_id,) in groups.values():
        make_run(tmp_path, run_id, RunState.PLANNED if run_id == "r050" else RunState.DONE)
    make_plan(tmp_path, "wide", groups)
    worded(screen(tmp_path, capsys, "wide"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.4, "0 s"), (59, "59 s"), (300, "5 min"), (7500, "2 h 5 min"), (86400 * 2 + 3600, "2 d 1 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_what_others_wrote_cannot_steer_a_terminal():
    assert clean("\x1b[2J\x1b]0;title\x07red \x1b[31mtext\x1b[0m\n") == "red text"
    assert clean("10%\r50%\r100% of it\r\n") == "100% of it"
    assert clean("a\x08b\x00") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"

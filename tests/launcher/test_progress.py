"""What the user sees while runs are executed."""

from __future__ import annotations

import os

import pytest

from launcher.commands import sweeper
from launcher.execution import progress
from launcher.execution.progress import Display
from launcher.run import catalog, lifecycle
from launcher.run.folder import cache_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from launcher.status.standing import Index, remaining_seconds, stand
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
    last = "0/3 ended; 1 queued; running: title of aa 4/10, title of bb preparing; about 26 s left"
    assert lines[5:] == [last]


def test_without_a_queue_a_run_that_was_submitted_has_started(look, tmp_path, capsys):
    display = shown(Display(3, tmp_path, look, False))
    display.ended("aa", RunState.DONE, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "aa started  title of aa" and "queued" not in "".join(lines)
    assert lines[-1] == "aa done     title of aa  [1/3]"


def test_what_a_run_builds_for_the_others_is_named_once(look, tmp_path, capsys):
    draft = cache_folder(tmp_path) / "models" / ".ab12.draft"
    draft.mkdir(parents=True)
    display = shown(Display(3, tmp_path, look, False))
    display.tick()
    said = f"building models/ab12 in {cache_folder(tmp_path)}, once for all runs that share it"
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.parametrize("words", [[], ["trainer.steps=3"], ["seed=0,1", "cluster=local"]])
def test_a_command_without_an_experiment_or_a_method_explains_and_runs_nothing(tmp_path, capsys, words):
    assert sweeper.run([*words, f"multirun={tmp_path / 'multirun'}"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "python launch.py -m experiment=quickstart" in err and "bnto_main" in err
    assert not (tmp_path / "multirun").exists()

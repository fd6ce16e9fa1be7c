"""The table of a run's states: every change follows it, and the documentation shows it."""

from __future__ import annotations

import re

import pytest

from launcher.run import lifecycle
from launcher.run.lifecycle import RESUMABLE, RETRYABLE, TRANSITIONS, Event, FailureKind, RunState
from tests.launcher.conftest import ROOT


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "run-states.md").read_text()
    assert lifecycle.document() in page, "python -m launcher.run.lifecycle prints it"


def test_every_state_is_reached_and_every_one_but_done_is_left():
    assert {state for row in TRANSITIONS for state in row.targets} == set(RunState)
    assert {state for row in TRANSITIONS for state in row.sources} == set(RunState) - {RunState.DONE}
    assert set(RunState) == RESUMABLE | RETRYABLE | {RunState.DONE}


def test_a_change_that_the_table_does_not_have_is_refused():
    lifecycle.check(Event.START, RunState.LOST, RunState.RUNNING)
    for event, before, after in (
        (Event.START, RunState.DONE, RunState.RUNNING),
        (Event.CREATE, RunState.LOST, RunState.PLANNED),
        (FailureKind.EXCEPTION, RunState.RUNNING, RunState.LOST),
    ):
        with pytest.raises(ValueError, match=f"{event}: a run does not go from {before} to {after}"):
            lifecycle.check(event, before, after)


def test_no_other_module_changes_a_state():
    changing = re.compile(r"\.replace\([^)]*\bstate=|(?<!class )\bState\(\s*\w")
    for path in (ROOT / "launcher").rglob("*.py"):
        if path.name != "transitions.py":
            assert not changing.search(path.read_text()), path

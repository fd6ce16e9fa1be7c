"""The table of a run's states: every change follows it, and the documentation shows it."""

from __future__ import annotations

import pytest

from launcher.run import lifecycle
from launcher.run.lifecycle import RESUMABLE, RETRYABLE, TRANSITIONS, Event, FailureKind, RunState
from tests.launcher.conftest import ROOT


def document() -> str:
    """The table of transitions, in Markdown; docs/run-states.md has it."""
    rows = ["| event or failure kind | from | to | when |", "| --- | --- | --- | --- |"]
    for event, row in TRANSITIONS.items():
        sources, targets = (", ".join(f"`{state}`" for state in RunState if state in ends) for ends in row[:2])
        rows.append(f"| `{event}` | {sources or '(a new run)'} | {targets} | {row.when} |")
    return "\n".join([*rows, ""])


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "run-states.md").read_text()
    assert document() in page, f"write this table into docs/run-states.md:\n{document()}"


def test_every_state_is_reached_and_every_one_but_done_is_left():
    assert {state for row in TRANSITIONS.values() for state in row.targets} == set(RunState)
    assert {state for row in TRANSITIONS.values() for state in row.sources} == set(RunState) - {RunState.DONE}
    assert set(RunState) == RESUMABLE | RETRYABLE | {RunState.DONE}


def test_a_change_that_the_table_does_not_have_is_refused():
    lifecycle.check_transition(Event.START, RunState.LOST, RunState.RUNNING)
    for event, before, after in (
        (Event.START, RunState.DONE, RunState.RUNNING),
        (Event.CREATE, RunState.LOST, RunState.PLANNED),
        (FailureKind.EXCEPTION, RunState.RUNNING, RunState.LOST),
    ):
        with pytest.raises(ValueError, match=f"{event}: a run does not go from {before} to {after}"):
            lifecycle.check_transition(event, before, after)

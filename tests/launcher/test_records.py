"""The records of a run folder are read as they were written; every change of a state follows the table of the docs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.files import BadRunFolder
from launcher.run import lifecycle
from launcher.run.folder import read_state, write_state
from launcher.run.lifecycle import RESUMABLE, RETRYABLE, TRANSITIONS, Event, FailureKind, RunState
from launcher.run.records import State, parse, to_json
from tests.launcher.conftest import ROOT

TEXTS = st.text(max_size=5)
TIMES = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**40)
STATES = st.builds(
    State,
    id=TEXTS,
    state=st.sampled_from(RunState),
    attempt=st.integers(0, 99),
    started=TIMES,
    host=st.none() | TEXTS,
    pid=st.none() | st.integers(1, 2**22),
    message=st.none() | TEXTS,
    error=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2),
    failure_kind=st.none() | st.sampled_from(FailureKind),
    failure_counts=st.dictionaries(st.sampled_from([str(kind) for kind in FailureKind]), st.integers(0, 9)),
    code=st.dictionaries(TEXTS, TEXTS, max_size=2),
)


@given(STATES)
def test_what_is_written_is_read(state):
    written = json.loads(json.dumps(to_json(state)))
    read = parse(State, Path("state.json"), written)
    assert read == state and asdict(read) == asdict(state) and type(read.state) is RunState


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"format": 1, "id": "aa", "state": "gone"}, "Invalid enum value 'gone' - at `$.state`"),
        ({"format": 1, "id": "aa", "state": "lost", "attempt": "x"}, "Expected `int`, got `str` - at `$.attempt`"),
        ({"format": 1}, "Object missing required field `id`"),
        ({"format": 2}, "Invalid enum value 2 - at `$.format`"),
    ],
)
def test_a_wrong_key_is_named_with_what_is_allowed(tmp_path, value, said):
    with pytest.raises(BadRunFolder) as refused:
        parse(State, tmp_path / "state.json", value)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}/state.json: {said}. Fix: ")
    assert message.endswith("move " + str(tmp_path) + " away; the next launch then runs it from the start")


def test_a_file_of_another_version_with_more_keys_is_read(tmp_path):
    write_state(tmp_path, State("aa", RunState.LOST, failure_kind=FailureKind.EXTERNALLY_CANCELLED, launch_id="t"))
    path = tmp_path / "state.json"
    written = json.loads(path.read_text())
    assert (written["kind"], written["job"], written["ends"]) == ("revoked", "t", {})
    path.write_text(json.dumps({"later": 1, **written}))
    assert read_state(tmp_path).failure_kind is FailureKind.EXTERNALLY_CANCELLED


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
    lifecycle.check(Event.START, RunState.LOST, RunState.RUNNING)
    for event, before, after in (
        (Event.START, RunState.DONE, RunState.RUNNING),
        (Event.CREATE, RunState.LOST, RunState.PLANNED),
        (FailureKind.EXCEPTION, RunState.RUNNING, RunState.LOST),
    ):
        with pytest.raises(ValueError, match=f"{event}: a run does not go from {before} to {after}"):
            lifecycle.check(event, before, after)

"""The records of a run folder: what is written is read, a wrong key is named, and the JSON Schemas are published."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.files import BadRunFolder
from launcher.run.folder import parse, to_json
from launcher.run.lifecycle import FailureKind, RunState, State, read_state, write_state

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

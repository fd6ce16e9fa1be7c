"""What `status` reads of each run."""

from __future__ import annotations

import json

import pytest

from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import RunState
from launcher.status.rows import UNREADABLE, read_rows
from tests.launcher.made import METRIC, make_run


@pytest.fixture
def multirun(tmp_path):
    make_run(tmp_path, "aa", RunState.DONE, steps=4, value=0.25)
    make_run(tmp_path, "bb", RunState.FAILED, steps=2, message="ValueError: x", failure_kind="exception")
    make_run(tmp_path, "cc", RunState.PLANNED, steps=0)
    return tmp_path


def rows(multirun, *metrics):
    return read_rows(multirun, ["aa", "bb", "cc", "dd"], metrics)


def test_rows_hold_states_steps_pace_and_metrics(multirun):
    found = rows(multirun, METRIC, "no/such")
    assert set(found) == {"aa", "bb", "cc"}
    done, failed, planned = found["aa"], found["bb"], found["cc"]
    assert (done.state, done.step, done.step_seconds) == ("done", 4, 2.0)
    assert done.metrics == {METRIC: 0.25, "no/such": None}
    assert (failed.message, failed.failure_kind, failed.step) == ("ValueError: x", "exception", 2)
    assert (planned.step, planned.step_seconds, planned.metrics[METRIC]) == (0, None, None)


def test_the_log_of_a_running_run_is_read_at_every_look(multirun):
    folder = make_run(multirun, "dd", RunState.RUNNING, steps=1)
    assert rows(multirun, METRIC)["dd"].step == 1
    with open(metrics_path(folder), "a") as file:
        file.write(json.dumps({"step": 2, "attempt": 1, "time": 1e9 + 3, METRIC: 0.75}) + "\n" + '{"step": 3, "att')
    row = rows(multirun, METRIC)["dd"]
    assert (row.step, row.step_seconds, row.metrics[METRIC]) == (2, 1.0, 0.75)


def log(steps, attempt=1, pace=1.0, pad=0, **metrics):
    """Lines; of a metric, the values by step."""
    shown = [{key: values[step] for key, values in metrics.items() if step in values} for step in steps]
    about = {"attempt": attempt, "pad": "x" * pad}
    lines = [{"step": step, **about, "time": pace * step, **own} for step, own in zip(steps, shown, strict=True)]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (log(range(1, 201), pad=500, value={step: step for step in range(1, 201)}), (200, 1.0, 200.0)),
        (log(range(1, 151), pad=900, value={50: 0.25, 100: 0.5}), (150, 1.0, 0.5)),
        (log([1, 2, 3], value={2: 0.25, 3: float("nan")}), (3, 1.0, 0.25)),
        (log([1, 2, 3]) + log([4, 5, 6], attempt=2, pace=5.0), (6, 5.0, None)),
    ],
    ids=["a long log is read from its end", "a rare value", "no number", "the last attempt"],
)
def test_step_pace_and_value_are_the_last_ones(multirun, lines, expected):
    metrics_path(run_folder(multirun, "aa")).write_text(lines)
    row = rows(multirun, "value")["aa"]
    assert (row.step, row.step_seconds, row.metrics["value"]) == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"format": 1}', "missing required field `id`"),
        (b"\xff\xfe{", "not JSON"),
        (b'{"format": 1, "id": "a1", "state": "odd"}', "Invalid enum value 'odd' - at `$.state`"),
        (b"", "not JSON"),
        (b'{"format": 1, "id"', "not JSON"),
    ],
)
def test_a_state_that_cannot_be_read_hides_no_other_run(multirun, content, said):
    (run_folder(multirun, "bb") / "state.json").write_bytes(content)
    found = rows(multirun)
    assert (found["bb"].state, found["aa"].state) == (UNREADABLE, RunState.DONE)
    assert said in found["bb"].message

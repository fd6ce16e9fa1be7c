"""The index: a cache that may be deleted, torn or out of date at any moment, and never changes an answer."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from launcher import files
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from launcher.status import standing
from launcher.status.standing import Index
from tests.launcher.made import METRIC, make_run


@pytest.fixture
def multirun(tmp_path):
    make_run(tmp_path, "aa", RunState.DONE, steps=4, value=0.25)
    make_run(tmp_path, "bb", RunState.FAILED, steps=2, message="ValueError: x", failure_kind="exception")
    make_run(tmp_path, "cc", RunState.PLANNED, steps=0)
    return tmp_path


def rows(multirun, *metrics):
    """A look as a new process takes it."""
    seen = Index(multirun)
    found = seen.refresh(["aa", "bb", "cc", "dd"], metrics)
    seen.save()
    return found


def test_rows_hold_states_steps_pace_and_metrics(multirun):
    found = rows(multirun, METRIC, "no/such")
    assert set(found) == {"aa", "bb", "cc"}
    done, failed, planned = found["aa"], found["bb"], found["cc"]
    assert (done.state, done.step, done.step_seconds) == ("done", 4, 2.0)
    assert done.metrics == {METRIC: 0.25, "no/such": None}
    assert (failed.message, failed.failure_kind, failed.step) == ("ValueError: x", "exception", 2)
    assert (planned.step, planned.step_seconds, planned.metrics[METRIC]) == (0, None, None)


def test_a_known_row_is_not_read_again_and_a_changed_state_is(multirun):
    first = rows(multirun, METRIC)
    # Had the second look opened this log, it would see no metric.
    metrics_path(run_folder(multirun, "aa")).unlink()
    assert rows(multirun, METRIC) == first
    failed = run_folder(multirun, "bb")
    write_state(failed, read_state(failed).replace(state=RunState.PLANNED, message=None))
    second = rows(multirun, METRIC)
    assert (second["bb"].state, second["bb"].message, second["aa"]) == ("planned", None, first["aa"])


def test_a_state_of_the_same_size_and_time_in_another_file_is_read_again(multirun):
    rows(multirun)
    path = run_folder(multirun, "aa") / "state.json"
    before = path.stat()
    files.write_atomic(path, path.read_text().replace('"done"', '"lost"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and rows(multirun)["aa"].state == "lost"


def test_the_log_of_a_running_run_is_read_at_every_look(multirun):
    folder = make_run(multirun, "dd", RunState.RUNNING, steps=1)
    assert rows(multirun, METRIC)["dd"].step == 1
    with open(metrics_path(folder), "a") as file:
        file.write(json.dumps({"step": 2, "attempt": 1, "time": 1e9 + 3, METRIC: 0.75}) + "\n" + '{"step": 3, "att')
    row = rows(multirun, METRIC)["dd"]
    assert (row.step, row.step_seconds, row.metrics[METRIC]) == (2, 1.0, 0.75)


def test_another_metric_is_looked_up_without_forgetting_the_first(multirun):
    rows(multirun, METRIC)
    log = metrics_path(run_folder(multirun, "aa"))
    log.write_text(log.read_text().replace(METRIC, "actor/kl_init"))
    assert rows(multirun, "actor/kl_init")["aa"].metrics == {METRIC: None, "actor/kl_init": 0.25}


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
        ('{"step": 1, "time": null}\n{"step": 4, "time": null, "value": 2}\n', (4, None, 2)),
    ],
    ids=["a long log is read from its end", "a rare value", "no number", "the last attempt", "no times"],
)
def test_step_pace_and_value_are_the_last_ones(multirun, lines, expected):
    metrics_path(run_folder(multirun, "aa")).write_text(lines)
    row = rows(multirun, "value")["aa"]
    assert (row.step, row.step_seconds, row.metrics["value"]) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"format": 1, "runs": {"aa": [[1, 2',
        b"[]",
        b'{"format": 999, "runs": {"aa": "of tomorrow"}}',
        b'{"format": 1, "runs": {"aa": 5}}',
        b'{"format": 1, "runs": {"aa": [[1, 2, 3], "done"]}}',
    ],
)
def test_a_torn_or_foreign_index_is_rebuilt(multirun, content):
    first = rows(multirun, METRIC)
    path = standing.index_path(multirun)
    good = path.read_bytes()
    path.write_bytes(content)
    assert rows(multirun, METRIC) == first and json.loads(path.read_bytes()) == json.loads(good)
    path.unlink()
    assert rows(multirun, METRIC) == first and json.loads(path.read_bytes()) == json.loads(good)


def test_an_unchanged_folder_writes_no_index(multirun):
    rows(multirun, METRIC)
    before = standing.index_path(multirun).stat()
    rows(multirun, METRIC)
    assert standing.index_path(multirun).stat().st_ino == before.st_ino


def test_a_vanished_run_leaves_the_index(multirun):
    rows(multirun)
    shutil.rmtree(run_folder(multirun, "bb"))
    # Nobody asks for the vanished one; another has changed.
    changed = run_folder(multirun, "aa")
    write_state(changed, read_state(changed).replace(state=RunState.LOST))
    seen = Index(multirun)
    assert set(seen.refresh(["aa", "cc"])) == {"aa", "cc"}
    seen.save()
    assert set(json.loads(standing.index_path(multirun).read_bytes())["runs"]) == {"aa", "cc"}


def test_of_two_writers_each_writes_a_whole_and_right_index(multirun):
    one, two = Index(multirun), Index(multirun)
    one.refresh(["aa", "bb"])
    two.refresh(["bb", "cc"])
    one.save()
    two.save()
    states = {run_id: row.state for run_id, row in rows(multirun).items()}
    assert states == {"aa": "done", "bb": "failed", "cc": "planned"}


def test_a_folder_that_cannot_be_written_gives_the_same_answer(multirun):
    first = rows(multirun)
    path = standing.index_path(multirun)
    path.unlink()
    path.mkdir()  # in the way of the file, for root too
    assert rows(multirun) == first and path.is_dir()
    assert not list(multirun.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"format": 1}', "missing required field `id`"),
        (b"\xff\xfe{", "not JSON"),
        (b'{"format": 1, "id": "a1", "state": "odd"}', "Invalid enum value 'odd' - at `$.state`"),
    ],
)
def test_a_state_that_cannot_be_read_hides_no_other_run(multirun, content, said):
    (run_folder(multirun, "bb") / "state.json").write_bytes(content)
    found = rows(multirun)
    assert (found["bb"].state, found["aa"].state) == (standing.UNREADABLE, RunState.DONE)
    assert said in found["bb"].message

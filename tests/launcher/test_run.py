"""Run folders: atomic files, torn lines, superseded steps, checkpoints, claims, records and changes of a state."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import files
from launcher.files import BadRunFolder
from launcher.run import evaluations, lifecycle, stop_request
from launcher.run.evaluations import EvaluationRow
from launcher.run.folder import (
    attempt_folder,
    checkpoint_name,
    checkpoints,
    checkpoints_folder,
    create_record,
    histograms_path,
    metrics_path,
    parse,
    responses_path,
    to_json,
)
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import (
    RESUMABLE,
    RETRYABLE,
    TRANSITIONS,
    Event,
    FailureKind,
    Heartbeat,
    RunState,
    State,
    read_state,
    write_state,
)
from launcher.worker import attempt, worker
from launcher.worker.attempt import Attempt
from tests.launcher.conftest import ROOT
from tests.launcher.made import make_checkpoint, read_log
from trainer_ext.backends.protocol import Lost
from trainer_ext.scoring.scores.evaluation import Answer


def line(step, **more):
    return json.dumps({"step": step, "attempt": 1, **more}) + "\n"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "multirun/runs/0123"
    path.mkdir(parents=True)
    write_state(path, State("0123", RunState.PLANNED))
    return path


@pytest.fixture
def mine(folder):
    with lifecycle.locked(folder):
        taken = lifecycle.acquire(folder, 1)
    assert taken is not None
    return taken


@pytest.fixture
def owned(folder, mine):
    beat = Heartbeat(folder, mine, interval=0.01)
    yield Attempt(folder, 1, beat)
    beat.stop()


def steps(path):
    return [record["step"] for record in read_log(path).records]


def test_an_unknown_state_is_refused(folder):
    with pytest.raises(ValueError, match="'finished' is not a valid RunState"):
        write_state(folder, State("0123", "finished"))


def test_a_failed_replacement_leaves_the_old_file(folder):
    with pytest.raises(TypeError):
        files.write_json(folder / "state.json", {"value": object()})
    assert read_state(folder).state == RunState.PLANNED


@pytest.mark.parametrize(("checkpoint", "kept"), [(2, [0, 1, 2]), (None, [])])
def test_what_was_logged_after_the_checkpoint_is_superseded(folder, checkpoint, kept):
    metrics_path(folder).write_text(line(0) + line(1) + line(2) + line(3) + '{"step": 4')
    histograms_path(folder).write_text(line(2, name="h"))
    responses_path(folder).write_text(line(2, id="a") + line(3, id="a") + line(3, id="b"))
    # What a killed process left half written goes.
    (folder / ".tmp-state.json-1-1").write_text("{")
    (folder / ".tmp-collected" / "run-0").mkdir(parents=True)
    if checkpoint:
        make_checkpoint(folder, checkpoint)
        (checkpoints_folder(folder) / ".tmp-step_000003-1").mkdir()
    attempt.prepare(folder, 2)
    assert steps(metrics_path(folder)) == kept
    assert read_log(metrics_path(folder)).torn == 0
    assert steps(responses_path(folder)) == kept[2:]
    moved = (attempt_folder(folder, 2) / "superseded.jsonl").read_bytes()
    assert b'"step": 3' in moved and moved.endswith(b"\n")
    assert [found[0] for found in checkpoints(folder)] == ([checkpoint] if checkpoint else [])
    assert not list(folder.rglob(".tmp-*"))
    once = metrics_path(folder).read_bytes()
    attempt.prepare(folder, 3)
    assert metrics_path(folder).read_bytes() == once
    assert not (attempt_folder(folder, 3) / "superseded.jsonl").exists()


def test_the_log_is_replaced_before_every_attempt(folder):
    """Who was stopped and lost the run without knowing writes into the old file."""
    metrics_path(folder).write_text(line(1))
    make_checkpoint(folder, 1)
    with open(metrics_path(folder), "a") as late:
        attempt.prepare(folder, 2)
        late.write(line(2))
    assert steps(metrics_path(folder)) == [1]


def test_an_evaluation_is_read_back_and_superseded_after_the_checkpoint(owned):
    answers = [Answer("1+1=", "2", 1.0, "2", "test", None), Answer("1+1=", "3", 0.25, "2", "test", 0)]
    for step in (2, 4):
        owned.evaluation(step, answers)
    owned.response(2, "1+1=", "3", 0.25, "2")
    (response,) = read_log(responses_path(owned.folder)).records
    assert evaluations.read(owned.folder, 4) == [
        EvaluationRow(response["id"], "test", None, 1.0),
        EvaluationRow(response["id"], "test", 0, 0.25),
    ]
    make_checkpoint(owned.folder, 2)
    attempt.prepare(owned.folder, 2)
    assert list(evaluations.paths(owned.folder)) == [2]
    assert [path.name for path in (attempt_folder(owned.folder, 2) / "evaluations").iterdir()] == ["000004.json.gz"]
    (evaluations.evaluations_folder(owned.folder) / "000002.json.gz").write_bytes(b"PAR1")
    with pytest.raises(BadRunFolder, match=r"000002\.json\.gz: not an evaluation"):
        evaluations.read(owned.folder, 2)


def test_of_two_who_create_a_run_one_does(folder):
    assert not create_record(folder / "state.json", State("0123", RunState.CANCELLED))
    assert read_state(folder).state == RunState.PLANNED
    assert not list(folder.glob(".tmp-*"))


def test_a_response_is_a_line_and_its_prompt_is_known_by_its_content(owned):
    for step, prompt, response in ((10, "1+1=", "2"), (20, "1+1=", "\x00<b>\u202e\n"), (20, "1+2=", "\ud800")):
        owned.response(step, prompt, response, 1.0, "2")
    owned.sync()
    log = read_log(responses_path(owned.folder))
    assert log.torn == 0 and [one["response"] for one in log.records] == ["2", "\x00<b>\u202e\n", "\ud800"]
    first, again, other = (one["id"] for one in log.records)
    assert first == again != other
    assert {"step", "attempt", "id", "prompt", "response", "reward", "answer"} == set(log.records[0])


@pytest.mark.parametrize(("kept", "left"), [(1, [10]), (2, [5, 10]), (9, [1, 5, 10])])
def test_only_the_newest_complete_checkpoints_stay(owned, kept, left):
    owned.checkpoints_kept = kept
    for step in (1, 5, 10):
        with owned.checkpoint(step) as path:
            (path / "weights").write_text(str(step))
    with pytest.raises(RuntimeError), owned.checkpoint(15) as path:
        (path / "weights").write_text("half")
        raise RuntimeError("out of memory")
    found = owned.latest_checkpoint()
    assert found[0] == 10 and (found[1] / "weights").read_text() == "10"
    assert sorted(path.name for path in found[1].parent.iterdir()) == [checkpoint_name(step) for step in left]


def test_a_second_checkpoint_of_a_step_never_leaves_a_moment_without_one(owned):
    for text in ("first", "second"):
        with owned.checkpoint(5) as path:
            (path / "weights").write_text(text)
            assert text == "first" or owned.latest_checkpoint()[0] == 5
    assert (owned.latest_checkpoint()[1] / "weights").read_text() == "first"
    assert [path.name for path in checkpoints_folder(owned.folder).iterdir()] == ["step_000005"]


def test_a_run_has_one_owner(folder, mine):
    with lifecycle.locked(folder):
        assert lifecycle.acquire(folder, 2) is None
        lifecycle.release_claim(folder, mine)
        assert lifecycle.acquire(folder, 2) is not None


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"process_start": 1}])
def test_a_claim_of_a_process_that_is_gone_is_taken_over_at_once(folder, mine, change):
    files.write_json(folder / "claim.json", asdict(replace(mine, **change)))
    with lifecycle.locked(folder):
        taken = lifecycle.acquire(folder, 2)
    assert taken is not None and lifecycle.owns(folder, taken)


@pytest.fixture
def elsewhere(folder, mine):
    """A claim of another host's process."""
    files.write_json(folder / "claim.json", asdict(replace(mine, host="elsewhere", pid=2**22 + 1)))
    return folder / "claim.json"


def test_who_waits_for_a_lock_gives_up_in_time(folder):
    """Its holder may be a stopped process."""
    with (
        lifecycle.locked(folder),
        pytest.raises(lifecycle.Locked, match=r"runs/0123: another process has held its lock"),
        lifecycle.locked(folder, 0.05),
    ):
        pass
    with lifecycle.locked(folder, 0.05):
        pass


def test_on_another_host_a_run_is_free_once_somebody_watched_the_silence_after_its_last_beat(
    folder, elsewhere, monkeypatch
):
    clock, witness = [1000.0], lifecycle.Witness(silence=10)
    monkeypatch.setattr(lifecycle, "uptime", lambda: clock[0])
    with lifecycle.locked(folder):
        for beat in range(3):  # at times long past: a clock may have been set
            os.utime(elsewhere, (beat, beat))
            for _ in range(2):
                assert lifecycle.acquire(folder, 2, witness) is None
                clock[0] += 6
        assert lifecycle.acquire(folder, 2, witness) is not None


@pytest.mark.parametrize("age", [0, 60])
def test_who_may_not_write_still_learns_of_an_owner_on_another_host(mine, age):
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders let nobody else in
        place = Path(name)
        other = replace(mine, host="elsewhere")
        files.write_json(place / "claim.json", asdict(other))
        os.utime(place / "claim.json", (time.time() - age,) * 2)
        place.chmod(0o555)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)
        try:
            assert lifecycle.is_alive(place, other) == (age == 0)
        finally:
            os.seteuid(user)
            place.chmod(0o755)
        assert not (place / ".lock").exists()


def test_a_zombie_is_gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert lifecycle.process_start(child.pid) is None
    child.wait()
    assert lifecycle.process_start(os.getpid()) is not None


def test_a_full_disk_leaves_whole_lines_and_the_log_goes_on_when_there_is_space(owned, monkeypatch):
    write = os.write

    def full(handle, data):
        write(handle, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    owned.log(1, {"value": 1.0})
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "write", full)
        owned.log(2, {"value": 1.0})
    owned.log(2, {"value": 1.0})
    assert steps(metrics_path(owned.folder)) == [1, 2] and read_log(metrics_path(owned.folder)).torn == 0


def test_the_readers_need_only_the_standard_library():
    code = "import sys, launcher.run.folder; print({'yaml', 'omegaconf', 'hydra', 'rich'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_who_lost_the_claim_stops_writing(folder, mine, owned):
    owned.log(1, {"value": 1.0})
    files.write_json(folder / "claim.json", asdict(replace(mine, token="another")))
    assert owned._heartbeat.lost.wait(10)
    assert owned.stop_requested()
    with pytest.raises(lifecycle.ClaimLost):
        owned.log(2, {"value": 1.0})
    with pytest.raises(lifecycle.ClaimLost), owned.checkpoint(2):
        pass
    assert steps(metrics_path(folder)) == [1] and not checkpoints(folder)


def test_who_was_stopped_looks_before_it_writes(folder, mine):
    """The heartbeat's thread may wake later than the trainer's."""
    beat = Heartbeat(folder, mine, interval=3600)
    late = Attempt(folder, 1, beat)
    late.log(1, {"value": 1.0})
    files.write_json(folder / "claim.json", asdict(replace(mine, token="another")))
    beat._confirmed -= 3 * 3600
    with pytest.raises(lifecycle.ClaimLost):
        late.log(2, {"value": 1.0})
    assert steps(metrics_path(folder)) == [1]
    beat.stop()


def test_a_request_to_stop_is_heeded_by_the_attempt_it_was_meant_for(folder, mine, owned):
    stop_request.ask(folder, replace(mine, token="earlier"), FailureKind.CANCELLED, "somebody")
    owned.check_stop_request()
    assert not owned.stop_requested()
    owned.request_stop("signal 15")
    stop_request.ask(folder, mine, FailureKind.CANCELLED, "somebody")
    owned.check_stop_request()
    assert owned.stop_requested() and (owned.stop_kind, owned.stop_message) == ("cancelled", "somebody")


@pytest.mark.parametrize("asked", [True, False])
def test_a_process_that_dies_of_the_request_to_stop_is_no_loss(owned, asked):
    """SLURM sends SIGTERM to all processes of a job."""
    running = State("0123", RunState.RUNNING, 1, started=time.time())
    if asked:
        owned.request_stop("signal SIGTERM")
    ended = worker._failed(running, FailureKind.LOST, Lost("a process of Ray died"), owned, Launch())
    assert (ended.state, ended.failure_kind) == (("preempted", "preempted") if asked else ("lost", "lost"))


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
    lifecycle.check_transition(Event.START, RunState.LOST, RunState.RUNNING)
    for event, before, after in (
        (Event.START, RunState.DONE, RunState.RUNNING),
        (Event.CREATE, RunState.LOST, RunState.PLANNED),
        (FailureKind.EXCEPTION, RunState.RUNNING, RunState.LOST),
    ):
        with pytest.raises(ValueError, match=f"{event}: a run does not go from {before} to {after}"):
            lifecycle.check_transition(event, before, after)

"""Every change of a run's state, each checked against the table in lifecycle.py.

The first functions return the new state, for a caller that holds the run's lock and writes it. The others take the lock
and write.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcher.run import claim, compute, stop_request
from launcher.run.folder import last_final_step, read_state, run_folder, write_state
from launcher.run.lifecycle import RESUMABLE, Event, FailureKind, Rules, RunState, check, state_after
from launcher.run.records import Claim, State


def created(run_id: str, prefix: str | None = None, prefix_step: int | None = None) -> State:
    """The first state of a run; prefix: the run whose first steps it takes over, up to `prefix_step`."""
    check(Event.CREATE, None, RunState.PLANNED)
    return State(run_id, RunState.PLANNED, created=time.time(), prefix=prefix, prefix_step=prefix_step)


def submitted(state: State, launch_id: str, devices: int = 0) -> State:
    """A launch gives the run to its scheduler. `devices`: as in the state."""
    check(Event.SUBMIT, state.state, RunState.SUBMITTED)
    return _fresh(state, RunState.SUBMITTED, launch_id).replace(devices=devices)


def started(state: State, owner: Claim, launch_id: str | None, from_step: int) -> State:
    """A worker begins an attempt after that step."""
    check(Event.START, state.state, RunState.RUNNING)
    return _fresh(state, RunState.RUNNING, launch_id).replace(
        attempt=owner.attempt,
        started=time.time(),
        host=owner.host,
        pid=owner.pid,
        from_step=from_step,
        code=state.code if from_step else {},
    )


def finished(state: State, manifest: str | None = None) -> State:
    """The run is done. `manifest`: as in the state."""
    check(Event.FINISH, state.state, RunState.DONE)
    return _timed(state, time.time()).replace(state=RunState.DONE, manifest=manifest)


def ended(
    state: State,
    kind: FailureKind,
    message: str,
    rules: Rules,
    progressed: bool,
    error: Mapping[str, str] | None = None,
) -> State:
    """The attempt ended for this reason. `progressed`: it left a newer checkpoint than it started from."""
    count = state.failure_counts.get(kind, 0) + 1
    after = state_after(kind, count, rules, progressed)
    check(kind, state.state, after)
    if count > 1 and after not in RESUMABLE and kind in rules:
        message = f"{message} ({kind} {count} times)"
    return _timed(state, time.time()).replace(
        state=after,
        failure_kind=kind,
        message=message,
        error=error,
        failure_counts={**state.failure_counts, kind: count},
    )


def retried(state: State) -> State:
    """`resume` makes the run planned again. Its attempts and checkpoints stay; the counts of its failures do not."""
    check(Event.RESUME, state.state, RunState.PLANNED)
    return _fresh(state, RunState.PLANNED, None).replace(failure_counts={})


def _timed(state: State, end: float) -> State:
    """The state of a run whose attempt, if one was running and has no time yet, ended then (unix seconds)."""
    seconds = dict(state.device_seconds)
    if state.state == RunState.RUNNING:
        seconds.setdefault(str(state.attempt), compute.running(state, end))
    return state.replace(finished=end, device_seconds=seconds)


def _fresh(state: State, after: RunState, launch_id: str | None) -> State:
    """The state without what the last attempt left in it."""
    return state.replace(
        state=after, started=None, finished=None, launch_id=launch_id, failure_kind=None, message=None, error=None
    )


# ---------------------------------------------------------------- on the run's folder


def with_lost_attempt(folder: Path, state: State) -> State:
    """The state with the time of an attempt whose process ended without a word: until its last heartbeat.

    The caller holds the folder's lock, knows that the run has no owner, and has not removed the claim.
    """
    if state.state != RunState.RUNNING:
        return state
    return _timed(state, compute.last_sign(folder)).replace(finished=state.finished)


def progressed(folder: Path, state: State) -> bool:
    """Whether the run's newest checkpoint is newer than the one from which its present attempt started."""
    return last_final_step(folder) > (state.from_step or 0)


def withdraw(folder: Path) -> bool:
    """Make a submitted run that has not started planned again; whether that was done. A locked run stays as it is."""
    with suppress(claim.Locked), claim.locked(folder, claim.PATIENCE_S):
        return claim.live_claim(folder) is None and withdraw_unowned(folder)
    return False


def withdraw_unowned(folder: Path) -> bool:
    """`withdraw` for a run without an owner. The caller holds the folder's lock."""
    state = read_state(folder)
    if state.state != RunState.SUBMITTED:
        return False
    check(Event.WITHDRAW, state.state, RunState.PLANNED)
    write_state(folder, state.replace(state=RunState.PLANNED))
    return True


# What `cancel` returns if it asked the run's worker to stop.
ASKED = "asked"


def cancel(multirun: Path, run_id: str) -> str:
    """Cancel a run; what happened: "cancelled", "asked", or the terminal state that the run already had.

    "asked": its worker, on whatever host, saves a checkpoint and ends as `cancelled`. FileNotFoundError: no such run;
    claim.Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = run_folder(multirun, run_id)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: this run does not exist")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no name on this machine
        user = f"user {os.getuid()}"
    message = f"cancelled by {user} on {claim.hostname()} at {time.strftime('%Y-%m-%d %H:%M %Z')}"
    with claim.locked(folder, claim.PATIENCE_S):
        state = read_state(folder)
        if state.state not in RESUMABLE:
            return state.state
        if stop_request.send_to_owner(folder, FailureKind.CANCELLED, message) is not None:
            return ASKED
        state = with_lost_attempt(folder, state)
        claim.discard(folder)
        write_state(folder, ended(state, FailureKind.CANCELLED, message, {}, progressed=False))
        return RunState.CANCELLED


def pending_cancellation(folder: Path, state: State) -> State | None:
    """The cancelled state of a run whose owner died, or ended otherwise, before it saw the request to cancel the run.

    None: there is no such request. The caller holds the folder's lock, and has not removed the claim.
    """
    request = stop_request.find(folder, claim.read_claim(folder))
    if request is None or request.failure_kind != FailureKind.CANCELLED or state.state not in RESUMABLE:
        return None
    return ended(state, FailureKind.CANCELLED, request.message, {}, progressed=False, error=state.error)

"""A request to a running attempt to save a checkpoint and stop: a file in the run's folder, seen on any host.

    multirun/runs/<id>/stop.json       the token of the claim that the request is for, and the reason

The worker checks for it with every heartbeat, and at once after a signal. The request stays in the folder: if the
worker dies without writing a state, it still gives the reason.
"""

from __future__ import annotations

import getpass
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.files import BadRunFolder
from launcher.run import lifecycle
from launcher.run.folder import Record, find_record, run_folder, write_record
from launcher.run.lifecycle import RESUMABLE, Claim, FailureKind, RunState, State, live_claim, read_state, write_state

NAME = "stop.json"


@dataclass(frozen=True)
class StopRequest(Record):
    """stop.json of a run: why its attempt is asked to stop. `token` is that of the claim which the request is for."""

    token: str
    failure_kind: FailureKind
    message: str


def ask(folder: Path, owner: Claim, kind: FailureKind, message: str) -> None:
    """Write a request, in place of an earlier one. The caller holds the folder's lock."""
    write_record(folder / NAME, StopRequest(owner.token, kind, message))


def send(folder: Path, owner: Claim, kind: FailureKind, message: str) -> None:
    """`ask`, and wake the worker if it is on this host. Elsewhere its next heartbeat finds the request."""
    ask(folder, owner, kind, message)
    if lifecycle.is_here(owner):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(owner.pid, signal.SIGTERM)


def send_to_owner(folder: Path, kind: FailureKind, message: str) -> Claim | None:
    """`send` to the run's owner, which is returned; None: the run has no live owner. The caller holds the lock."""
    if (owner := live_claim(folder)) is not None:
        send(folder, owner, kind, message)
    return owner


def find(folder: Path, owner: Claim | None) -> StopRequest | None:
    """The request for this claim, or None."""
    try:
        request = find_record(StopRequest, folder / NAME)
    except BadRunFolder:
        return None
    return request if request and owner and request.token == owner.token else None


def clear(folder: Path) -> None:
    """Remove a request that an earlier attempt left. The caller holds the folder's lock."""
    (folder / NAME).unlink(missing_ok=True)


# ---------------------------------------------------------------- to cancel a run

# What `cancel` returns if it asked the run's worker to stop.
ASKED = "asked"


def cancel(multirun: Path, run_id: str) -> str:
    """Cancel a run; what happened: "cancelled", "asked", or the terminal state that the run already had.

    "asked": its worker, on whatever host, saves a checkpoint and ends as `cancelled`. FileNotFoundError: no such run;
    Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = run_folder(multirun, run_id)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: this run does not exist")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no name on this machine
        user = f"user {os.getuid()}"
    message = f"cancelled by {user} on {socket.gethostname()} at {time.strftime('%Y-%m-%d %H:%M %Z')}"
    with lifecycle.locked(folder, lifecycle.PATIENCE_S):
        state = read_state(folder)
        if state.state not in RESUMABLE:
            return state.state
        if send_to_owner(folder, FailureKind.CANCELLED, message) is not None:
            return ASKED
        state = lifecycle.with_lost_attempt(folder, state)
        lifecycle.discard_claim(folder)
        write_state(folder, lifecycle.ended(state, FailureKind.CANCELLED, message, {}, progressed=False))
        return RunState.CANCELLED


def pending_cancellation(folder: Path, state: State) -> State | None:
    """The cancelled state of a run whose owner died, or ended otherwise, before it saw the request to cancel the run.

    None: there is no such request. The caller holds the folder's lock, and has not removed the claim.
    """
    request = find(folder, lifecycle.read_claim(folder))
    if request is None or request.failure_kind != FailureKind.CANCELLED or state.state not in RESUMABLE:
        return None
    return lifecycle.ended(state, FailureKind.CANCELLED, request.message, {}, progressed=False, error=state.error)

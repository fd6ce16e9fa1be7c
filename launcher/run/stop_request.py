"""A request to a running attempt to save a checkpoint and stop: a file in the run's folder, seen on any host.

    multirun/runs/<id>/stop.json       the token of the claim that the request is for, and the reason

The worker checks for it with every heartbeat, and at once after a signal. The request stays in the folder: if the
worker dies without writing a state, it still gives the reason.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.files import BadRunFolder
from launcher.run.claim import is_here, live_claim
from launcher.run.lifecycle import FailureKind
from launcher.run.records import Claim, Record, read_record, write_record

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
    if is_here(owner):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(owner.pid, signal.SIGTERM)


def send_to_owner(folder: Path, kind: FailureKind, message: str) -> Claim | None:
    """`send` to the run's owner, which is returned; None: the run has no live owner. The caller holds the lock."""
    owner = live_claim(folder)
    if owner is not None:
        send(folder, owner, kind, message)
    return owner


def find(folder: Path, owner: Claim | None) -> StopRequest | None:
    """The request for this claim, or None."""
    try:
        request = read_record(StopRequest, folder / NAME)
    except (FileNotFoundError, BadRunFolder):
        return None
    return request if owner is not None and request.token == owner.token else None


def clear(folder: Path) -> None:
    """Remove a request that an earlier attempt left. The caller holds the folder's lock."""
    (folder / NAME).unlink(missing_ok=True)

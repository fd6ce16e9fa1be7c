"""A request to a running attempt to checkpoint and stop: a file in the run's folder, seen on any host.

    multirun/runs/<id>/stop.json       the token of the claim that it is meant for, and why

The worker looks with every heartbeat, and at once when a signal comes. A request outlives its worker: when that dies
without a word, it still says why.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.files import write_json
from launcher.run.claim import Claim, is_here

NAME = "stop.json"


@dataclass(frozen=True)
class Stop:
    """Why an attempt is asked to stop: `kind` is one of lifecycle.CAUSES. `token` names the claim."""

    token: str
    kind: str
    cause: str


def ask(folder: Path, claim: Claim, kind: str, cause: str) -> None:
    """Leave a request, in place of an earlier one. The caller holds the folder's lock."""
    write_json(folder / NAME, asdict(Stop(claim.token, kind, cause)))


def send(folder: Path, owner: Claim, kind: str, cause: str) -> None:
    """`ask`, and wake the worker where it is on this host; elsewhere its next heartbeat sees the request."""
    ask(folder, owner, kind, cause)
    if is_here(owner):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(owner.pid, signal.SIGTERM)


def asked(folder: Path, token: str) -> Stop | None:
    """The request meant for that claim, if there is one."""
    try:
        stop = Stop(**json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return stop if stop.token == token else None


def clear(folder: Path) -> None:
    """Remove a request that an earlier attempt left. The caller holds the folder's lock."""
    (folder / NAME).unlink(missing_ok=True)

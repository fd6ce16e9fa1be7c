"""Cancelling a run: at once where it waits, by a request to its worker where it runs. `retry` takes it up again."""

from __future__ import annotations

import os
from pathlib import Path

from launcher import claim, failure, stop
from launcher import run as folders

ASKED = "asked"


def cancel(multirun: Path, run_id: str) -> str:
    """Cancel a run; what happened: "cancelled", "asked", or the terminal state that the run already had.

    "asked": its worker, on whatever host, saves a checkpoint and ends as `cancelled`. FileNotFoundError: no such run.
    """
    folder = folders.run_folder(multirun, run_id)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such run")
    cause = f"cancelled by process {os.getpid()} on {claim.hostname()}"
    with claim.locked(folder):
        state = folders.read_state(folder)
        if state.state not in folders.RESUMABLE:
            return state.state
        owner = claim.live_claim(folder)
        if owner is None:
            claim.discard(folder)
            folders.write_state(folder, failure.ended(state, failure.CANCELLED, cause, {}, progressed=False))
            return folders.CANCELLED
        stop.send(folder, owner, failure.CANCELLED, cause)
    return ASKED

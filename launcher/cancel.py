"""Cancelling a run: at once where it waits, by a request to its worker where it runs. `retry` takes it up again."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.run import claim, lifecycle, stop_request
from launcher.run import folder as folders
from launcher.run.folder import State

ASKED = "asked"


def cancel(multirun: Path, run_id: str) -> str:
    """Cancel a run; what happened: "cancelled", "asked", or the terminal state that the run already had.

    "asked": its worker, on whatever host, saves a checkpoint and ends as `cancelled`. FileNotFoundError: no such run;
    claim.Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = folders.run_folder(multirun, run_id)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such run")
    cause = f"cancelled by process {os.getpid()} on {claim.hostname()}"
    with claim.locked(folder, claim.PATIENCE_S):
        state = folders.read_state(folder)
        if state.state not in folders.RESUMABLE:
            return state.state
        owner = claim.live_claim(folder)
        if owner is None:
            claim.discard(folder)
            folders.write_state(folder, lifecycle.ended(state, lifecycle.CANCELLED, cause, {}, progressed=False))
            return folders.CANCELLED
        stop_request.send(folder, owner, lifecycle.CANCELLED, cause)
    return ASKED


def unheeded(folder: Path, state: State) -> State | None:
    """The state of a run that was to be cancelled and whose owner died, or ended otherwise, before it could heed that.

    None: nobody asked for it. The caller holds the folder's lock, and has not removed the claim.
    """
    owner = claim.read_claim(folder)
    asked = stop_request.asked(folder, owner.token) if owner is not None else None
    if asked is None or asked.kind != lifecycle.CANCELLED or state.state not in folders.RESUMABLE:
        return None
    return lifecycle.ended(state, lifecycle.CANCELLED, asked.cause, {}, progressed=False, error=state.error)

"""Runs that are to be run anew: their folders are moved aside, and nothing of them is deleted.

multirun/archive/<id>.<n>/    the n-th archived folder of the run, complete
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from launcher.files import fsync_folder
from launcher.run import claim
from launcher.run.folder import run_folder, runs_folder


def archive_folder(multirun: Path) -> Path:
    """The folder of all archived runs."""
    return multirun / "archive"


def archived(multirun: Path) -> dict[str, list[Path]]:
    """The archived folders of each run, in no order."""
    folders: dict[str, list[Path]] = {}
    for path in archive_folder(multirun).glob("*"):
        run_id, _, number = path.name.rpartition(".")
        if re.fullmatch("[0-9]+", number):
            folders.setdefault(run_id, []).append(path)
    return folders


def generation(multirun: Path, run_id: str) -> int:
    """Which folder of the run this is, from 1: the number of its newest archived folder, plus one."""
    return 1 + max((int(path.name.rpartition(".")[2]) for path in archived(multirun).get(run_id, ())), default=0)


def archive(multirun: Path, run_id: str) -> Path | None:
    """Move a run's folder to the archive; its new path, or None: a live process owns the run, or it has no folder.

    claim.Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = run_folder(multirun, run_id)
    if not folder.is_dir():
        return None
    parent = archive_folder(multirun)
    parent.mkdir(parents=True, exist_ok=True)
    with claim.locked(folder, claim.PATIENCE_S):
        if claim.live_claim(folder) is not None:
            return None
        target = parent / f"{run_id}.{generation(multirun, run_id)}"
        shutil.move(folder, target)  # the two may be on different disks
    fsync_folder(parent)
    fsync_folder(runs_folder(multirun))
    return target

"""Artifacts that runs share; the first run that needs one builds it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, filled by `build(temporary folder)` once. Other processes wait; an interrupted build leaves nothing."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = folder.parent / f".{folder.name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            build(draft)
            for path in [*draft.rglob("*"), draft]:  # written to the disk before the folder is renamed
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
            draft.rename(folder)
    return folder

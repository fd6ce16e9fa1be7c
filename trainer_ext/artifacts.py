"""Artifacts that runs share, built once by whoever comes first."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder` with what `build(temporary folder)` put there; others wait, and an interrupted build leaves nothing."""
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
            for path in [*draft.rglob("*"), draft]:  # on disk before it gets its name
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
            draft.rename(folder)
    return folder

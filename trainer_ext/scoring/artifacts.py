"""Artifacts that runs share; the first run that needs one builds it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

_seconds = 0.0


def seconds() -> float:
    """The time that this process has spent on building artifacts, or on waiting for another process to build them."""
    return _seconds


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, filled by `build(temporary folder)` once. Other processes wait; an interrupted build leaves nothing."""
    global _seconds
    if folder.exists():
        return folder
    began, before = time.monotonic(), _seconds
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = folder.parent / f".{folder.name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            try:
                build(draft)
                write_out(draft)  # before the folder is renamed
                draft.rename(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    _seconds = before + time.monotonic() - began  # with what the build itself needed to have built
    return folder


def write_out(folder: Path) -> None:
    """Wait until a folder with all that is in it is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

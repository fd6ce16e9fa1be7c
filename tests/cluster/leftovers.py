"""What tests that were killed have left behind: processes, in namespaces of their own or not, and folders."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.run import lifecycle
from tests.waiting import until

#: In the environment of all that a test process starts: its id and start time. Its clusters' folders hold it too.
MARK = "RLSWEEP_TESTS"
_OWNER = "owner"


def mark() -> str:
    """This process's own."""
    return f"{os.getpid()}:{lifecycle.process_start(os.getpid())}"


def folder(parent: Path, prefix: str) -> Path:
    """A new folder that `clear` finds once this process is gone; anybody may look into it, as munge wants."""
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # short: the paths of Ray's sockets are limited
    (made / "new").write_text(mark())
    (made / "new").rename(made / _OWNER)  # whole, for one that clears beside us
    made.chmod(0o755)
    return made


def clear(*patterns: tuple[Path, str]) -> None:
    """Kill the processes of test processes that are gone, and remove their folders: those of (parent, pattern)."""
    until(lambda: not _kill_orphans())
    for parent, pattern in patterns:
        for owner in parent.glob(f"{pattern}/{_OWNER}"):
            if _is_gone(owner.read_text()):
                shutil.rmtree(owner.parent, ignore_errors=True)


def _kill_orphans() -> list[int]:
    found = list(_orphans())
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _orphans() -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            for line in entry.read_bytes().split(b"\0"):  # empty of a zombie
                name, _, value = line.decode(errors="replace").partition("=")
                if name == MARK and _is_gone(value):
                    yield int(entry.parent.name)


def _is_gone(mark: str) -> bool:
    pid, _, start = mark.partition(":")
    return str(lifecycle.process_start(int(pid))) != start

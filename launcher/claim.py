"""One owner a run: a claim is a file created atomically, with host, process and a heartbeat (its modification time).

A claim may be taken over when its owner is known to be dead: on the same host and boot, when the process is gone or
another process has its number; elsewhere, when three heartbeats were missed. Every change happens under a lock on the
run's folder and after reading the claim again, so that of two who see a dead claim only one gets the run. Who finds
another token in the claim has lost it, and stops writing.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.run import fsync_folder, write_json

HEARTBEAT_S = 5.0
MISSED_HEARTBEATS = 3


class ClaimLost(RuntimeError):
    """Another process owns this run now; the finder must not write to it any more."""


@dataclass(frozen=True)
class Claim:
    """What claim.json holds. `process_start` is in clock ticks since boot, as /proc tells it."""

    host: str
    pid: int
    process_start: int
    boot_id: str
    token: str
    attempt: int


def hostname() -> str:
    """This machine's name, as written into claims and states."""
    return socket.gethostname()


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone (a zombie is gone)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return int(fields[19])


def boot_id() -> str:
    """This boot and process namespace: process numbers of two containers on one host must not be compared."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run folder's lock; released by the kernel when the holder dies."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_claim(folder: Path) -> Claim | None:
    """The present claim, or None. An unreadable claim (its writer died in the middle) counts as nobody's, dead."""
    try:
        value = json.loads((folder / "claim.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return Claim(hostname(), -1, -1, boot_id(), "", 0)
    return Claim(**{name: value[name] for name in Claim.__dataclass_fields__})


def is_alive(folder: Path, claim: Claim) -> bool:
    """Whether the claim's owner may still be at work."""
    if claim.host == hostname() and claim.boot_id == boot_id():
        return claim.pid > 0 and process_start(claim.pid) == claim.process_start
    try:
        beat = (folder / "claim.json").stat().st_mtime
    except FileNotFoundError:
        return False
    # The file system's own clock: that of another host may differ from ours.
    clock = folder / ".lock"
    clock.touch()
    return clock.stat().st_mtime - beat < MISSED_HEARTBEATS * HEARTBEAT_S


def live_claim(folder: Path) -> Claim | None:
    """The claim whose owner may still be at work, or None when the run is free."""
    claim = read_claim(folder)
    return claim if claim is not None and is_alive(folder, claim) else None


def acquire(folder: Path, attempt: int) -> Claim | None:
    """Claim a run for this process, or None when another owner is alive. The caller holds the folder's lock."""
    start = process_start(os.getpid())
    assert start is not None
    mine = Claim(hostname(), os.getpid(), start, boot_id(), secrets.token_hex(8), attempt)
    path = folder / "claim.json"
    text = json.dumps(asdict(mine)) + "\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        if live_claim(folder) is not None:
            return None
        write_json(path, asdict(mine))
        return mine
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)
    return mine


def owns(folder: Path, claim: Claim) -> bool:
    """Whether the claim on disk is still this one."""
    present = read_claim(folder)
    return present is not None and present.token == claim.token


def release(folder: Path, claim: Claim) -> None:
    """Give the run up; nothing happens when the claim was lost. The caller holds the folder's lock."""
    if owns(folder, claim):
        (folder / "claim.json").unlink(missing_ok=True)


def discard_dead(folder: Path) -> bool:
    """Remove a dead owner's claim; False when an owner is alive. The caller holds the folder's lock."""
    claim = read_claim(folder)
    if claim is None:
        return True
    if is_alive(folder, claim):
        return False
    (folder / "claim.json").unlink(missing_ok=True)
    return True


class Heartbeat:
    """A thread that touches the claim every few seconds and notices when it was lost."""

    def __init__(self, folder: Path, claim: Claim, interval: float = HEARTBEAT_S) -> None:
        self._folder = folder
        self._claim = claim
        self._interval = interval
        self._end = threading.Event()
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._end.wait(self._interval):
            try:
                if not owns(self._folder, self._claim):
                    self.lost.set()
                    return
                os.utime(self._folder / "claim.json")
            except FileNotFoundError:
                self.lost.set()
                return

    def check(self) -> None:
        """Raise ClaimLost when another process has taken the run."""
        if self.lost.is_set() or not owns(self._folder, self._claim):
            self.lost.set()
            raise ClaimLost(f"{self._folder}: another process took this run over; this one stops writing")

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()

"""A run has one owner: a claim is a file created atomically, with host, process and a heartbeat (its mtime).

A claim may be replaced if its owner is known to be dead. On the same host and boot, the process must have ended, or its
number must belong to another process (a stopped process is alive). For another host, the claim must have been watched
for three heartbeats without one, on a clock that nobody sets. Every change is made under a lock on the run's folder,
after the claim was read again, so that only one of two processes that see a dead claim gets the run. A process that
finds another token in the claim has lost the run, and stops writing.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.files import BadRunFolder, create_atomic, naming
from launcher.run.records import Claim, read_record, to_json

HEARTBEAT_S = 5.0
SILENCE_S = 3 * HEARTBEAT_S
# How long to wait for the lock of a run: its holder may be stopped.
PATIENCE_S = 2.0


class ClaimLost(RuntimeError):
    """Another process owns this run now; this process must not write to it any more."""


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
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """This boot and process namespace: process numbers of two containers on one host must not be compared."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


class Locked(RuntimeError):
    """Another process, perhaps a stopped one, holds the lock of a run's folder for too long."""


@contextmanager
def locked(folder: Path, patience: float | None = None) -> Iterator[None]:
    """Hold the lock of a run's folder. The kernel releases it when its holder dies. Locked: not within `patience` s."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with naming(folder / ".lock"):
            if patience is None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            else:
                _lock(handle, folder, patience)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, patience: float) -> None:
    end = uptime() + patience
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if uptime() > end:
                raise Locked(f"{folder}: another process has held its lock for {patience:g} s") from error
        time.sleep(0.01)


def read_claim(folder: Path) -> Claim | None:
    """The present claim, or None. An unreadable one, whose writer died, counts as the claim of a dead process."""
    try:
        return read_record(Claim, folder / "claim.json")
    except FileNotFoundError:
        return None
    except BadRunFolder:
        return Claim(hostname(), -1, -1, boot_id(), "", 0)


def is_here(claim: Claim) -> bool:
    """Whether the owner is, or was, a process that this one can see."""
    return claim.host == hostname() and claim.boot_id == boot_id()


def is_alive(folder: Path, claim: Claim) -> bool:
    """Whether the claim's owner may still be alive, as far as a single check can tell."""
    if is_here(claim):
        return claim.pid > 0 and process_start(claim.pid) == claim.process_start
    try:
        beat = (folder / "claim.json").stat().st_mtime
    except FileNotFoundError:
        return False
    # Compare with the file system's own clock: that of the other host may differ from ours.
    clock = folder / ".lock"
    try:
        clock.touch()
        now = clock.stat().st_mtime
    except OSError:  # a reader without write permission has only this host's clock
        now = time.time()
    return now - beat < SILENCE_S


def live_claim(folder: Path) -> Claim | None:
    """The claim if its owner may still be alive, else None: the run is free."""
    claim = read_claim(folder)
    return claim if claim is not None and is_alive(folder, claim) else None


class Witness:
    """Decides from repeated checks whether a run's owner is dead, also for an owner on another host.

    A single check would have to compare two times of day. After a clock was set, living owners would seem dead.
    """

    def __init__(self, silence: float = SILENCE_S) -> None:
        self._silence = silence
        self._seen: dict[Path, tuple[str, int, float]] = {}

    def owner(self, folder: Path) -> Claim | None:
        """The claim if its owner may still be alive, else None: the run may be claimed."""
        claim = read_claim(folder)
        if claim is None:
            return None
        if is_here(claim):
            return claim if is_alive(folder, claim) else None
        try:
            beat = (folder / "claim.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None
        token, last, since = self._seen.get(folder, ("", 0, 0.0))
        if (token, last) != (claim.token, beat):
            self._seen[folder] = (claim.token, beat, uptime())
            return claim
        return claim if uptime() - since < self._silence else None


def uptime() -> float:
    """Seconds on a clock that nobody sets and that also counts while the process is stopped or the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def acquire(folder: Path, attempt: int, witness: Witness | None = None) -> Claim | None:
    """Claim a run for this process, or None when another owner may be alive. The caller holds the folder's lock."""
    if (witness or Witness()).owner(folder) is not None:
        return None
    start = process_start(os.getpid())
    assert start is not None
    mine = Claim(hostname(), os.getpid(), start, boot_id(), secrets.token_hex(8), attempt)
    discard(folder)
    # Creation is atomic too, because some network file systems have no locks.
    return mine if create_atomic(folder / "claim.json", json.dumps(to_json(mine)) + "\n") else None


def owns(folder: Path, claim: Claim) -> bool:
    """Whether the claim on disk is still this one."""
    present = read_claim(folder)
    return present is not None and present.token == claim.token


def release(folder: Path, claim: Claim) -> None:
    """Remove this claim, unless it was lost. The caller holds the folder's lock."""
    if owns(folder, claim):
        discard(folder)


def discard(folder: Path) -> None:
    """Remove the claim of an owner that is known to be dead. The caller holds the folder's lock."""
    (folder / "claim.json").unlink(missing_ok=True)


def kill(owner: Claim) -> None:
    """Send SIGKILL to an owner on this host; others cannot be reached."""
    if is_here(owner):
        with suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGKILL)


class Heartbeat:
    """A thread that touches the claim every few seconds. It notices a lost claim, and calls `on_beat` each time."""

    def __init__(self, folder: Path, claim: Claim, interval: float = HEARTBEAT_S) -> None:
        self.claim = claim
        self.on_beat: Callable[[], None] | None = None
        self._folder = folder
        self._interval = interval
        self._end = threading.Event()
        self._confirmed = uptime()
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._end.wait(self._interval):
            try:
                now = uptime()
                if not owns(self._folder, self.claim):
                    self.lost.set()
                    return
                os.utime(self._folder / "claim.json")
                self._confirmed = now
                if self.on_beat is not None:
                    self.on_beat()
            except FileNotFoundError:
                self.lost.set()
                return
            except OSError:  # the file system is away for a while; writers call `confirm` themselves
                continue

    def confirm(self) -> None:
        """Check the claim if the last heartbeat is so old that another process may have claimed the run.

        A process that was stopped, or whose machine slept, checks before it writes.
        """
        if self.lost.is_set() or uptime() - self._confirmed > 2 * self._interval:
            self.check()

    def check(self) -> None:
        """Raise ClaimLost when another process has taken the run."""
        now = uptime()
        if self.lost.is_set() or not owns(self._folder, self.claim):
            self.lost.set()
            raise ClaimLost(f"{self._folder}: another process took over this run, so this process stops writing")
        self._confirmed = now

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()

"""One owner a run: a claim is a file created atomically, with host, process and a heartbeat (its modification time).

A claim may be taken over when its owner is known to be dead: on the same host and boot, when the process is gone or
another process has its number (a stopped process lives); elsewhere, when somebody watched the claim for the time of
three heartbeats, on a clock that nobody sets, and saw none. Every change happens under a lock on the run's folder and
after reading the claim again, so that of two who see a dead claim only one gets the run. Who finds another token in the
claim has lost it, and stops writing.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.files import create_atomic

HEARTBEAT_S = 5.0
SILENCE_S = 3 * HEARTBEAT_S
# How long a command waits for the lock of a run; its holder may be stopped.
PATIENCE_S = 2.0


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
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else int(stat[19])


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name; None when the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat[stat.rindex(")") + 2 :].split()


def is_stopped(claim: Claim) -> bool:
    """Whether the owner is a process of this host that was stopped (SIGSTOP, Ctrl-Z) and waits to go on."""
    if not is_here(claim):
        return False
    stat = _stat(claim.pid)
    return stat is not None and stat[0] in "Tt"


def boot_id() -> str:
    """This boot and process namespace: process numbers of two containers on one host must not be compared."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


class Locked(RuntimeError):
    """Another process, perhaps a stopped one, holds the lock of a run's folder for too long."""


@contextmanager
def locked(folder: Path, patience: float | None = None) -> Iterator[None]:
    """Hold the run folder's lock, which the kernel releases when the holder dies. Locked: not within `patience` s."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
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
    """The present claim, or None. An unreadable claim (its writer died in the middle) counts as nobody's, dead."""
    try:
        value = json.loads((folder / "claim.json").read_text(encoding="utf-8"))
        return Claim(**{name: value[name] for name in Claim.__dataclass_fields__})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return Claim(hostname(), -1, -1, boot_id(), "", 0)


def is_here(claim: Claim) -> bool:
    """Whether the owner is, or was, a process that this one can see."""
    return claim.host == hostname() and claim.boot_id == boot_id()


def is_alive(folder: Path, claim: Claim) -> bool:
    """Whether the claim's owner may still be at work, as far as one look tells."""
    if is_here(claim):
        return claim.pid > 0 and process_start(claim.pid) == claim.process_start
    try:
        beat = (folder / "claim.json").stat().st_mtime
    except FileNotFoundError:
        return False
    # The file system's own clock: that of another host may differ from ours.
    clock = folder / ".lock"
    try:
        clock.touch()
        now = clock.stat().st_mtime
    except OSError:  # a reader who may not write here has no better clock than this host's
        now = time.time()
    return now - beat < SILENCE_S


def live_claim(folder: Path) -> Claim | None:
    """The claim whose owner may still be at work, or None when the run is free."""
    claim = read_claim(folder)
    return claim if claim is not None and is_alive(folder, claim) else None


class Witness:
    """Tells whether a run's owner is dead, also one on another host; asked again and again, it remembers what it saw.

    A single look would compare two times of day, and a clock that is set would make living owners look dead.
    """

    def __init__(self, silence: float = SILENCE_S) -> None:
        self._silence = silence
        self._seen: dict[Path, tuple[str, int, float]] = {}

    def owner(self, folder: Path) -> Claim | None:
        """The claim whose owner may still be at work, or None when the run is free to take."""
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
    """Seconds on a clock that nobody sets, and that goes on while a process is stopped or the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def acquire(folder: Path, attempt: int, witness: Witness | None = None) -> Claim | None:
    """Claim a run for this process, or None when another owner may be alive. The caller holds the folder's lock."""
    if (witness or Witness()).owner(folder) is not None:
        return None
    start = process_start(os.getpid())
    assert start is not None
    mine = Claim(hostname(), os.getpid(), start, boot_id(), secrets.token_hex(8), attempt)
    discard(folder)
    # Atomic by itself, too: some network file systems have no locks.
    return mine if create_atomic(folder / "claim.json", json.dumps(asdict(mine)) + "\n") else None


def owns(folder: Path, claim: Claim) -> bool:
    """Whether the claim on disk is still this one."""
    present = read_claim(folder)
    return present is not None and present.token == claim.token


def release(folder: Path, claim: Claim) -> None:
    """Give the run up; nothing happens when the claim was lost. The caller holds the folder's lock."""
    if owns(folder, claim):
        (folder / "claim.json").unlink(missing_ok=True)


def discard(folder: Path) -> None:
    """Remove the claim of an owner that is known to be dead. The caller holds the folder's lock."""
    (folder / "claim.json").unlink(missing_ok=True)


class Heartbeat:
    """A thread that touches the claim every few seconds, and notices when it was lost or a request to stop came."""

    def __init__(self, folder: Path, claim: Claim, interval: float = HEARTBEAT_S) -> None:
        self.claim = claim
        self.look: Callable[[], None] | None = None  # called with every beat
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
                if self.look is not None:
                    self.look()
            except FileNotFoundError:
                self.lost.set()
                return
            except OSError:  # a file system that is away for a while; who writes meanwhile looks for itself
                continue

    def confirm(self) -> None:
        """Check the claim if the last heartbeat is so old that another process may have taken the run meanwhile.

        A process that was stopped, or whose machine slept, writes nothing before it has looked.
        """
        if self.lost.is_set() or uptime() - self._confirmed > 2 * self._interval:
            self.check()

    def check(self) -> None:
        """Raise ClaimLost when another process has taken the run."""
        now = uptime()
        if self.lost.is_set() or not owns(self._folder, self.claim):
            self.lost.set()
            raise ClaimLost(f"{self._folder}: another process took this run over; this one stops writing")
        self._confirmed = now

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()

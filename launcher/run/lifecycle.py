"""The life of a run: its states, the one table of all transitions between them, and its one owner.

A retry rule says how often a run is resumed after one failure kind; null is without limit. The counts are kept in the
run's state, so they hold over launches, until `resume` clears them. Whether a run may be resumed can be read from its
state alone (`RESUMABLE`); no reader needs the rules.

A run has one owner: a claim is a file created atomically, with host, process and a heartbeat (its mtime). A claim may
be replaced if its owner is known to be dead. On the same host and boot, the process must have ended, or its number must
belong to another process (a stopped process is alive). For another host, the claim must have been watched for three
heartbeats without one, on a clock that nobody sets. Every change is made under a lock on the run's folder, after the
claim was read again, so that only one of two processes that see a dead claim gets the run. A process that finds another
token in the claim has lost the run, and stops writing.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from launcher.files import BadRunFolder, fsync_folder
from launcher.run.folder import (
    FORMAT,
    LATER,
    Record,
    create_record,
    find_record,
    last_final_step,
    metrics_path,
    read_record,
    run_folder,
    runs_folder,
    write_record,
)
from launcher.text import one_line


class RunState(StrEnum):
    """What state.json says of a run."""

    PLANNED = "planned"
    SUBMITTED = "submitted"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DIVERGED = "diverged"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    LOST = "lost"


# Commands call a planned run without a folder `new`. No state file contains this word.
NEW = "new"
# The same command resumes these. A failed run would fail again, so it waits for `resume`.
RESUMABLE = frozenset({RunState.PLANNED, RunState.SUBMITTED, RunState.RUNNING, RunState.PREEMPTED, RunState.LOST})
RETRYABLE = frozenset({RunState.FAILED, RunState.DIVERGED, RunState.CANCELLED})


class FailureKind(StrEnum):
    """Why an attempt ended before the run was done."""

    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    DIVERGED = "diverged"
    PREEMPTED = "preempted"
    TIME_OUT = "time_out"
    STALLED = "stalled"
    LOST = "lost"
    NODE_FAILURE = "node_failure"
    EXTERNALLY_CANCELLED = "revoked"
    DISK_FULL = "disk_full"
    CANCELLED = "cancelled"


Rules = Mapping[str, int | None]


class Ending(NamedTuple):
    """When a failure kind occurs, and what follows: the state of a run that is resumed, and of one that is not.

    `limit` holds if the retry rules do not name the kind: how often the run is resumed, None without limit.
    """

    when: str
    resumed_as: RunState
    ended_as: RunState
    limit: int | None
    sources: frozenset[RunState] = frozenset({RunState.SUBMITTED, RunState.RUNNING})


_RAISED = "the training function raised"
# A worker that a signal stopped says `preempted`; its SLURM job may then correct the kind.
_STOPPED = frozenset({RunState.SUBMITTED, RunState.RUNNING, RunState.PREEMPTED})
_PLANNED, _PREEMPTED, _LOST, _FAILED = RunState.PLANNED, RunState.PREEMPTED, RunState.LOST, RunState.FAILED
#: By default a run is resumed after what was no fault of its own, and not after its own failures.
ENDINGS: Mapping[FailureKind, Ending] = {
    FailureKind.EXCEPTION: Ending(f"{_RAISED} an exception", _PLANNED, _FAILED, 0),
    FailureKind.OUT_OF_MEMORY: Ending("memory ran out on the machine or on a device", _PLANNED, _FAILED, 0),
    FailureKind.DIVERGED: Ending(f"{_RAISED} Diverged", _PLANNED, RunState.DIVERGED, 0),
    FailureKind.PREEMPTED: Ending(
        "the run was asked to stop: by Ctrl-C, a signal or the scheduler", _PREEMPTED, _FAILED, None, _STOPPED
    ),
    FailureKind.TIME_OUT: Ending(
        "the time limit expired; without a newer checkpoint the run fails", _PREEMPTED, _FAILED, None, _STOPPED
    ),
    FailureKind.STALLED: Ending("it made no step for a long time (`cluster.stall_s`)", _PREEMPTED, _FAILED, None),
    FailureKind.EXTERNALLY_CANCELLED: Ending(
        "its job was cancelled with the scheduler's own command", _PREEMPTED, _FAILED, None, _STOPPED
    ),
    FailureKind.DISK_FULL: Ending("no space was left on the disk", _PREEMPTED, _PREEMPTED, None),
    FailureKind.LOST: Ending("its process ended without a terminal state", _LOST, _FAILED, None),
    FailureKind.NODE_FAILURE: Ending("its node failed", _LOST, _FAILED, None),
    FailureKind.CANCELLED: Ending("`cancel` named the run", RunState.CANCELLED, RunState.CANCELLED, 0, RESUMABLE),
}


class Event(StrEnum):
    """What changes a run's state, besides the failure kinds."""

    CREATE = "create"
    SUBMIT = "submit"
    WITHDRAW = "withdraw"
    START = "start"
    FINISH = "finish"
    RESUME = "resume"


class Transition(NamedTuple):
    """One row of the table: an event leads from any of `sources` (none: a new run) to one of `targets`."""

    sources: frozenset[RunState]
    targets: frozenset[RunState]
    when: str


_SUBMITTED, _RUNNING = frozenset({RunState.SUBMITTED}), frozenset({RunState.RUNNING})
_ONLY_PLANNED = frozenset({_PLANNED})
TRANSITIONS: Mapping[Event | FailureKind, Transition] = {
    Event.CREATE: Transition(frozenset(), _ONLY_PLANNED, "a launch freezes the plan"),
    Event.SUBMIT: Transition(RESUMABLE, _SUBMITTED, "a launch gives the run to its scheduler"),
    Event.WITHDRAW: Transition(_SUBMITTED, _ONLY_PLANNED, "the launch stops before the run has started"),
    Event.START: Transition(RESUMABLE, _RUNNING, "a worker claims the run"),
    Event.FINISH: Transition(_RUNNING, frozenset({RunState.DONE}), "the training function returned"),
    **{
        kind: Transition(ending.sources, frozenset({ending.resumed_as, ending.ended_as}), ending.when)
        for kind, ending in ENDINGS.items()
    },
    Event.RESUME: Transition(RETRYABLE, _ONLY_PLANNED, "`resume` named the run"),
}


def check_transition(event: Event | FailureKind, before: str | None, after: str) -> None:
    """Raise ValueError if the table has no transition of this event between these states; None: a new run."""
    row = TRANSITIONS[event]
    if after not in row.targets or (before not in row.sources if row.sources else before is not None):
        raise ValueError(f"{event}: a run does not go from {before} to {after}")


# ---------------------------------------------------------------- which kind an error or an exit code is


class WorkerExit(IntEnum):
    """The exit codes of a worker. BUSY: another process owns the run, or the run needs no work."""

    DONE = 0
    FAILED = 1
    DIVERGED = 3
    BUSY = 4
    CANCELLED = 5
    DISK_FULL = 74
    PREEMPTED = 75


_LONGEST = 1000
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Libraries in C++ and Rust report failed allocations, and failed writes of checkpoints, without a number.
_NO_MEMORY_TEXT = r"(?i)out of memory|can't allocate memory"
_NO_SPACE_TEXT = (
    r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing|iostream error"
    r"|inline_container\.cc.*unexpected pos"
)
# The files of Python itself and of installed packages.
_INSTALLED = rf"{re.escape(sysconfig.get_path('stdlib'))}/|.*/(?:site|dist)-packages/|<frozen "
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that no space, or no quota, is left."""
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    return re.search(_NO_SPACE_TEXT, str(error)) is not None


def kind_of(error: BaseException, failures: Mapping[str, FailureKind]) -> FailureKind:
    """The failure kind of an exception. failures: of registered classes, as module:class, and their subclasses."""
    for base in type(error).__mro__:
        if kind := failures.get(f"{base.__module__}:{base.__qualname__}"):
            return kind
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and re.search(_NO_MEMORY_TEXT, str(error))):
        return FailureKind.OUT_OF_MEMORY
    # If an error was raised while another was handled, the first one is the reason.
    chain: BaseException | None = error
    while chain is not None:
        if is_disk_full(chain):
            return FailureKind.DISK_FULL
        chain = chain.__cause__ or chain.__context__
    return FailureKind.EXCEPTION


def of_exit(code: int | None, oom_killed: bool) -> tuple[FailureKind, str]:
    """Kind and message for a process that left no terminal state. `oom_killed`: the kernel killed one for memory."""
    if code is None:
        return FailureKind.LOST, "the worker's exit code is unknown"
    if code == WorkerExit.DISK_FULL:
        return FailureKind.DISK_FULL, "No space left on device, not even for the run's state"
    if code >= 0:
        return FailureKind.LOST, f"exit code {code} without a terminal state"
    if code == -signal.SIGKILL and oom_killed:
        return FailureKind.OUT_OF_MEMORY, f"{signal_name(-code)}: the kernel killed it because memory ran out"
    # A worker that dies of a request to stop had not installed its signal handler yet.
    return (FailureKind.PREEMPTED if -code in _STOP_SIGNALS else FailureKind.LOST), signal_name(-code)


def signal_name(number: int) -> str:
    """`signal 15 (SIGTERM)`."""
    return f"signal {number} ({signal.Signals(number).name})" if number in set(signal.Signals) else f"signal {number}"


def described(error: BaseException) -> str:
    """An exception on one line, shortened if its message is pages long; the state's `error` has all of it."""
    text = f"{type(error).__name__}: {one_line(str(error))}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def place(error: BaseException) -> str:
    """Where an exception was raised, or the one that it was raised from: `FILE:LINE in FUNCTION`.

    It is the innermost frame of code that belongs neither to Python nor to an installed package, if there is one. "" if
    the exception was not raised.
    """
    while error.__cause__ is not None and error.__cause__.__traceback__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    written = [frame for frame in frames if not re.match(_INSTALLED, frame.filename)]
    return "".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in (written or frames)[-1:])


# ---------------------------------------------------------------- the records of a run's state and of its owner


@dataclass(frozen=True)
class State(Record):
    """state.json of a run. Times are unix seconds; `error` has type, message, place, traceback (last 50
    lines); older ones have no place.

    `launch_id` is the token of the launch that submitted the run. `failure_kind` and `message` say why the last attempt
    ended; `failure_counts` counts the attempts that ended so, by kind. `from_step` is the step after which the attempt
    began. `code` has the id of the record in multirun/code of each attempt whose steps count. `devices` is how many
    devices an attempt holds on all its nodes (without devices, how many nodes), 0 if no launch said so.
    `device_seconds` has the wall time of each attempt that has ended times `devices` (at least 1), by its number.
    `prefix` is the id of the run whose first `prefix_step` steps this run takes over; its attempts count here, too.
    `manifest` is the sha256 of the manifest.json of a done run; an older version wrote none.
    """

    format: Literal[1] = field(default=FORMAT, kw_only=True)
    id: str
    state: RunState
    attempt: int = 0
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    host: str | None = None
    pid: int | None = None
    launch_id: str | None = None
    message: str | None = None
    error: Mapping[str, str] | None = None
    failure_kind: FailureKind | None = None
    failure_counts: Mapping[str, int] = field(default_factory=dict)
    from_step: int | None = None
    code: Mapping[str, str] = field(default_factory=dict, metadata=LATER)
    devices: int = field(default=0, metadata=LATER)
    device_seconds: Mapping[str, float] = field(default_factory=dict, metadata=LATER)
    prefix: str | None = field(default=None, metadata=LATER)
    prefix_step: int | None = field(default=None, metadata=LATER)
    manifest: str | None = field(default=None, metadata=LATER)

    def code_ids(self) -> tuple[str, ...]:
        """The ids of the records of code of the attempts, each once; none for a run of an older version."""
        return tuple(dict.fromkeys(self.code.values()))

    def replace(self, **changes: Any) -> State:
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Claim(Record):
    """claim.json of a run: the process that owns it. `process_start` is in clock ticks since boot, as in /proc."""

    host: str
    pid: int
    process_start: int
    boot_id: str
    token: str
    attempt: int


def write_state(folder: Path, state: State) -> None:
    """Replace state.json atomically."""
    RunState(state.state)  # ValueError: there is no such state
    write_record(folder / "state.json", state)


def read_state(folder: Path) -> State:
    """The run's state. FileNotFoundError: there is no such run; BadRunFolder: the file cannot be read."""
    return read_record(State, folder / "state.json")


def find_state(folder: Path) -> State | None:
    """The run's state, or None where the run does not exist."""
    return find_record(State, folder / "state.json")


def known_state(folder: Path) -> State | None:
    """`find_state`, but None also where the file cannot be read."""
    with suppress(BadRunFolder):
        return find_state(folder)
    return None


def find_states(multirun: Path, run_ids: Iterable[str]) -> dict[str, State | None]:
    """The state of each of these runs, as `find_state` says."""
    return {run_id: find_state(run_folder(multirun, run_id)) for run_id in run_ids}


def is_done(state: State | None) -> TypeGuard[State]:
    """Whether a run exists, and is done."""
    return state is not None and state.state == RunState.DONE


def is_missing(state: State | None) -> bool:
    """Whether the same command runs or resumes a run with this state: not one that is done or waits for `resume`."""
    return state is None or state.state in RESUMABLE


# ---------------------------------------------------------------- the owner of a run


HEARTBEAT_S = 5.0
SILENCE_S = 3 * HEARTBEAT_S
# How long to wait for the lock of a run: its holder may be stopped.
PATIENCE_S = 2.0


class ClaimLost(RuntimeError):
    """Another process owns this run now; this process must not write to it any more."""


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
    path, wait = folder / ".lock", 0 if patience is None else fcntl.LOCK_NB
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = uptime() + (patience or 0)
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | wait)
                break
            except BlockingIOError as error:
                if uptime() > end:
                    raise Locked(f"{folder}: another process has held its lock for {patience:g} s") from error
            except OSError as error:
                error.filename = str(path)
                raise
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def read_claim(folder: Path) -> Claim | None:
    """The present claim, or None. An unreadable one, whose writer died, counts as the claim of a dead process."""
    try:
        return read_record(Claim, folder / "claim.json")
    except FileNotFoundError:
        return None
    except BadRunFolder:
        return Claim(socket.gethostname(), -1, -1, boot_id(), "", 0)


def is_here(claim: Claim) -> bool:
    """Whether the owner is, or was, a process that this one can see."""
    return claim.host == socket.gethostname() and claim.boot_id == boot_id()


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
    mine = Claim(socket.gethostname(), os.getpid(), start, boot_id(), secrets.token_hex(8), attempt)
    discard_claim(folder)
    # Creation is atomic too, because some network file systems have no locks.
    return mine if create_record(folder / "claim.json", mine) else None


def owns(folder: Path, claim: Claim) -> bool:
    """Whether the claim on disk is still this one."""
    present = read_claim(folder)
    return present is not None and present.token == claim.token


def release_claim(folder: Path, claim: Claim) -> None:
    """Remove this claim, unless it was lost. The caller holds the folder's lock."""
    if owns(folder, claim):
        discard_claim(folder)


def discard_claim(folder: Path) -> None:
    """Remove the claim of an owner that is known to be dead. The caller holds the folder's lock."""
    (folder / "claim.json").unlink(missing_ok=True)


def kill_owner(owner: Claim) -> None:
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
        self._end.set()
        self._thread.join()


def present_state(folder: Path) -> str:
    """A run's present state: `new` without a folder, `lost` if it says running but no process owns it."""
    state = find_state(folder)
    return true_state(folder, state.state if state else None)


def present_states(multirun: Path, states: Mapping[str, State | None]) -> dict[str, str]:
    """`present_state` of each run, from its state."""
    return {
        run_id: NEW if state is None else true_state(run_folder(multirun, run_id), state.state)
        for run_id, state in states.items()
    }


def true_state(folder: Path, state: str | None) -> str:
    """The state from a state file, but `lost` if it was running and no process owns the run; None: there is no file."""
    if state == RunState.RUNNING and live_claim(folder) is None:
        again = find_state(folder)  # the run may have ended between the two checks
        state = again.state if again else None
        if state == RunState.RUNNING and live_claim(folder) is None:
            return RunState.LOST
    return state or NEW


# ---------------------------------------------------------------- changes of state
#
# These return the new state, for a caller that holds the run's lock and writes it.


def created(run_id: str, prefix: str | None = None, prefix_step: int | None = None) -> State:
    """The first state of a run; prefix: the run whose first steps it takes over, up to `prefix_step`."""
    return State(run_id, RunState.PLANNED, created=time.time(), prefix=prefix, prefix_step=prefix_step)


def submitted(state: State, launch_id: str, devices: int = 0) -> State:
    """A launch gives the run to its scheduler. `devices`: as in the state."""
    check_transition(Event.SUBMIT, state.state, RunState.SUBMITTED)
    return _fresh(state, RunState.SUBMITTED, launch_id).replace(devices=devices)


def started(state: State, owner: Claim, launch_id: str | None, from_step: int) -> State:
    """A worker begins an attempt after that step."""
    check_transition(Event.START, state.state, RunState.RUNNING)
    return _fresh(state, RunState.RUNNING, launch_id).replace(
        attempt=owner.attempt,
        started=time.time(),
        host=owner.host,
        pid=owner.pid,
        from_step=from_step,
        code=state.code if from_step else {},
    )


def finished(state: State, manifest: str | None = None) -> State:
    """The run is done. `manifest`: as in the state."""
    check_transition(Event.FINISH, state.state, RunState.DONE)
    return _timed(state, time.time()).replace(state=RunState.DONE, manifest=manifest)


def ended(
    state: State,
    kind: FailureKind,
    message: str,
    rules: Rules,
    progressed: bool,
    error: Mapping[str, str] | None = None,
) -> State:
    """The attempt ended for this reason. `progressed`: it left a newer checkpoint than it started from."""
    count, ending = state.failure_counts.get(kind, 0) + 1, ENDINGS[kind]
    limit = rules.get(kind, ending.limit)
    # After a time-out without progress, the next attempt would compute the same steps again.
    resumed = (limit is None or count <= limit) and (progressed or kind != FailureKind.TIME_OUT)
    after = ending.resumed_as if resumed else ending.ended_as
    check_transition(kind, state.state, after)
    if count > 1 and after not in RESUMABLE and kind in rules:
        message = f"{message} ({kind} {count} times)"
    return _timed(state, time.time()).replace(
        state=after,
        failure_kind=kind,
        message=message,
        error=error,
        failure_counts={**state.failure_counts, kind: count},
    )


def retried(state: State) -> State:
    """`resume` makes the run planned again. Its attempts and checkpoints stay; the counts of its failures do not."""
    check_transition(Event.RESUME, state.state, RunState.PLANNED)
    return _fresh(state, RunState.PLANNED, None).replace(failure_counts={})


def _timed(state: State, end: float) -> State:
    """The state of a run whose attempt, if one was running and has no time yet, ended then (unix seconds)."""
    seconds = dict(state.device_seconds)
    if state.state == RunState.RUNNING:
        seconds.setdefault(str(state.attempt), running_seconds(state, end))
    return state.replace(finished=end, device_seconds=seconds)


def _fresh(state: State, after: RunState, launch_id: str | None) -> State:
    """The state without what the last attempt left in it."""
    return state.replace(
        state=after, started=None, finished=None, launch_id=launch_id, failure_kind=None, message=None, error=None
    )


# ---------------------------------------------------------------- changes of state on the run's folder


def with_lost_attempt(folder: Path, state: State) -> State:
    """The state with the time of an attempt whose process ended without a word: until its last heartbeat.

    The caller holds the folder's lock, knows that the run has no owner, and has not removed the claim.
    """
    if state.state != RunState.RUNNING:
        return state
    return _timed(state, last_sign(folder)).replace(finished=state.finished)


def progressed(folder: Path, state: State) -> bool:
    """Whether the run's newest checkpoint is newer than the one from which its present attempt started."""
    return last_final_step(folder) > (state.from_step or 0)


def withdraw(folder: Path) -> bool:
    """Make a submitted run that has not started planned again; whether that was done. A locked run stays as it is."""
    with suppress(Locked), locked(folder, PATIENCE_S):
        return live_claim(folder) is None and withdraw_unowned(folder)
    return False


def withdraw_unowned(folder: Path) -> bool:
    """`withdraw` for a run without an owner. The caller holds the folder's lock."""
    state = read_state(folder)
    if state.state != RunState.SUBMITTED:
        return False
    check_transition(Event.WITHDRAW, state.state, RunState.PLANNED)
    write_state(folder, state.replace(state=RunState.PLANNED))
    return True


# ---------------------------------------------------------------- runs that are to be run anew
#
# Their folders are moved aside, and nothing of them is deleted:
#
#     multirun/archive/<id>.<n>/    the n-th archived folder of the run, complete


def archive_folder(multirun: Path) -> Path:
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

    Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = run_folder(multirun, run_id)
    if not folder.is_dir():
        return None
    parent = archive_folder(multirun)
    parent.mkdir(parents=True, exist_ok=True)
    with locked(folder, PATIENCE_S):
        if live_claim(folder) is not None:
            return None
        target = parent / f"{run_id}.{generation(multirun, run_id)}"
        shutil.move(folder, target)  # the two may be on different disks
    fsync_folder(parent)
    fsync_folder(runs_folder(multirun))
    return target


# ---------------------------------------------------------------- what runs took
#
# Device-seconds, of all their attempts; without a device, the seconds of a processor.

HOUR_S = 3600.0
DEVICE_HOURS, CPU_HOURS = "device-hours", "CPU-hours"


def running_seconds(state: State, now: float) -> float:
    """The device-seconds of a run's present attempt until `now` (unix seconds); 0 if none runs."""
    if state.state != RunState.RUNNING or state.started is None:
        return 0.0
    # If the clock was set back meanwhile, the difference is negative.
    return max(0.0, now - state.started) * max(state.devices, 1)


def compute_unit(provenances: Iterable[Mapping[str, Any] | None]) -> str:
    """What the hours of runs are called: CPU-hours if their provenance, as far as it is known, has no GPU."""
    known = [record["devices"] for record in provenances if record and isinstance(record.get("devices"), Mapping)]
    return CPU_HOURS if known and not any(devices.get("gpus") for devices in known) else DEVICE_HOURS


def last_sign(folder: Path) -> float:
    """When the run's present attempt was last known to run (unix seconds): its heartbeat, or its last step."""
    signs = (folder / "claim.json", metrics_path(folder), folder / "state.json")
    return max(path.stat().st_mtime for path in signs if path.exists())


def unfinished_seconds(device_seconds: Mapping[str, float], attempt: int, state: str) -> float:
    """The device-seconds of the ended attempts that did not finish the run: they failed or were interrupted.

    The arguments are fields of the run's state.
    """
    finishing = str(attempt) if state == RunState.DONE else None
    return sum(seconds for number, seconds in device_seconds.items() if number != finishing)


def spent_seconds(multirun: Path, run_ids: Iterable[str], now: float) -> dict[str, float]:
    """The device-seconds of all attempts of each run until `now`, those in its archived folders included."""
    former = archived(multirun)
    folders = {run_id: (run_folder(multirun, run_id), *former.get(run_id, ())) for run_id in run_ids}
    return {run_id: sum(_spent_on(folder, now) for folder in own) for run_id, own in folders.items()}


def _spent_on(folder: Path, now: float) -> float:
    state = known_state(folder)
    if state is None:  # `status` reports what is wrong with the folder
        return 0.0
    alive = state.state == RunState.RUNNING and live_claim(folder) is not None
    end = now if alive else last_sign(folder)
    return sum(state.device_seconds.values()) + running_seconds(state, end)

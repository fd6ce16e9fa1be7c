"""The states of a run, the reasons why its attempts end, and the one table of all transitions between states.

A retry rule says how often a run is resumed after one failure kind; null is without limit. The counts are kept in the
run's state, so they hold over launches, until `resume` clears them. Whether a run may be resumed can be read from its
state alone (`RESUMABLE`); no reader needs the rules.
"""

from __future__ import annotations

import errno
import re
import signal
import sysconfig
import traceback
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

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


def check(event: Event | FailureKind, before: str | None, after: str) -> None:
    """Raise ValueError if the table has no transition of this event between these states; None: a new run."""
    row = TRANSITIONS[event]
    if after not in row.targets or (before not in row.sources if row.sources else before is not None):
        raise ValueError(f"{event}: a run does not go from {before} to {after}")


def state_after(kind: FailureKind, count: int, rules: Rules, progressed: bool) -> RunState:
    """The state of a run whose attempt ended so for the `count`-th time.

    `progressed`: the attempt left a newer checkpoint than it started from.
    """
    ending = ENDINGS[kind]
    limit = rules.get(kind, ending.limit)
    resumed = limit is None or count <= limit
    if kind == FailureKind.TIME_OUT and not progressed:
        resumed = False  # the next attempt would compute the same steps again
    return ending.resumed_as if resumed else ending.ended_as


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

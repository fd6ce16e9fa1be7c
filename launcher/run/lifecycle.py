"""Why an attempt ended, and whether its run is taken up again: causes as data, judged by rules that are data too.

A rule is the number of times that a run is taken up again after one cause; null is without limit. The counts stand in
the run's state, so they hold over launches, until `retry` clears them. What may be taken up again has a state that says
so (folder.RESUMABLE): whoever looks at a run, now or later, needs no rules.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.run import claim, stop_request
from launcher.run import folder as folders
from launcher.run.folder import State
from launcher.text import one_line

EXCEPTION = "exception"
OUT_OF_MEMORY = "out_of_memory"
DIVERGED = "diverged"
PREEMPTED = "preempted"
TIME_OUT = "time_out"
LOST = "lost"
NODE_FAILURE = "node_failure"
REVOKED = "revoked"
DISK_FULL = "disk_full"
CANCELLED = "cancelled"
CAUSES = (EXCEPTION, OUT_OF_MEMORY, DIVERGED, PREEMPTED, TIME_OUT, LOST, NODE_FAILURE, REVOKED, DISK_FULL, CANCELLED)

Rules = Mapping[str, int | None]

# Without a rule: what is no fault of the run is taken up again, the rest is not.
_UNRULED: Rules = {PREEMPTED: None, LOST: None, NODE_FAILURE: None, REVOKED: None, TIME_OUT: None}
# How a run waits to be taken up again; the others wait as planned ones do.
_WAITS = {
    PREEMPTED: folders.PREEMPTED,
    TIME_OUT: folders.PREEMPTED,
    REVOKED: folders.PREEMPTED,
    DISK_FULL: folders.PREEMPTED,
    LOST: folders.LOST,
    NODE_FAILURE: folders.LOST,
}
_ENDS = {DIVERGED: folders.DIVERGED, CANCELLED: folders.CANCELLED}

_LONGEST = 1000
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Libraries in C++ and Rust report failed allocations, and failed writes of checkpoints, without a number.
_NO_MEMORY_TEXT = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)
_NO_SPACE_TEXT = re.compile(
    r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing|iostream error"
    r"|inline_container\.cc.*unexpected pos"
)
_ASKED_TO_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that no space, or no quota, is left."""
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    return _NO_SPACE_TEXT.search(str(error)) is not None


def kind_of(error: BaseException) -> str:
    """The cause that an exception of the trainer stands for. The trainer's own are known by their names."""
    names = {base.__name__ for base in type(error).__mro__}
    for name, kind in (("Preempted", PREEMPTED), ("Diverged", DIVERGED), ("OutOfMemoryError", OUT_OF_MEMORY)):
        if name in names:
            return kind
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY_TEXT.search(str(error))):
        return OUT_OF_MEMORY
    # An error raised while another was handled: the first says what happened.
    chain: BaseException | None = error
    while chain is not None:
        if is_disk_full(chain):
            return DISK_FULL
        chain = chain.__cause__ or chain.__context__
    return EXCEPTION


def of_exit(code: int | None, oom_killed: bool) -> tuple[str, str]:
    """Kind and cause of a process that left no terminal state. `oom_killed`: the kernel killed one for its memory."""
    if code is None:
        return LOST, "the worker's exit code is unknown"
    if code >= 0:
        return LOST, f"exit code {code} without a terminal state"
    number = -code
    name = f"signal {number} ({signal.Signals(number).name})" if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL and oom_killed:
        return OUT_OF_MEMORY, f"{name}: the kernel killed it because memory ran out"
    # The worker's own handler was not there yet.
    return (PREEMPTED if number in _ASKED_TO_STOP else LOST), name


def ended(
    state: State,
    kind: str,
    cause: str,
    rules: Rules,
    progressed: bool,
    error: Mapping[str, str] | None = None,
) -> State:
    """The state of a run whose attempt ended for that cause. `progressed`: it left a newer checkpoint than it found."""
    count = state.ends.get(kind, 0) + 1
    again = _taken_up(kind, count, rules, progressed)
    if count > 1 and not again and kind in rules:
        cause = f"{cause} ({kind} {count} times)"
    return state.but(
        state=_WAITS.get(kind, folders.PLANNED) if again else _ENDS.get(kind, folders.FAILED),
        finished=time.time(),
        kind=kind,
        cause=cause,
        error=error,
        ends={**state.ends, kind: count},
    )


def _taken_up(kind: str, count: int, rules: Rules, progressed: bool) -> bool:
    if kind == CANCELLED:
        return False
    if kind == DISK_FULL:
        return True  # no fault of the run, and this launch stops anyway
    if kind == TIME_OUT and not progressed:
        return False  # the next attempt would do the same steps again
    limit = rules.get(kind, _UNRULED.get(kind, 0))
    return limit is None or count <= limit


def described(error: BaseException) -> str:
    """An exception on one line, shortened where its message is pages long; a state's `error` has it whole."""
    text = f"{type(error).__name__}: {one_line(str(error))}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def progressed(folder: Path, state: State) -> bool:
    """Whether the run's newest checkpoint is newer than the one that its present attempt began from."""
    newest = folders.latest_checkpoint(folder)
    return newest is not None and newest[0] > (state.from_step or 0)


def planned_again(state: State) -> State:
    """A terminal state made new by `retry`: its attempts and checkpoints stay, what was counted does not."""
    return state.but(
        state=folders.PLANNED, started=None, finished=None, kind=None, cause=None, error=None, ends={}, job=None
    )


# ---------------------------------------------------------------- cancelling

# What `cancel` did: asked the worker. `retry` takes a cancelled run up again.
ASKED = "asked"


def cancel(multirun: Path, run_id: str) -> str:
    """Cancel a run; what happened: "cancelled", "asked", or the terminal state that the run already had.

    "asked": its worker, on whatever host, saves a checkpoint and ends as `cancelled`. FileNotFoundError: no such run;
    claim.Locked: another process, perhaps a stopped one, holds the run's lock.
    """
    folder = folders.run_folder(multirun, run_id)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such run")
    cause = f"cancelled by process {os.getpid()} on {claim.hostname()}"
    with claim.locked(folder, claim.PATIENCE_S):
        state = folders.read_state(folder)
        if state.state not in folders.RESUMABLE:
            return state.state
        owner = claim.live_claim(folder)
        if owner is None:
            claim.discard(folder)
            folders.write_state(folder, ended(state, CANCELLED, cause, {}, progressed=False))
            return folders.CANCELLED
        stop_request.send(folder, owner, CANCELLED, cause)
    return ASKED


def unheeded(folder: Path, state: State) -> State | None:
    """The state of a run that was to be cancelled and whose owner died, or ended otherwise, before it could heed that.

    None: nobody asked for it. The caller holds the folder's lock, and has not removed the claim.
    """
    owner = claim.read_claim(folder)
    asked = stop_request.asked(folder, owner.token) if owner is not None else None
    if asked is None or asked.kind != CANCELLED or state.state not in folders.RESUMABLE:
        return None
    return ended(state, CANCELLED, asked.cause, {}, progressed=False, error=state.error)

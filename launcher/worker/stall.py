"""Notices that an attempt makes no step for a long time, and writes down what its processes are doing.

    multirun/runs/<id>/attempts/<n>/stacks.txt    the stack of each thread, and the state of each child process

The heartbeat's thread measures. If it cannot run either, because code that hangs holds Python's lock, another process
(timer.py) has the stacks written and ends this one; whoever notices that end finds the file.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from launcher.run.folder import stacks_path
from launcher.run.lifecycle import HEARTBEAT_S
from launcher.text import duration

#: Without `cluster.stall_s`: so many times the median step, but at least so many seconds.
STEPS = 10
LEAST_S = 1800.0
#: The limit for the first step of an attempt, which may download models and build what runs share.
FIRST_S = 7200.0
#: How long a stalled attempt may take at most to save a checkpoint, if it does go on.
GRACE_S = 60.0
_MEASURED = 1000
_NEVER_S = 1e9
_CHILD_S = 1.0
_TIMER = Path(__file__).with_name("timer.py")


def limit_of(step_seconds: Sequence[float], given: float | None) -> float:
    """After how many seconds without a step an attempt is stalled. `given`: `cluster.stall_s`."""
    if given is not None:
        return given
    return max(LEAST_S, STEPS * statistics.median(step_seconds)) if step_seconds else FIRST_S


class Watchdog:
    """Measures the time without a step. `stepped` is called by the trainer's thread, `beat` by that of the heartbeat.

    Time counts only while this process can run: a process that is stopped, or whose machine sleeps, is not stalled.
    `idle`: the seconds since the last step. `grace_s`: those between the request to stop and the end.
    """

    def __init__(self, folder: Path, attempt: int, given: float | None) -> None:
        self._path, self._given = stacks_path(folder, attempt), given
        self._file = open(self._path, "w")  # noqa: SIM115 the handler of SIGUSR1 writes to it at any time
        self._durations: deque[float] = deque(maxlen=_MEASURED)
        #: Whether steps are expected at all. Without, only `cluster.stall_s` limits the time between those that come.
        self.expects_steps = True
        self._steps = 0
        self._counted = 0
        self.idle = 0.0
        self._last_step: float | None = None
        self._last_beat = time.monotonic()
        self.grace_s = GRACE_S
        faulthandler.register(signal.SIGUSR1, self._file)  # forked children inherit it
        command = [sys.executable, "-I", "-S", str(_TIMER), str(os.getpid())]
        self._timer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)
        self._set_timer()

    def _set_timer(self) -> float:
        """Set the timer anew, as every beat does: it expires only if no beat comes. Returns the limit in seconds."""
        unlimited = self._given is None and not self.expects_steps
        limit = _NEVER_S if unlimited else limit_of(tuple(self._durations), self._given)
        self.grace_s = min(GRACE_S, limit)
        # Not before the heartbeat itself could have ended the attempt.
        patience = limit + self.grace_s + 2 * HEARTBEAT_S
        assert self._timer.stdin is not None
        with suppress(OSError):  # it was killed; the heartbeat still measures
            self._timer.stdin.write(f"{patience}\n".encode())
        return limit

    def stepped(self) -> None:
        now = time.monotonic()
        if self._last_step is not None:
            self._durations.append(now - self._last_step)
        self._last_step = now
        self._steps += 1

    def beat(self) -> str | None:
        """Why the attempt is stalled, or None."""
        now = time.monotonic()
        passed, self._last_beat = now - self._last_beat, now
        if self._steps != self._counted:
            self._counted, self.idle = self._steps, 0.0
        else:
            self.idle += min(passed, 2 * HEARTBEAT_S)
        limit = self._set_timer()
        if self.idle < limit:
            return None
        after = f"after {self._steps} steps of this attempt" if self._steps else "before the first step of this attempt"
        return f"no step for {duration(self.idle)}, {after}; see {self._path}"

    def dump(self) -> None:
        """Write the stacks of this process's threads, and what its children are doing."""
        faulthandler.dump_traceback(self._file, all_threads=True)
        for pid in [child.pid for child in psutil.Process().children(recursive=True) if child.pid != self._timer.pid]:
            self._file.write(f"\nchild {pid}: {describe(pid)}\n")
            self._file.flush()
            if int(_status(pid).get("SigCgt", "0"), 16) >> (signal.SIGUSR1 - 1) & 1:  # it has a handler
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGUSR1)
                    time.sleep(_CHILD_S)  # it writes into the same file
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Stop measuring. An attempt that was not stalled leaves no file."""
        self._timer.kill()  # a child that the run has forked keeps its standard input open
        self._timer.communicate()
        faulthandler.unregister(signal.SIGUSR1)
        empty = os.fstat(self._file.fileno()).st_size == 0
        self._file.close()
        if empty:
            self._path.unlink(missing_ok=True)


def describe(pid: int) -> str:
    """A process's command, its state, and the function of the kernel in which it waits."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        waits = Path(f"/proc/{pid}/wchan").read_text() or "0"
        return f"{command}; state {_status(pid).get('State', '?')}; waits in {waits}"
    except OSError:
        return "it has ended"


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

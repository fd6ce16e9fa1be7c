"""Calls functions in a process of their own, so that code of a user cannot end, block or change the process of a plan.

The process is a fork of this one: it has the same import path, and starts in milliseconds. Whatever way a function ends
it (`sys.exit`, `os._exit`, a crash, an endless loop), the caller gets `Ended`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

from launcher.text import one_line

_FRAME = re.compile(r'File "(.*)", line (\d+) in ')
_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 20
_SAYS_WHERE_S = 0.5  # for the traceback of a process that is about to be killed
_LIBRARY = os.path.dirname(os.__file__)
_PROJECT = Path(__file__).parents[2]

Frames = Sequence[tuple[str, int]]


@dataclass(eq=False)
class Ended(Exception):
    """Why a function gave no answer: what happened, and the file and line of the user's code, where known."""

    what: str
    file: str | None = None
    line: int | None = None
    late: bool = False


class Isolated:
    """Calls functions in one child process, which starts with the first call. Call `close` at the end."""

    def __init__(self) -> None:
        self._pid = 0

    def call(self, seconds: float, function: Callable[..., Any], *given: Any) -> Any:
        """function(*given). The function, its arguments and its result must be picklable.

        Ended: the function raised, ended its process, or gave no answer within `seconds`.
        """
        if not self._pid:
            self._start()
        try:
            self._connection.send((function, given))
            answer = self._answer(seconds)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Ended):
            raise answer
        return answer

    def close(self) -> None:
        """End the process and those that it started."""
        if self._pid:
            self._end()

    def _end(self) -> tuple[int, str]:
        """`close`; the exit status, as os.waitpid gives it, and the traceback that the process has left."""
        for end in (os.killpg, os.kill):  # it has no group of its own before it runs
            with suppress(ProcessLookupError):
                end(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        left = os.pread(self._trace, _MOST_BYTES, 0).decode(errors="replace")
        for descriptor in (self._watched, self._trace):
            os.close(descriptor)
        self._connection.close()
        return status, left

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._trace = os.memfd_create("traceback")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or both processes would write what waits there
        self._pid = os.fork()
        if not self._pid:
            ours.close()
            _serve(theirs, self._trace)
        theirs.close()
        self._connection, self._watched = ours, os.pidfd_open(self._pid)

    def _answer(self, seconds: float) -> Any:
        ready = wait([self._connection, self._watched], seconds)
        if self._connection in ready:
            with suppress(EOFError, OSError):
                return self._connection.recv()
        if not ready:
            os.kill(self._pid, signal.SIGUSR1)
            time.sleep(_SAYS_WHERE_S)
        elif self._watched not in ready:
            wait([self._watched], _SAYS_WHERE_S)
        status, left = self._end()
        found = _FRAME.findall(left.partition(" in _serve\n")[0])  # what follows are frames of the plan
        where = _place([(file, int(line)) for file, line in found])
        what = _how(status) if ready else f"it gave no answer within {seconds:g} s"
        return Ended(what, *where, late=not ready)


def _how(status: int) -> str:
    """How a process ended, by its status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"it ended its process with exit code {code}"
    name = signal.Signals(-code).name
    why = ", as the kernel does when memory is exhausted" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{why}"


def _serve(connection: Connection, trace: int) -> NoReturn:
    """Answer the calls of the parent until it is gone, or a function ends the process."""
    really_exit, me = os._exit, os.getpid()
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel ends this process before the parent
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin, sys.stdout = os.fdopen(0), sys.stderr
    os.dup2(2, 1)  # the parent's standard output is the plan's, which may be JSON
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)

    def says_where(code: int) -> NoReturn:
        with suppress(Exception):
            faulthandler.dump_traceback(trace, all_threads=False)
        really_exit(code)

    os._exit = says_where  # type: ignore[assignment]
    try:
        while True:
            function, given = connection.recv()
            try:
                answer = function(*given)
            except BaseException as error:
                answer = _ended(error)
            if os.getpid() != me:  # a fork that the function made
                break
            connection.send(answer)
    finally:
        really_exit(0)


def _ended(error: BaseException) -> Ended:
    """What a function raised, in words, with its place."""
    if isinstance(error, Ended):
        return error
    if isinstance(error, ImportError) and error.__cause__ is not None:  # of an entry point
        error = error.__cause__
    if isinstance(error, SyntaxError):
        return Ended(f"SyntaxError: {error.msg}", error.filename, error.lineno)
    name = type(error).__name__
    what = f"{name}: {one_line(str(error))}" if isinstance(error, Exception) else f"it raised {one_line(repr(error))}"
    return Ended(what, *_place(frames(error)))


def frames(error: BaseException) -> Frames:
    """File and line of each frame of an exception, the innermost first."""
    return [(frame.filename, frame.lineno or 0) for frame in reversed(traceback.extract_tb(error.__traceback__))]


def _place(frames: Frames) -> tuple[str | None, int | None]:
    """The innermost file and line of the user's code: of the outermost file that is neither Python's nor this project's
    machinery, and of what lies beside it."""
    theirs = next((file for file, _ in reversed(frames) if not _is_machinery(file)), None)
    if theirs is None:
        return None, None
    return next((file, line) for file, line in frames if os.path.dirname(file) == os.path.dirname(theirs))


def _is_machinery(file: str) -> bool:
    inside = Path(file)
    if inside.is_relative_to(_PROJECT / "launcher") or inside.name == "<string>" or file.startswith("<frozen"):
        return True
    if inside.is_relative_to(_PROJECT / "trainer_ext"):
        return inside.name in ("__init__.py", "registry.py")
    return file.startswith(_LIBRARY) and "site-packages" not in file

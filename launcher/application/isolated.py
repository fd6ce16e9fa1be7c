"""Calls functions in a process of their own, so that a user's code cannot end, block or change the planning process.

The process is a fork of this one: it has the same import path, and starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

from launcher.application import name, packages
from launcher.project import ROOT
from launcher.text import one_line

_FRAME = re.compile(r'File "(.*)", line (\d+) in ')
_PR_SET_PDEATHSIG, _MOST_BYTES = 1, 1 << 20
_SAYS_WHERE_S = 0.5  # for the traceback of a process that is about to be killed
_LIBRARY = os.path.dirname(os.__file__)

Frames = Sequence[tuple[str, int]]


@dataclass(eq=False)
class Ended(Exception):
    """Why a function gave no answer: what happened, and the file and line of the user's code, where known."""

    what: str
    file: str | None = None
    line: int | None = None
    late: bool = False

    @property
    def rule(self) -> str:
        """What is wrong with the code, in words."""
        return f"its code cannot be used: {self.what}"

    @property
    def shown_file(self) -> str | None:
        """The file, relative to the project where it is part of it."""
        return None if self.file is None else shown_path(self.file)


def shown_path(path: str) -> str:
    """A path relative to the project where it is part of it."""
    return str(Path(path).relative_to(ROOT) if Path(path).is_relative_to(ROOT) else path)


class Isolated:
    """Calls functions in one child process, which starts with the first call. Call `close` at the end."""

    _pid = 0

    def call(self, seconds: float, function: Callable[..., Any], *given: Any) -> Any:
        """function(*given); the function, its arguments and its result must be picklable.

        Ended: the function raised, ended its process in whatever way, or gave no answer within `seconds`.
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
        """`close`; the exit code, or minus the signal, and the traceback that the process has left."""
        for end in (os.killpg, os.kill):  # it has no group of its own before it runs
            with suppress(ProcessLookupError):
                end(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0
        left = os.pread(self._trace, _MOST_BYTES, 0).decode(errors="replace")
        for descriptor in (self._watched, self._trace):
            os.close(descriptor)
        self._connection.close()
        return code, left

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._trace = os.memfd_create("traceback")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or both processes would write what waits there
        self._pid = os.fork()
        if not self._pid:
            self._connection.close()
            _serve(theirs, self._trace)
        theirs.close()
        self._watched = os.pidfd_open(self._pid)

    def _answer(self, seconds: float) -> Any:
        ready = wait([self._connection, self._watched], seconds)
        if self._connection in ready:
            with suppress(EOFError, OSError):
                return self._connection.recv()
        if not ready:
            os.kill(self._pid, signal.SIGUSR1)
        if self._watched not in ready:
            wait([self._watched], _SAYS_WHERE_S)
        code, left = self._end()
        what = f"it gave no answer within {seconds:g} s"
        if ready:
            name = signal.Signals(-code).name if code < 0 else ""
            why = ", as the kernel does when memory is exhausted" if name == "SIGKILL" else ""
            what = f"its process was ended by {name}{why}" if name else f"it ended its process with exit code {code}"
        frames = _FRAME.findall(left.partition(" in _serve\n")[0])  # what follows are frames of the plan
        file, line = _place([(file, int(line)) for file, line in frames])
        return Ended(what, file, line, late=not ready)


def _serve(connection: Connection, trace: int) -> NoReturn:
    """Answer the calls of the parent until it is gone, or a function ends the process."""
    gc.freeze()  # or a collection of garbage would copy the parent's memory
    really_exit, me = os._exit, os.getpid()
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel ends this process before the parent
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the parent's standard output is the plan's, which may be JSON
    sys.stdin, sys.stdout = os.fdopen(0), sys.stderr
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
    if isinstance(error, Ended):
        return error
    if error.__cause__ is not None and _is_machinery(frames(error)[0][0]):  # of an entry point
        error = error.__cause__
    if isinstance(error, SyntaxError):
        return Ended(f"SyntaxError: {error.msg}", error.filename, error.lineno)
    what = f"{type(error).__name__}: {one_line(str(error))}"
    return Ended(what if isinstance(error, Exception) else f"it raised {one_line(repr(error))}", *_place(frames(error)))


def frames(error: BaseException) -> Frames:
    """File and line of each frame of an exception, the innermost first."""
    return [(frame.filename, frame.lineno or 0) for frame in reversed(traceback.extract_tb(error.__traceback__))]


def _place(frames: Frames) -> tuple[str, int] | tuple[None, None]:
    """The innermost frame of the user's code: of the outermost file that is neither Python's nor this project's
    machinery, and of the files beside that one."""
    theirs = next((os.path.dirname(file) for file, _ in reversed(frames) if not _is_machinery(file)), None)
    return next(((file, line) for file, line in frames if os.path.dirname(file) == theirs), (None, None))


def _is_machinery(file: str) -> bool:
    if Path(file).is_relative_to(ROOT.joinpath(*name().partition(":")[0].split("."))):
        return True  # the application's own, which makes the calls
    if any(Path(file).is_relative_to(ROOT / package) for package in packages() - {"launcher"}):
        return Path(file).name in ("__init__.py", "registry.py", "tables.py")
    python = file.startswith(("<", _LIBRARY)) and "site-packages" not in file
    return python or Path(file).is_relative_to(ROOT / "launcher")

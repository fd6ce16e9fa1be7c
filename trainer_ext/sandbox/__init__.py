"""Runs programs that a model wrote, with tests, where they can harm neither the run nor the machine.

    verdict = run(Limits(...), ["def double(x): return 2 * x"], {"tests": ["assert double(2) == 4"]})

A program and its tests run in two processes that share nothing (`guest`), which a small server starts (`server`). Of
`tests`, a mapping, all keys may be left out: `stdio`, pairs of a standard input and the output; `calls`, pairs of a
list of arguments and the result of the function `entry_point`; `setup`, Python code, and `tests`, pieces of Python
code that call what the program defines. Each pair and each piece is a case.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer_ext.sandbox import guest, server

sys.set_int_max_str_digits(0)  # some tests have integers of thousands of digits

_ROOT = str(Path(__file__).resolve().parents[2])
_START = f"import sys; sys.path.insert(0, sys.argv[1]); from {server.__name__} import main; main()"
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1", "HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
#: The keys of tests that are lists of cases.
CASES = ("stdio", "calls", "tests")
ISOLATIONS = (server.NAMESPACES, "process")


class Unavailable(RuntimeError):
    """This machine cannot isolate programs as configured; the message says which step the kernel refuses."""


class BadTests(ValueError):
    """The tests of a program are not valid Python, their setup raises, or there are too many of them."""


@dataclass(frozen=True)
class Limits:
    """What a program may use, all its tests together. Memory and file sizes are in MiB, of each process and file.

    isolation: one of ISOLATIONS. seconds: of wall time, and of CPU time of each process.
    """

    isolation: str
    seconds: float
    memory_mb: int
    processes: int
    file_mb: int


@dataclass(frozen=True)
class Verdict:
    """How a program did: passed cases of all cases."""

    passed: int
    cases: int
    timed_out: bool = False
    syntax_error: bool = False

    @property
    def right(self) -> bool:
        """Whether every case passed."""
        return self.passed == self.cases


def run(limits: Limits, sources: Sequence[str], tests: Mapping[str, Any]) -> Verdict:
    """The verdict on a program: the first of `sources` that is valid Python.

    Threads may call this at the same time. Unavailable: this machine cannot isolate it so. BadTests: see there.
    """
    cases = sum(len(tests.get(kind, ())) for kind in CASES)
    if not cases:
        raise BadTests("there is no test")
    answer = _pool(limits).run(json.dumps(list(sources)).encode(), json.dumps(dict(tests)).encode())
    events = answer["events"]
    if "T" in events:
        raise BadTests("the tests are not valid Python, their setup raises, or they do not fit into memory_mb")
    # What tests cannot report comes from a program whose code they have run.
    passed = events.count("P") if re.fullmatch(f"B(S|[PF]{{0,{cases}}})E?", events) else 0
    return Verdict(passed, cases, answer["timed_out"], "S" in events)


def parallel() -> int:
    """How many programs run at the same time: the cores of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


class _Server:
    """A process of `server`."""

    def __init__(self, limits: Limits, folder: str | None = None):
        """folder: an empty one, only for this server; None: a new one. Unavailable: see there."""
        if not sys.platform.startswith("linux"):
            raise Unavailable("programs run on Linux only")
        folder = folder or tempfile.mkdtemp(prefix="rlsweep-sandbox-")
        python, environment, library = getattr(sys, "_base_executable", sys.executable), _ENVIRONMENT, -1
        if limits.isolation != server.NAMESPACES:  # others may not read where Python is, such as in root's home
            library = os.open(sys.base_prefix, os.O_PATH | os.O_DIRECTORY)
            environment = environment | {"PYTHONHOME": f"/proc/self/fd/{library}", "HOME": folder, "TMPDIR": folder}
        try:
            command = [python, "-s", "-S", "-B", "-X", "utf8", "-c", _START, _ROOT, json.dumps(asdict(limits)), folder]
            command.append(str(library))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[library] if library >= 0 else [],
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
            first = self._answer()
        finally:
            if limits.isolation == server.NAMESPACES:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                os.close(library)
        self._folder = folder
        if first is None or first["refused"]:
            self.close()
            raise Unavailable((first or {"refused": "the process that starts programs has ended"})["refused"])

    def run(self, program: bytes, tests: bytes) -> dict[str, Any] | None:
        """The answer; None: the server has ended without one."""
        assert self._process.stdin is not None
        try:
            for message in (program, tests):
                whole = (b"G" if message is program else b"") + len(message).to_bytes(4, "big") + message
                left = memoryview(whole)
                while left:
                    left = left[self._process.stdin.write(left) :]
        except BrokenPipeError:
            pass  # it has answered before it read all: the time was up
        return self._answer()

    def _answer(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        try:
            answer: dict[str, Any] = json.loads(guest.receive(self._process.stdout.fileno()))
        except EOFError:
            return None
        return answer

    def close(self) -> None:
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Pool:
    """The servers of one kind of limits, as many as programs run at the same time."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._idle: list[_Server] = []
        self._free = threading.BoundedSemaphore(parallel())

    def run(self, program: bytes, tests: bytes) -> dict[str, Any]:
        with self._free:
            for _ in range(2):  # a server that was ended from outside is replaced once
                server = self._idle.pop() if self._idle else _Server(self._limits)
                try:
                    answer = server.run(program, tests)
                except BaseException:  # such as an interruption
                    server.close()
                    raise
                if answer is not None and answer["again"]:
                    self._idle.append(server)
                else:
                    server.close()
                if answer is not None and (answer["timed_out"] or set("BT") & set(answer["events"])):
                    return answer
        raise Unavailable(f"the processes of a program ended twice before they began, within {self._limits}")

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


#: By process, too: a fork does not share the servers of its parent.
_pools: dict[tuple[int, Limits], _Pool] = {}
_lock = threading.Lock()


def _pool(limits: Limits) -> _Pool:
    with _lock:
        key = os.getpid(), limits
        if key not in _pools:
            _pools[key] = _Pool(limits)
        return _pools[key]


@atexit.register
def close() -> None:
    """End the servers of this process."""
    for (pid, _), pool in list(_pools.items()):
        if pid == os.getpid():
            pool.close()

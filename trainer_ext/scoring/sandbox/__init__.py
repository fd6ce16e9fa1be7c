"""Runs programs that a model wrote, with tests, where they can harm neither the run nor the machine.

    verdict = run(Limits(...), ["def double(x): return 2 * x"], {"tests": ["assert double(2) == 4"]})

A program and its tests run in two processes that share nothing (`guest`), which a small server starts (`server`). Of
`tests`, a mapping, all keys may be left out: `stdio`, pairs of a standard input and the output; `calls`, pairs of a
list of arguments and the result of the function `entry_point`; `setup`, Python code, and `tests`, pieces of Python
code that call what the program defines. Each pair and each piece is a case. `prompt` is the caller's.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from trainer_ext.scoring.sandbox import guest, server

sys.set_int_max_str_digits(0)  # some tests have integers of thousands of digits

_ROOT = str(Path(__file__).resolve().parents[3])
_START = f"import sys; sys.path.insert(0, sys.argv[1]); from {server.__name__} import main; main()"
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1", "HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
#: The keys of tests that are lists of cases.
CASES = ("stdio", "calls", "tests")
ISOLATIONS = (server.NAMESPACES, "process")
_TEXT: tuple[str, Callable[[Any], bool]] = "a text", lambda one: isinstance(one, str)
#: What is allowed for each key of tests, or for each of its cases.
_FORMS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "stdio": ("[INPUT, OUTPUT], two texts", lambda one: isinstance(one, list) and [*map(type, one)] == [str, str]),
    "calls": (
        "[[ARGUMENT, ...], RESULT]",
        lambda one: isinstance(one, list) and len(one) > 1 and isinstance(one[0], list),
    ),
    "tests": _TEXT,
    "setup": _TEXT,
    "entry_point": ("the name of a function", lambda one: isinstance(one, str) and one.isidentifier()),
    "prompt": _TEXT,
}


class Unavailable(RuntimeError):
    """This machine cannot isolate programs as configured; the message says which step the kernel refuses."""


class BadTests(ValueError):
    """Tests that do not have the form above, or cannot run."""


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
        return self.passed == self.cases


def check(tests: Mapping[str, Any]) -> None:
    """BadTests: tests do not have the form above; it names the key, the value and what is allowed."""
    for key, value in tests.items():
        if key not in _FORMS:
            raise BadTests(f"{key}: there is no such key; those of tests are {', '.join(_FORMS)}")
        (form, fits), listed = _FORMS[key], key in CASES
        for one in value if listed and isinstance(value, list) else [value]:
            if not fits(one) or (listed and not isinstance(value, list)):
                raise BadTests(f"{key}: must be {'a list, each ' * listed}{form}; found {one!r:.100}")
    if not any(tests.get(kind) for kind in CASES):
        raise BadTests(f"there is no test; give {', '.join(CASES)}, or some of them")
    if tests.get("calls") and "entry_point" not in tests:
        raise BadTests("calls: the key entry_point, the name of the function that is called, is missing")


def run(limits: Limits, sources: Sequence[str], tests: Mapping[str, Any]) -> Verdict:
    """The verdict on a program: the first of `sources` that is valid Python.

    Threads may call this at the same time. Unavailable: this machine cannot isolate it so. BadTests: see `check`, or
    they are not valid Python, their setup raises, or they do not fit into the memory.
    """
    check(tests)
    cases = sum(len(tests.get(kind, ())) for kind in CASES)
    with _lock:  # a fork does not share the servers of its parent
        idle, turns = _servers.setdefault((os.getpid(), limits), ([], threading.BoundedSemaphore(parallel())))
    with turns:
        answer = _answered(limits, idle, json.dumps(list(sources)).encode(), json.dumps(dict(tests)).encode())
    events = answer["events"]
    if "T" in events:
        raise BadTests("the tests are not valid Python, their setup raises, or they do not fit into memory_mb")
    # What tests cannot report comes from a program whose code they have run.
    passed = events.count("P") if re.fullmatch(f"B(S|[PF]{{0,{cases}}})E?", events) else 0
    return Verdict(passed, cases, answer["timed_out"], "S" in events)


def _answered(limits: Limits, idle: list[_Server], program: bytes, tests: bytes) -> dict[str, Any]:
    """The answer of one of the servers that are idle, or of a new one."""
    for _ in range(2):  # a server that was ended from outside is replaced once
        server = idle.pop() if idle else _Server(limits)
        try:
            answer = server.run(program, tests)
        except BaseException:  # such as an interruption
            server.close()
            raise
        if answer is not None and answer["again"]:
            idle.append(server)
        else:
            server.close()
        if answer is not None and (answer["timed_out"] or set("BT") & set(answer["events"])):
            return answer
    raise Unavailable(f"the processes of a program ended twice before they began, within {limits}")


def parallel() -> int:
    """How many programs run at the same time: the cores of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


class _Server:
    """A process of `server`."""

    def __init__(self, limits: Limits):
        """Unavailable: see there."""
        if not sys.platform.startswith("linux"):
            raise Unavailable("programs run on Linux only")
        folder = tempfile.mkdtemp(prefix="rlsweep-sandbox-")
        python, environment, library = getattr(sys, "_base_executable", sys.executable), _ENVIRONMENT, -1
        if limits.isolation != server.NAMESPACES:  # others may not read where Python is, such as in root's home
            library = os.open(sys.base_prefix, os.O_PATH | os.O_DIRECTORY)
            environment = environment | {"PYTHONHOME": f"/proc/self/fd/{library}", "HOME": folder, "TMPDIR": folder}
        # one way each: what the tests execute may be the program's text, and must not answer in their place
        orders, self._orders = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        arguments = [_ROOT, json.dumps(asdict(limits)), folder, str(library)]
        try:
            self._process = subprocess.Popen(
                [python, "-s", "-S", "-B", "-X", "utf8", "-c", _START, *arguments],
                stdin=orders.fileno(),
                stdout=answers.fileno(),
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[library] if library >= 0 else [],
                cwd="/",
                start_new_session=True,
            )
            orders.close()
            answers.close()
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
        with contextlib.suppress(ConnectionError):  # it has answered before it read all: the time was up
            os.write(self._orders.fileno(), b"G")
            self._orders.send_bytes(program)
            self._orders.send_bytes(tests)
        return self._answer()

    def _answer(self) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = json.loads(self._answers.recv_bytes(guest.LARGEST))
        except (EOFError, OSError):
            return None
        return answer

    def close(self) -> None:
        self._orders.close()
        self._answers.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_servers: dict[tuple[int, Limits], tuple[list[_Server], threading.BoundedSemaphore]] = {}
_lock = threading.Lock()


@atexit.register
def close() -> None:
    """End the servers of this process."""
    for (pid, _), (idle, _) in list(_servers.items()):
        while idle and pid == os.getpid():
            idle.pop().close()

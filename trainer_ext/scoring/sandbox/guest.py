"""What runs inside the sandbox: a program, and in another process the tests that call it.

The two share no memory, no files and no process namespace. The tests send arguments or a standard input, and the
program sends back data. Its replies become plain values of built-in types, so nothing of the program takes part in a
comparison, and it never sees what a result is compared with.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import contextlib
import functools
import importlib
import io
import json
import math
import os
import re
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

#: What the tests report: they begin, a case passed or failed, the program is no Python, they are wrong, they end.
BEGIN, PASSED, FAILED, SYNTAX, BAD_TESTS, END = b"B", b"P", b"F", b"S", b"T", b"E"
LARGEST = 1 << 26  # bytes of a message
_TOLERANCE = 1e-6
_WORD = re.compile(r"\w+")  # once, not in each process of tests
#: Values that leave the program, by the name of their kind: their type, their parts, and what becomes of the parts.
_KINDS: Mapping[str, tuple[Any, Callable[[Any], Iterable[Any]], Callable[[Iterable[Any]], Any]]] = {
    "list": (list, list.__iter__, list),
    "tuple": (tuple, tuple.__iter__, tuple),
    "set": (set, set.__iter__, set),
    "frozenset": (frozenset, frozenset.__iter__, frozenset),
    "dict": (dict, dict.items, dict),
    "bytes": ((bytes, bytearray), bytes, bytes),
    "complex": (complex, lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    "iterator": (Iterator, iter, lambda parts: iter(list(parts))),
    "listed": ((range, collections.deque, KeysView, ValuesView, ItemsView), iter, list),
}
_PLAIN: Mapping[type, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}
_MODULE, _FILE = "candidate", "program.py"
#: The standard streams, by names that lead to /proc, which the sandbox has not.
_STREAMS = {"/dev/stdin": 0, "/dev/fd/0": 0, "/dev/stdout": 1, "/dev/fd/1": 1, "/dev/stderr": 2, "/dev/fd/2": 2}


class Opaque:
    """A value of a type that does not leave the program: equal to nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class ProgramLost(BaseException):
    """The program has ended, or sent something else than a reply. No test can catch it by `except Exception`."""


class Raised(Exception):
    """The program raised an exception of its own."""


def encode(value: Any) -> bytes:
    """A value of built-in types as JSON; subclasses become their built-in type, other values are opaque."""
    return json.dumps(_tree(value)).encode()


def _tree(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    for name, (kind, parts, _) in _KINDS.items():
        if isinstance(value, kind):
            return [name, *map(_tree, parts(value))]
    for plain, of in _PLAIN.items():
        if isinstance(value, plain):
            return of(value)
    return ["other"]


def decode(text: bytes) -> Any:
    """The value of a text of `encode`. ValueError, TypeError, RecursionError: it is none."""
    return _value(json.loads(text))


def _value(tree: Any) -> Any:
    if not isinstance(tree, list):
        if isinstance(tree, dict):
            raise ValueError("a mapping is not a value")
        return tree
    name, *parts = tree
    return _KINDS[name][2](map(_value, parts)) if name in _KINDS else Opaque()


# ---------------------------------------------------------------- the program's side


def serve(orders: Connection, link: Connection) -> NoReturn:
    """Run a program, and answer the tests until they end. orders: from where the program is read, and nothing else."""
    sources = json.loads(orders.recv_bytes(LARGEST))
    _silence()
    link.send_bytes(encode("read"))
    _hide()
    code = next(filter(None, map(_compiled, sources)), None)
    link.send_bytes(encode("syntax" if code is None else "compiled"))
    if code is None:
        os._exit(0)
    module: types.ModuleType | None = None
    while True:
        what, *arguments = decode(link.recv_bytes(LARGEST))
        if what == "run":
            reply: Any = _run(code, arguments[0], link)
        else:
            try:
                module = module or _defined(code)
                reply = _answer(module, what, arguments)
            except BaseException as error:
                reply = _raised(error)
        link.send_bytes(encode(reply))


def _compiled(source: str) -> types.CodeType | None:
    try:
        return compile(source.removeprefix("\ufeff"), "<program>", "exec", dont_inherit=True)
    except Exception:
        return None


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)


def _hide() -> None:
    """Remove the sandbox's modules from those that the program finds, and what tells it from a program of a file."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer_ext"]:
        del sys.modules[name]
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    sys.argv[:], opened = [_FILE], io.open
    builtins.open = io.open = lambda file, *more, **named: opened(  # type: ignore[assignment]
        os.dup(_STREAMS[str(file)]) if str(file) in _STREAMS else file, *more, **named
    )


def _defined(code: types.CodeType) -> types.ModuleType:
    """The module that a program makes when it is imported."""
    module = sys.modules[_MODULE] = types.ModuleType(_MODULE)
    module.__file__ = os.path.abspath(_FILE)
    with contextlib.suppress(SystemExit):
        exec(code, vars(module))
    return module


def _answer(module: types.ModuleType, what: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    if what == "names":
        return "names", [name for name, value in vars(module).items() if callable(value) and name != "__builtins__"]
    name, positional, named = arguments
    function = getattr(module, name, None)
    if function is None and hasattr(module, "Solution"):
        function = getattr(module.Solution(), name, None)
    if function is None:
        raise NameError(f"name {name!r} is not defined")
    value = function(*positional, **named)
    if isinstance(value, types.CoroutineType):
        return "awaited", importlib.import_module("asyncio").run(value)
    return "value", value


def _raised(error: BaseException) -> tuple[Any, ...]:
    return "raised", [kind.__name__ for kind in type(error).__mro__], str(error)[:1000]


def _run(code: types.CodeType, text: str, link: Connection) -> tuple[Any, ...]:
    """Run the program as a script of its own; its output, and whether it ended well."""
    with tempfile.TemporaryFile(dir=".") as given, tempfile.TemporaryFile(dir=".") as output:
        given.write(text.encode("utf-8", "surrogatepass"))
        given.seek(0)
        if not (pid := os.fork()):
            status = 1
            try:
                os.dup2(given.fileno(), 0)
                os.dup2(output.fileno(), 1)
                link.close()
                status = _script(code)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if os.getpid() == 1:  # of a process namespace
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
                while True:
                    os.wait()
        output.seek(0)
        return "printed", output.read().decode("utf-8", "replace"), status


def _script(code: types.CodeType) -> int:
    """Run the program, then what Python does at its end; the exit status."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__, status = os.path.abspath(_FILE), 0
    sys.stdin.reconfigure(newline=None)  # type: ignore[union-attr]  # the lines of tests may end as on Windows
    try:
        exec(code, vars(module))
    except SystemExit as error:
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    except BaseException:
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(ValueError):  # closed, or detached
        sys.stdout.flush()
    vars(module).clear()  # closes its files
    with contextlib.suppress(ValueError):
        sys.__stdout__.flush()  # type: ignore[union-attr]
    return status & 0xFF


# ---------------------------------------------------------------- the tests' side


class Program:
    """The program under test, from the process of its tests. Its methods raise ProgramLost."""

    def __init__(self, link: Connection):
        self._link = link
        self.lost = False  # it has ended before its tests

    def names(self) -> list[str]:
        """The functions and classes that the program defines."""
        reply = self._ask("names")
        return [name for name in reply[1] if isinstance(name, str)] if reply[0] == "names" else []

    def function(self, name: str) -> Callable[..., Any]:
        """A function that calls the program's function of this name."""

        def call(*arguments: Any, **named: Any) -> Any:
            reply = self._ask("call", name, arguments, named)
            return _awaited(reply[1]) if reply[0] == "awaited" else _result(reply)

        call.__name__ = name
        return call

    def run(self, text: str) -> tuple[str, int]:
        """The output of the program for a standard input, and its exit status."""
        reply = self._ask("run", text)
        if reply[0] != "printed" or not isinstance(reply[1], str) or not isinstance(reply[2], int):
            raise self._broken()
        return reply[1], reply[2]

    def _ask(self, *question: Any) -> tuple[Any, ...]:
        if self.lost:
            raise ProgramLost
        with contextlib.suppress(OSError):  # then it does not reply either
            self._link.send_bytes(encode(question))
        reply = self.reply()
        if not isinstance(reply, tuple) or len(reply) < 2 or (reply[0] == "raised" and len(reply) < 3):
            raise self._broken()
        return reply

    def reply(self) -> Any:
        """What the program says next."""
        try:
            return decode(self._link.recv_bytes(LARGEST))
        except (EOFError, OSError, ValueError, TypeError, IndexError, RecursionError, MemoryError):
            raise self._broken() from None

    def _broken(self) -> ProgramLost:
        self.lost = True
        return ProgramLost()


async def _awaited(value: Any) -> Any:
    return value


def _result(reply: Sequence[Any]) -> Any:
    """The value of a reply. Raises the nearest built-in type of what the program raised, else Raised."""
    if reply[0] == "value":
        return reply[1]
    names, text = reply[1] if isinstance(reply[1], list) else [], str(reply[2])
    for known in (vars(builtins).get(name) for name in names if isinstance(name, str)):
        if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, UnicodeError):
            raise (Raised if known is Exception else known)(text)
    raise Raised(text)


def _evaluated(source: Any, *scope: Any) -> Any:
    """`eval` of the tests, whose text may be the program's: in a process without the program and the verdict."""
    scope = scope or (sys._getframe(1).f_globals, sys._getframe(1).f_locals)
    ours, theirs = Pipe(duplex=False)
    if not (pid := os.fork()):
        with contextlib.suppress(BaseException):
            os.closerange(0, theirs.fileno())
            os.closerange(theirs.fileno() + 1, 1 << 10)
            try:
                reply: Any = "value", eval(source, *scope)
            except Exception as error:
                reply = _raised(error)
            theirs.send_bytes(encode(reply))
        os._exit(0)
    theirs.close()
    try:
        return _result(decode(ours.recv_bytes(LARGEST)))
    finally:
        ours.close()
        os.waitpid(pid, 0)


def check(orders: Connection, link: Connection, verdict: int) -> NoReturn:
    """Run the tests of a program and report each case. orders: from where the tests are read, once the program was."""
    program, report = Program(link), functools.partial(os.write, verdict)
    if program.reply() != "read":
        os._exit(1)
    try:
        tests = json.loads(orders.recv_bytes(LARGEST))
    except (ValueError, OSError, MemoryError):
        report(BAD_TESTS)
        os._exit(0)
    report(BEGIN)
    with contextlib.suppress(ProgramLost):
        if program.reply() != "compiled":
            report(SYNTAX)
        elif not _prepared(program, tests, report):
            report(BAD_TESTS)
    report(END)
    os._exit(0)


def _prepared(program: Program, tests: Mapping[str, Any], report: Callable[[bytes], object]) -> bool:
    """Run all cases; False: the tests themselves are wrong."""
    for text, expected in tests.get("stdio", ()):
        printed, status = program.run(text)
        report(PASSED if status == 0 and same_output(printed, expected) else FAILED)
    for arguments, *expected in tests.get("calls", ()):
        report(_case(program, lambda: _called(program, tests["entry_point"], arguments, expected)))  # noqa: B023
    if not tests.get("tests"):
        return True
    namespace: dict[str, Any] = {"__name__": "tests", "eval": _evaluated}
    try:
        exec(compile(tests.get("setup", ""), "<setup>", "exec", dont_inherit=True), namespace)
        codes = [compile(test, "<test>", "exec", dont_inherit=True) for test in tests["tests"]]
    except Exception:
        return False
    if tests.get("entry_point"):
        namespace[tests["entry_point"]] = namespace["candidate"] = program.function(tests["entry_point"])
    else:  # what the tests define is not replaced, nor what Python does unless they use nothing else of the program
        names = program.names()
        own = [name for name in names if not hasattr(builtins, name)]
        texts = [tests.get("setup", ""), *tests["tests"]]
        names = own if {*own} & set(_WORD.findall(" ".join(texts))) else names
        namespace = {name: program.function(name) for name in names} | namespace
    for code in codes:
        report(_case(program, lambda: exec(code, namespace)))  # noqa: B023
    return True


def _case(program: Program, run: Callable[[], Any]) -> bytes:
    try:
        run()
    except ProgramLost:
        raise
    except BaseException:  # also SystemExit and KeyboardInterrupt
        return FAILED
    if program.lost:  # a test caught it
        raise ProgramLost
    return PASSED


def _called(program: Program, name: str, arguments: Sequence[Any], expected: Any) -> None:
    result = _lists(program.function(name)(*arguments))
    assert any(result == _lists(one) for one in expected)


def _lists(value: Any) -> Any:
    """A value as JSON has it: tuples are lists. Booleans, which Python has equal to numbers, are in tuples."""
    if isinstance(value, bool):
        return (value,)
    if isinstance(value, (list, tuple)):
        return [_lists(one) for one in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else json.dumps(key): _lists(one) for key, one in value.items()}
    return value


def same_output(printed: str, expected: str) -> bool:
    """Whether two outputs have the same lines and words; numbers with a point may differ by 1e-6, or that share."""
    ours = [line.split() for line in printed.strip().splitlines()]
    theirs = [line.split() for line in expected.strip().splitlines()]
    if ours == theirs:
        return True
    if [len(line) for line in ours] != [len(line) for line in theirs]:
        return False
    pairs = [pair for one, other in zip(ours, theirs, strict=True) for pair in zip(one, other, strict=True)]
    return all(one == other or _near(one, other) for one, other in pairs)


def _near(one: str, other: str) -> bool:
    if "." not in one + other:
        return False
    try:
        return math.isclose(float(one), float(other), rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    except ValueError:
        return False

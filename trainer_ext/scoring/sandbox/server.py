"""A small Python process that starts the processes of programs and of their tests, by forks of itself.

It reads neither: a process that it starts reads the program, another one reads the tests. So its memory, which its
children inherit, holds nothing of earlier programs and tests.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

from trainer_ext.scoring.sandbox import guest, kernel

NAMESPACES = "namespaces"
#: What programs import most is in memory before they are started.
_COMMON = (
    "bisect collections copy dataclasses datetime decimal enum fractions functools hashlib heapq itertools math "
    "operator random re statistics string threading typing"
)
#: What every program must be able to import: a module in Python, compiled ones, and one that imports many others.
_PROBED = "csv unicodedata unittest"
#: Where any user may write.
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")


class ProgramServer:
    """One program at a time. settings: isolation, seconds, memory_mb, processes, file_mb; folder: an empty one;
    library: the descriptor of Python's folder, -1 for none; orders: from the run. OSError: the kernel refuses it, or no
    module is found."""

    def __init__(self, settings: dict[str, Any], folder: str, library: int, orders: Connection):
        self._settings, self._folder, self._library, self._orders = settings, folder, {library} - {-1}, orders
        kernel.system_call_filter()
        self._uid = kernel.user_of_programs()
        self._others = kernel.counted_with(settings["isolation"] == NAMESPACES)
        # if the machine's memory runs out, the kernel ends this process and its children before the run
        Path("/proc/self/oom_score_adj").write_text("1000")
        self._home = None
        if settings["isolation"] == NAMESPACES:
            self._home = kernel.leave_the_machine(folder, sys.base_prefix)
        else:
            kernel.watch_over(folder)
        if os.waitstatus_to_exitcode(os.waitpid(self._start(_probe, set()), 0)[1]):
            who = f"programs, which run as user {self._uid}," if self._uid else "programs"
            what = f"cannot import Python's modules {_PROBED} within {settings}"
            raise kernel.Refused(1, f"{who} {what}; let them read {sys.prefix}, or raise the limits")

    def run(self) -> dict[str, Any]:
        """The events of one program's tests, whether the time was up, and whether the next one may follow."""
        ours, theirs = Pipe()
        events, report = os.pipe()
        program = self._start(lambda: guest.serve(self._orders, theirs), {0, theirs.fileno()})
        tests = self._start(lambda: guest.check(self._orders, ours, report), {0, ours.fileno(), report})
        ours.close()
        theirs.close()
        os.close(report)
        seen, timed_out = self._watch(events)
        os.close(events)
        used = self._end(program)
        self._end(tests)
        if not self._home:
            self._sweep()
        out_of_cpu = used.ru_utime + used.ru_stime >= self._settings["seconds"]
        return {"events": seen.decode(), "timed_out": timed_out or out_of_cpu, "again": guest.END in seen}

    def _start(self, work: Callable[[], NoReturn], kept: set[int]) -> int:
        pid = self._home.fork() if self._home else os.fork()
        if pid:
            return pid
        try:
            for before, after in itertools.pairwise([-1, *sorted(kept | self._library), 1 << 10]):
                if after > before + 1:  # closerange(0, 0) closes everything
                    os.closerange(before + 1, after)
            kernel.confine(self._settings, self._uid, self._others, self._home is not None)
            work()
        finally:
            os._exit(1)

    def _watch(self, events: int) -> tuple[bytes, bool]:
        """What the tests report until they end, or until the time is up; whether it was."""
        deadline = time.monotonic() + self._settings["seconds"]
        waiting = select.poll()
        waiting.register(events, select.POLLIN)
        waiting.register(0, 0)  # the run has ended
        seen = b""
        while (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in waiting.poll(1000 * left + 1):
                piece = os.read(events, 1 << 16) if descriptor else b""
                if not piece:
                    return seen, False
                seen += piece
        return seen, True

    def _end(self, pid: int) -> Any:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return os.wait4(pid, 0)[2]

    def _sweep(self) -> None:
        """End what a program without a process namespace has left, and remove its files."""
        while left := kernel.descendants(os.getpid()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        for place in (self._folder, *(_SHARED if self._uid else ())):
            for entry in os.scandir(place) if os.path.isdir(place) else ():
                with contextlib.suppress(OSError):
                    if place == self._folder or entry.stat(follow_symlinks=False).st_uid == self._uid:
                        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


def _probe() -> NoReturn:
    for name in _PROBED.split():
        importlib.import_module(name)
    os._exit(0)


def main() -> None:
    """Serve until the standard input ends. Arguments: the settings as JSON, an empty folder, and the
    descriptor of Python's folder (-1 for none)."""
    root, settings, folder, library = sys.argv[1:]
    sys.path.remove(root)
    sys.set_int_max_str_digits(0)
    for name in _COMMON.split():
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the run
    orders, answers = Connection(0, writable=False), Connection(1, readable=False)
    try:
        server = ProgramServer(json.loads(settings), folder, int(library), orders)
    except OSError as error:
        answers.send_bytes(json.dumps({"refused": error.strerror or str(error)}).encode())
        return
    answers.send_bytes(json.dumps({"refused": None}).encode())
    gc.collect()
    gc.freeze()
    while os.read(0, 1):
        answer = server.run()
        answers.send_bytes(json.dumps(answer).encode())
        if not answer["again"]:
            return

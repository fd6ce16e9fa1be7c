"""The processes of runs: workers that a scheduler starts, whose jobs are not worker processes themselves, and children
that a run forks.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from launcher.project import NO_DEVICES, ONE_THREAD, ROOT

_PR_SET_PDEATHSIG = 1
Result = TypeVar("Result")


def start(folder: Path, record: Path, nodes: int = 1, devices: int | None = None) -> subprocess.Popen[bytes]:
    """Start a worker on a frozen run, with the code of this tree.

    `record` is the file of the launch, `nodes` the number of the job's. devices: how many the job has asked for on each
    node; with 0, the worker sees none of the node's. When the thread that called this ends, the worker gets SIGTERM (on
    Linux), saves a checkpoint and stops.
    """
    command = [sys.executable, "-m", "launcher.worker", str(folder), "--launch", str(record), "--nodes", str(nodes)]
    environment = {**ONE_THREAD, **os.environ}
    if devices == 0:
        environment["CUDA_VISIBLE_DEVICES"] = NO_DEVICES
    return subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=prepare)


@contextmanager
def handling(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals in this way for the time of the block. Only the main thread may call it."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def in_one_process(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function. A child that it has forked, and that returns from it or raises, ends as at the end of a program:
    what comes after the call is the parent's alone."""

    @functools.wraps(function)
    def _call_in_one_process(*given: Any, **named: Any) -> Result:
        parent, code = os.getpid(), 0
        try:
            result = function(*given, **named)
        except BaseException as error:
            if os.getpid() == parent:
                raise
            if not isinstance(error, SystemExit):
                traceback.print_exc()
            code = (error.code or 0) if isinstance(error, SystemExit) and isinstance(error.code, int | None) else 1
        if os.getpid() == parent:
            return result
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return _call_in_one_process


def prepare(when_orphaned: signal.Signals = signal.SIGTERM) -> None:
    """In the worker process, before it starts. SLURM sends its early warning, SIGUSR2, to all processes of a job."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, when_orphaned)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

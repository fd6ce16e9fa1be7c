"""Starting `python -m launcher.worker` as a process, for schedulers whose jobs are not worker processes themselves."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from launcher.project import NO_DEVICES, ONE_THREAD, ROOT

_PR_SET_PDEATHSIG = 1


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
    return subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=_prepare)


@contextmanager
def handling(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals in this way for the time of the block. Only the main thread may call it."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def _prepare() -> None:
    """In the worker process, before it starts. SLURM sends its early warning, SIGUSR2, to all processes of a job."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

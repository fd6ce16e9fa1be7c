"""A worker as a process of its own, for schedulers whose jobs do not begin as one: `python -m launcher.worker`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from launcher.worker import worker

_PR_SET_PDEATHSIG = 1


def start(folder: Path, record: Path, job: str, train: str = worker.TRAIN) -> subprocess.Popen[bytes]:
    """Start a worker on a frozen run. `record` is what `Launch.write` returned, `job` the token that its state names.

    The code is that of the tree this file lies in. The worker gets SIGTERM, so it saves a checkpoint and stops, when
    the thread that called this is gone (Linux).
    """
    command = [sys.executable, "-m", "launcher.worker", str(folder), "--launch", str(record), "--job", job]
    root = Path(__file__).resolve().parents[2]
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ}
    return subprocess.Popen([*command, "--train", train], cwd=root, env=environment, preexec_fn=_before)


def _before() -> None:
    """In the worker, before it begins. SLURM sends its early warning, SIGUSR2, to all of a job: it would kill."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

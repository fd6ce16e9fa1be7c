"""What a Ray task does: one run, in a fork of the warm server that its Ray worker keeps for the next run.

A run's process outlives its Ray worker when that dies: it saves a checkpoint, and says in its state whose death it was.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.run import claim, launch_record, lifecycle
from launcher.run.launch_record import Launch
from launcher.schedulers.local.limits import limits
from launcher.schedulers.local.pool import Pool

_LOOK_S = 0.5


@dataclass(frozen=True)
class Work:
    """What every task of one launch shares: paths that all nodes see, the cluster's settings, and two functions.

    `train` and `task`, each as module:function: what trains, and what a task calls, with `run`'s arguments.
    """

    root: str
    record: str
    train: str
    cluster: Mapping[str, Any]
    task: str


def run(folder: str, job: str, work: Work) -> int | None:
    """Do one attempt at a run; the exit code of its process. Cancelling the task asks the run to stop."""
    asked = False

    def on_interrupt(_number: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    previous = signal.signal(signal.SIGINT, on_interrupt)  # what Ray sends to cancel a task that has begun
    try:
        # Ray names the devices of each task anew; the server of warm workers stays.
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        pool = Pool([devices], Path(work.root), work.train, _launch(work.record), limits(work.cluster), gone)
        if asked:
            return None
        pool.submit(Path(folder), job)
        while not (ended := pool.poll(_LOOK_S)):
            if asked:
                pool.cancel()
        return ended[0].exit_code
    finally:
        signal.signal(signal.SIGINT, previous)


@functools.cache
def _launch(record: str) -> Launch:
    return launch_record.read(Path(record))


def gone() -> tuple[str, str]:
    """In a run whose Ray worker is gone: what of Ray died with it, on this node."""
    raylet = int(os.environ.get("RAY_RAYLET_PID", 0))
    if raylet and claim.process_start(raylet) is None:
        return lifecycle.NODE_FAILURE, f"Ray ended on this node: its raylet (process {raylet}) is gone"
    return lifecycle.LOST, "the Ray worker that ran it died"

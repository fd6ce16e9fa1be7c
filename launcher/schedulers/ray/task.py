"""What a Ray task executes: one run, in a fork of the warm server that its Ray worker keeps for the next run.

If the Ray worker dies, the run's process saves a checkpoint, and its state says what died.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.run import claim, launch_record
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.local.limits import limits
from launcher.schedulers.local.pool import Pool
from launcher.worker.process import handling
from launcher.worker.worker import Reason

_CHECK_S = 0.5


@dataclass(frozen=True)
class Work:
    """What all tasks of one launch share: paths that all nodes see, and the cluster's settings.

    `train` names the training function, and `task` the function that a task calls, with `run`'s arguments.
    """

    root: str
    record: str
    train: str
    cluster: Mapping[str, Any]
    task: str


def run(folder: str, launch_id: str, work: Work) -> int | None:
    """Do one attempt at a run; the exit code of its process. Cancelling the task asks the run to stop."""
    asked = False

    def on_interrupt(_number: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    with handling((signal.SIGINT,), on_interrupt):  # Ray sends it to cancel a task that has started
        # Ray chooses the devices of each task. The server of warm workers stays.
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        pool = Pool([devices], Path(work.root), work.train, _launch(work.record), limits(work.cluster), orphaned)
        if asked:
            return None
        pool.submit(Path(folder), launch_id)
        while not (ended := pool.poll(_CHECK_S)):
            if asked:
                pool.cancel()
        return ended[0].exit_code


@functools.cache
def _launch(record: str) -> Launch:
    return launch_record.read(Path(record))


def orphaned() -> Reason:
    """Why a run stops whose Ray worker is gone: whether Ray itself ended on this node."""
    raylet = int(os.environ.get("RAY_RAYLET_PID", 0))
    if raylet and claim.process_start(raylet) is None:
        return FailureKind.NODE_FAILURE, f"Ray ended on this node: its raylet (process {raylet}) is gone"
    return FailureKind.LOST, "the Ray worker that ran it died"

"""The protocol of a scheduler: it takes runs, and reports those whose jobs have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.run.lifecycle import FailureKind


@dataclass(frozen=True)
class Ended:
    """A job that ended: the run's folder and the exit code of its worker; -9 means killed by signal 9.

    The result of the run is in its state file. If the worker died before it wrote a state, `failure_kind` and `message`
    are what the scheduler knows of its end. `launch_id` is that of an adopted job, which another launch submitted.
    """

    folder: Path
    exit_code: int | None
    failure_kind: FailureKind | None = None
    message: str | None = None
    launch_id: str | None = None


class SchedulerError(RuntimeError):
    """The scheduler itself failed, not a run."""


class Scheduler(Protocol):
    """Takes frozen runs and executes launcher.worker on each of them."""

    def capacity(self) -> int:
        """How many more runs it takes now."""
        ...

    def submit(self, folder: Path, launch_id: str) -> None:
        """Start a run.

        `launch_id` is in its state, and its worker writes it again. SchedulerError: no run can start.
        """
        ...

    def poll(self, timeout: float) -> Sequence[Ended]:
        """The jobs that ended since the last call; waits at most `timeout` seconds for one."""
        ...

    def withdraw(self) -> int:
        """Take back the jobs that have not started; how many. Their runs wait for another launch."""
        ...

    def cancel(self, kill: bool = False) -> None:
        """Ask every job to checkpoint and stop, or kill it."""
        ...

    def close(self) -> None:
        """Release what the scheduler holds. Running jobs are asked to stop and waited for."""
        ...

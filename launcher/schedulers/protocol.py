"""What a scheduler is to the rest: a small protocol, which takes runs and tells of those that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Ended:
    """A job that ended: the run's folder and its exit code; -9 means killed by signal 9.

    The exit code is not the result: what the run came to stands in its state file. Where that says nothing, because
    the worker died without a word, `kind` (one of lifecycle.CAUSES) and `cause` are the scheduler's own account, if it
    has one. `job` is the token that the worker wrote into its state, where that is another launch's: of an adopted job.
    """

    folder: Path
    exit_code: int | None
    kind: str | None = None
    cause: str | None = None
    job: str | None = None


class SchedulerError(RuntimeError):
    """The scheduler itself failed, not a run."""


class Scheduler(Protocol):
    """Takes frozen runs and executes launcher.worker on each of them."""

    def capacity(self) -> int:
        """How many more runs it takes now."""
        ...

    def submit(self, folder: Path, job: str) -> None:
        """Start a run; `job` stands in its state, and its worker repeats it. SchedulerError: it cannot start any."""
        ...

    def poll(self, timeout: float) -> Sequence[Ended]:
        """The jobs that ended since the last call; waits at most `timeout` seconds for one."""
        ...

    def withdraw(self) -> int:
        """Take back the jobs that have not begun, and tell how many; their runs wait for another launch."""
        ...

    def cancel(self, kill: bool = False) -> None:
        """Ask every job to checkpoint and stop, or kill it."""
        ...

    def close(self) -> None:
        """Give up what the scheduler holds; running jobs are asked to stop and waited for."""
        ...

"""The protocol of a batch system: four calls without a state. A module with these four functions can implement it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from launcher.application import Shape
from launcher.project import PACKAGES
from launcher.run.lifecycle import FailureKind

#: The environment variable of a job that holds its place in the array, from 0.
INDEX = "RLSWEEP_INDEX"


class Phase(StrEnum):
    """How far a job is. HELD: it waits, and does not start by itself. ENDING: its processes are being ended; it may
    wait again after that. STUCK: the system could not start it and holds it. FAILED: it ended with an error.
    """

    WAITING = "waiting"
    HELD = "held"
    RUNNING = "running"
    ENDING = "ending"
    STUCK = "stuck"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True)
class Job:
    """One job of an array, or a single one. `index`: its place in the array, from 0.

    `failure_kind` is how it ended, used if the run itself recorded no reason; `state` is the system's description of
    that, or the command that cancelled it. `node` is where it ran last, or empty.
    """

    id: str
    name: str
    index: int
    phase: Phase
    failure_kind: FailureKind = FailureKind.LOST
    state: str = ""
    node: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in (Phase.ENDED, Phase.FAILED)


@dataclass(frozen=True)
class Array:
    """Jobs to submit together, all with the same resources: `shape`, for each of them.

    command: what each job executes, with INDEX in its environment. code: the folder to execute it in. logs: the folder
    for what job 12_3 prints, in a file 12_3.log. settings: the plan's section `cluster`. throttle: how many may run at
    a time. exclude: nodes that do not work. after: the ids of jobs or arrays that must have ended before.
    """

    name: str
    command: Sequence[str]
    size: int
    shape: Shape
    code: Path
    logs: Path
    settings: Mapping[str, Any]
    throttle: int = 1
    exclude: frozenset[str] = field(default_factory=frozenset)
    after: Sequence[str] = ()

    def preparation(self, index: str) -> list[str]:
        """The shell commands before the command of a job, with the user's: `setup` of the settings.

        index: shell text for the job's place, such as ${SLURM_ARRAY_TASK_ID:-0}.
        """
        return [
            f"cd {shlex.quote(str(self.code))} || exit 1",
            *self.settings["setup"],
            f"export PYTHONPATH=$PWD:$PWD/{PACKAGES}${{PYTHONPATH:+:$PYTHONPATH}}",
            f'export {INDEX}="{index}"',
        ]

    def script(self, index: str) -> str:
        """A job as a shell script; `index` as for `preparation`."""
        return "\n".join([*self.preparation(index), shlex.join(self.command), ""])


class Refusal(StrEnum):
    """Why a system refuses jobs, which decides what follows.

    NOW: it may accept them later. TOO_MANY: a limit on the number of jobs, which other jobs free when they end. LIMIT:
    another limit, which may be met when this launch's jobs have ended. NEVER: the launch ends.
    """

    NOW = "now"
    TOO_MANY = "too many"
    LIMIT = "limit"
    NEVER = "never"


class Refused(Exception):
    """The system accepted no job of an array; the message is what it said."""

    def __init__(self, message: str, refusal: Refusal = Refusal.NEVER) -> None:
        super().__init__(message)
        self.refusal = refusal


class Unanswered(Exception):
    """The system did not say whether it accepted the jobs; those that it shows later are adopted."""


class System(Protocol):
    """A batch system. NAME is for users; PROGRAM is the module that each job executes: batch.job, or one like it."""

    NAME: str
    PROGRAM: str

    def submit(self, array: Array) -> Sequence[str]:
        """Submit jobs; their ids, in their order: 12_0, 12_1 in the array 12, or 12. Raises Refused and Unanswered."""

    def jobs(self, prefix: str) -> Mapping[str, Job] | None:
        """By id, this user's jobs whose names begin with `prefix`; those that have ended may be among them.

        None: the system does not answer.
        """

    def ended(self, names: Mapping[str, str]) -> Mapping[str, Job]:
        """How jobs ended that `jobs` no longer shows, as far as this is known. `names`: by job id.

        A job of another name is left out: a system may use an id again.
        """

    def cancel(self, names: Mapping[str, str], waiting: bool) -> None:
        """Cancel jobs. `names`: by job id; waiting: only those that have not started."""

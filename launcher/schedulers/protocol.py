"""The schedulers that `cluster=` can name: each takes runs, and reports those whose jobs have ended.

A scheduler is a module (Cluster), which is imported only when a plan names it. Another installed package adds one with
an entry point `NAME = "module"` of the group `rlsweep.schedulers`. Its module also has the keys of its section,
`Settings` (launcher.planning.clusters), and its package the file conf/cluster/NAME.yaml.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from launcher.config import installed_parts
from launcher.errors import InvalidPlan, Usage
from launcher.errors import SchedulerError as SchedulerError
from launcher.planning.clusters import CLUSTERS
from launcher.planning.plan import Plan
from launcher.run import lifecycle
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import FailureKind
from launcher.schedulers.batch.system import Refused, Unanswered

#: What becomes of a launch whose scheduler fails.
CONTINUES = "jobs submitted before continue; repeat the command to follow them"


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


class Scheduler(Protocol):
    """Takes frozen runs and executes launcher.worker on each of them."""

    def capacity(self) -> int:
        """How many more runs it takes now."""

    def submit(self, folder: Path) -> None:
        """Start a run, which comes back once by `poll`, also if it is withdrawn. SchedulerError: no run can start."""

    def poll(self, timeout: float) -> Sequence[Ended]:
        """The jobs that ended since the last call; waits at most `timeout` seconds for one."""

    def withdraw(self) -> int:
        """Take back the jobs that have not started; how many. Their runs wait for another launch."""
        return 0

    def cancel(self, kill: bool = False) -> None:
        """Ask every job to checkpoint and stop, or kill it."""

    def close(self) -> None:
        """Release what the scheduler holds. Running jobs are asked to stop and waited for."""


@dataclass(frozen=True)
class Order:
    """What to run. `root`: the project's folder; `run_ids`: the ids of the runs; `record`: the file of `launch`."""

    root: Path
    plan: Plan
    run_ids: Sequence[str]
    launch: Launch
    record: Path


@dataclass(frozen=True)
class StartedScheduler:
    """A started scheduler, its name for users, and its number of workers if that is fixed.

    `starting`: what happens until its first run starts, for users. `detached`: called after all runs were submitted,
    instead of waiting for them; it returns a message for the user.
    """

    scheduler: Scheduler
    name: str
    workers: int | None = None
    detached: Callable[[], str] | None = None
    starting: str | None = None


def blamed(module: Any, function: str, *given: Any) -> Any:
    """What a function of a scheduler's module returns. What one of another package raises, other than by its protocol,
    becomes a SchedulerError with the place."""
    try:
        return getattr(module, function)(*given)
    except Exception as error:
        own = (InvalidPlan, SchedulerError, Usage, *((Refused, Unanswered) if function == "submit" else ()))
        name = getattr(module, "__name__", type(module).__name__)
        if isinstance(error, own) or name.startswith("launcher.") or lifecycle.is_disk_full(error):
            raise
        place = lifecycle.place(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        told = (f"{name}.{function} failed: {lifecycle.described(error)}", place, CONTINUES)
        raise SchedulerError("; ".join(filter(None, told))) from error


class Cluster(Protocol):
    """What the module of a cluster has. It may also have `slots`, which the function of this name calls."""

    def check_here(self, plan: Plan, run_ids: Sequence[str]) -> None:
        """Raise InvalidPlan when these runs cannot be run there, so far as that is known without the cluster."""

    def check(self, plan: Plan, run_ids: Sequence[str]) -> None:
        """`check_here`, and what the cluster itself refuses. Writes and submits nothing."""

    def start(self, order: Order) -> StartedScheduler:
        """Start a scheduler; it runs nothing before its first `submit`.

        Raises SchedulerError, and InvalidPlan if only the cluster itself can find the problem.
        """


def find(plan: Plan) -> Cluster:
    """The cluster that a plan names."""
    name = plan.cluster["name"]
    if name in CLUSTERS:
        return cast(Cluster, importlib.import_module(f"launcher.schedulers.{name}.cluster"))
    (entry, *_) = installed_parts.schedulers().select(name=name)  # the plan has checked it
    return cast(Cluster, entry.load())


def slots(plan: Plan) -> int | None:
    """How many runs the plan's cluster executes at a time; None if its queue decides."""
    cluster, count = find(plan), plan.cluster.get("max_running")
    return blamed(cluster, "slots", plan) if hasattr(cluster, "slots") else count

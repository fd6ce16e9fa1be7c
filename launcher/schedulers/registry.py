"""Which scheduler `cluster=` names: one module each, imported when it is wanted."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from launcher.errors import InvalidPlan, Problem
from launcher.planning.plan import Plan
from launcher.run.launch_record import Launch
from launcher.schedulers.protocol import Scheduler

#: conf/cluster/<file>.yaml: name -> the module that fulfils Cluster.
CLUSTERS: Mapping[str, str] = {
    "local": "launcher.schedulers.local.cluster",
    "slurm": "launcher.schedulers.slurm.cluster",
    "ray": "launcher.schedulers.ray.cluster",
}


@dataclass(frozen=True)
class Order:
    """What a scheduler is started for. `root`: the project's folder; `wanted`: the ids of the runs to do.

    `train` names the training function; `record` is the file of `launch`, in plan.multirun.
    """

    root: Path
    plan: Plan
    wanted: Sequence[str]
    train: str
    launch: Launch
    record: Path


@dataclass(frozen=True)
class Place:
    """A started scheduler, what to call it, and its number of workers where that is fixed.

    `detached`: called when all runs were handed to the scheduler, instead of waiting for them; what to tell the user.
    """

    scheduler: Scheduler
    where: str
    workers: int | None = None
    detached: Callable[[], str] | None = None


class Cluster(Protocol):
    """What the module of a cluster offers."""

    def check(self, plan: Plan, wanted: Sequence[str]) -> None:
        """Raise InvalidPlan when these runs cannot be run there. Writes and submits nothing."""
        ...

    def start(self, order: Order) -> Place:
        """Start a scheduler; no run begins before its first `submit`.

        Raises SchedulerError, and InvalidPlan where only the cluster itself can tell.
        """
        ...


def find(plan: Plan) -> Cluster:
    """The cluster that a plan names. Raises InvalidPlan."""
    name = plan.cluster["name"]
    if name not in CLUSTERS:
        rule = f"must be one of {', '.join(CLUSTERS)}"
        raise InvalidPlan([Problem("conf/cluster", "cluster.name", name, rule, "choose a file: cluster=local")])
    return cast(Cluster, importlib.import_module(CLUSTERS[name]))

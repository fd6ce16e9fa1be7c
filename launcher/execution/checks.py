"""What refuses a launch before it writes anything: one list, which a dry run (`plan`) and a launch both run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.errors import InvalidPlan, Problem
from launcher.planning import continuation
from launcher.planning.plan import Plan
from launcher.schedulers import registry


def refuse(plan: Plan, run_ids: Sequence[str], launches: bool, plugin: bool = False) -> None:
    """Raise InvalidPlan with every reason why a launch cannot run these runs.

    launches: whether the cluster may be asked, too; a dry run asks none. plugin: whether a launcher of Hydra takes the
    place of the cluster.
    """
    problems: list[Problem] = []
    for check in (_writable, continuation.check, *(() if plugin else (_of_cluster(plan, launches),))):
        try:
            check(plan, run_ids)
        except InvalidPlan as invalid:
            problems += invalid.problems
    if problems:
        raise InvalidPlan(problems)


def _of_cluster(plan: Plan, launches: bool) -> Callable[[Plan, Sequence[str]], None]:
    cluster = registry.find(plan)
    return cluster.check if launches else cluster.check_here


def _writable(plan: Plan, run_ids: Sequence[str]) -> None:
    multirun = plan.multirun
    place = next(folder for folder in (multirun, *multirun.resolve().parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise not_writable(multirun, "is not writable" if place == multirun else f"cannot be created in {place}")


def not_writable(multirun: Path, why: str) -> InvalidPlan:
    """The problem of a multirun folder that a launch cannot use; why: `is not writable`."""
    problem = Problem("configuration", "multirun", str(multirun), f"this folder {why}", "name another: multirun=FOLDER")
    return InvalidPlan([problem])

"""What refuses a launch before it writes anything: one list, which a dry run (`plan`) and a launch both run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import Diagnostics, InvalidPlan, Objection, missing
from launcher.planning import freeze
from launcher.planning.plan import Plan
from launcher.schedulers import protocol
from launcher.tracking.settings import ONLINE

#: Settings that need a package of an extra: their section, key and value, and the package.
_PACKAGES = (
    ("cluster", "name", "ray", "ray"),
    ("tracking", "wandb", ONLINE, "wandb"),
    ("tracking", "tensorboard", True, "tensorboard"),
)


def refuse(plan: Plan, run_ids: Sequence[str] | None, launches: bool, plugin: bool = False) -> None:
    """Raise InvalidPlan with the reasons why a launch cannot run these runs; None: those that it would run.

    launches: whether the cluster may be asked, too; a dry run asks none. plugin: whether a launcher of Hydra takes the
    place of the cluster.
    """
    multirun = plan.multirun
    place = next(folder for folder in (multirun, *multirun.resolve().parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        rule = f"this folder {'is not writable' if place == multirun else f'cannot be created in {place}'}"
        fix = "name another: multirun=FOLDER"
        raise InvalidPlan([Objection("multirun", multirun, rule, fix, "configuration")])
    _refuse_without_packages({"tracking": plan.tracking, **({} if plugin else {"cluster": plan.cluster})})
    if not plugin:
        cluster = protocol.find(plan)
        check = cluster.check if launches else cluster.check_here
        check(plan, freeze.missing(plan) if run_ids is None else run_ids)


def _refuse_without_packages(sections: Mapping[str, Mapping[str, Any]]) -> None:
    problems = Diagnostics()
    for section, key, value, package in _PACKAGES:
        if sections.get(section, {}).get(key) == value and (absent := missing(package)) is not None:
            problems.add("configuration", f"{section}.{key}", str(value), *absent)
    problems.raise_any()

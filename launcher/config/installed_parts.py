"""What other installed packages bring: configuration files, in a folder conf/ of each, and schedulers."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SCHEDULERS = "rlsweep.schedulers"
GROUPS = ("rlsweep.methods", "rlsweep.tasks", "rlsweep.analysis", "rlsweep.sources", _SCHEDULERS)


@functools.cache
def entries() -> Any:
    """importlib.metadata.entry_points(); read once in a process, because that opens a file of every distribution."""
    return entry_points()


def packages() -> frozenset[str]:
    """The top-level packages and modules that extend this project."""
    return frozenset(entry.module.partition(".")[0] for group in GROUPS for entry in entries().select(group=group))


@functools.cache
def folders() -> tuple[Path, ...]:
    """These folders, in the order of the packages' names. Nothing of a package is imported."""
    specs = (find_spec(package) for package in sorted(packages()))
    places = [Path(place) / "conf" for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return tuple(place for place in places if place.is_dir())


def schedulers() -> Any:
    """The entry points of schedulers, by the names that `cluster.name` gives them (launcher.planning.clusters)."""
    return entries().select(group=_SCHEDULERS)

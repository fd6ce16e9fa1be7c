"""Configuration files of other installed packages: the folder conf/ in each one that brings methods or tasks."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

GROUPS = ("rlsweep.methods", "rlsweep.tasks")


def packages() -> frozenset[str]:
    """The top-level packages and modules that bring methods or tasks."""
    entries = entry_points()  # once: it reads a file of every installed distribution
    return frozenset(entry.module.partition(".")[0] for group in GROUPS for entry in entries.select(group=group))


@functools.cache
def folders() -> tuple[Path, ...]:
    """These folders, in the order of the packages' names. Nothing of a package is imported."""
    specs = (find_spec(package) for package in sorted(packages()))
    places = [Path(place) / "conf" for spec in specs if spec for place in spec.submodule_search_locations or ()]
    return tuple(place for place in places if place.is_dir())

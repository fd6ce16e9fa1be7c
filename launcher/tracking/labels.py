"""What a run is called in the experiments that share it: plan.json says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.run import catalog

# W&B's own limit.
LONGEST_TAG = 64


@dataclass(frozen=True)
class Labels:
    """A run's place in the first experiment that names it, and every `experiment/group` that does."""

    experiment: str | None = None
    group: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()


def labels(multirun: Path) -> dict[str, Labels]:
    """The labels of every planned run, by id; experiments in the order of their names."""
    found: dict[str, Labels] = {}
    for experiment, entry in _entries(multirun):
        tag = f"{experiment}/{entry['group']}"[:LONGEST_TAG]
        before = found.get(entry["id"])
        if before is None:
            found[entry["id"]] = Labels(experiment, entry["group"], catalog.title(entry), (tag,))
        elif tag not in before.tags:
            found[entry["id"]] = Labels(before.experiment, before.group, before.name, (*before.tags, tag))
    return found


def _entries(multirun: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in catalog.experiments(multirun):
        for entry in catalog.read_plan(multirun, name)["runs"]:
            yield name, entry

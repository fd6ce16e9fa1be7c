"""The names of a run in the experiments that share it, from their plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from launcher.run import catalog

# W&B's own limit.
LONGEST_TAG = 64


@dataclass(frozen=True)
class Labels:
    """A run's experiment, group and title in the first plan that names it, and every `experiment/group` that does."""

    experiment: str | None = None
    group: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()


def labels(multirun: Path) -> dict[str, Labels]:
    """The labels of every planned run, by id; experiments in the order of their names."""
    by_id: dict[str, Labels] = {}
    for experiment, plan in catalog.plans(multirun).items():
        for entry in plan["runs"]:
            tag = f"{experiment}/{entry['group']}"[:LONGEST_TAG]
            before = by_id.get(entry["id"]) or Labels(experiment, entry["group"], catalog.title(entry))
            if tag not in before.tags:
                by_id[entry["id"]] = replace(before, tags=(*before.tags, tag))
    return by_id

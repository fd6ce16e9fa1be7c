"""What a run is called in the experiments that share it: plan.json says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
            found[entry["id"]] = Labels(experiment, entry["group"], _name(entry), (tag,))
        elif tag not in before.tags:
            found[entry["id"]] = Labels(before.experiment, before.group, before.name, (*before.tags, tag))
    return found


def _entries(multirun: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(multirun.glob("*/plan.json")):
        for entry in json.loads(path.read_text(encoding="utf-8"))["runs"]:
            yield path.parent.name, entry


def _name(entry: Mapping[str, Any]) -> str:
    levels = [f"{key}={value}" for key, value in entry["factors"].items()]
    return " ".join([entry["group"], *levels, f"seed {entry['seed']}"])

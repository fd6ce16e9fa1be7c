"""The records of a plan: its experiments, their runs, and what holds for the whole launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.verl_tree import Base
from launcher.run import folder


@dataclass(frozen=True)
class PlannedRun:
    """One run: the first 16 hex digits of its identity, the whole hash, and its resolved configuration."""

    id: str
    hash: str
    base: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A run's place in an experiment; several entries may share one run. `factors` by label."""

    id: str
    group: str
    seed: int
    factors: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """One experiment's plan: what multirun/<name>/plan.json holds."""

    name: str
    command: str
    baseline: str | None
    steps: int
    seeds: tuple[int, ...]
    groups: Mapping[str, Mapping[str, Any]]
    factors: Mapping[str, Mapping[str, Any]]
    analysis: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def seeds_of(self) -> dict[str, list[int]]:
        """The seeds of each group, in the order of the plan."""
        return seeds_of(self.groups, self.entries)

    def document(self) -> dict[str, Any]:
        """The content of plan.json: deterministic, without times."""
        return {
            "format": folder.PLAN_FORMAT,
            "experiment": self.name,
            "command": self.command,
            "baseline": self.baseline,
            "steps": self.steps,
            "seeds": list(self.seeds),
            "groups": self.groups,
            "factors": self.factors,
            "analysis": self.analysis,
            "runs": [
                {"id": entry.id, "group": entry.group, "seed": entry.seed, "factors": entry.factors}
                for entry in self.entries
            ],
        }


def seeds_of(groups: Iterable[str], entries: Iterable[Entry]) -> dict[str, list[int]]:
    """The seeds of each group's entries."""
    found: dict[str, dict[int, None]] = {group: {} for group in groups}
    for entry in entries:
        found[entry.group][entry.seed] = None
    return {group: list(seeds) for group, seeds in found.items()}


@dataclass(frozen=True)
class Plan:
    """A sound plan: experiments, their runs by id (in the order of the plan), verl's trees by hash, and the sections
    that hold for the whole launch.
    """

    experiments: tuple[Experiment, ...]
    runs: Mapping[str, PlannedRun]
    bases: Mapping[str, Base]
    cluster: Mapping[str, Any]
    tracking: Mapping[str, Any]
    multirun: Path

"""What every tracker reads of a run: its metric log as rows, one for each step, and its names in the experiments that
share it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run import catalog
from launcher.run.folder import histograms_path, metrics_path

# W&B's own limit.
LONGEST_TAG = 64
# The keys of a line that are not metrics.
_ABOUT = frozenset({"step", "attempt", "time"})


@dataclass(frozen=True)
class Histogram:
    """n counts between n + 1 edges."""

    edges: Sequence[float]
    counts: Sequence[float]


@dataclass(frozen=True)
class Row:
    """One step: its number (from 1), when it was logged (unix seconds), its metrics and histograms by name."""

    step: int
    time: float
    metrics: Mapping[str, float]
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True)
class Extent:
    """The lengths of a run's logs in bytes."""

    metrics: int
    histograms: int


def extent(folder: Path) -> Extent:
    """The present lengths of a run's logs; 0 for an absent one."""
    return Extent(files.size_of(metrics_path(folder)), files.size_of(histograms_path(folder)))


def rows(folder: Path, until: Extent | None = None) -> Iterator[Row]:
    """A run's steps in the order of its log, up to `until` (default: all of it), without torn lines."""
    until = until or extent(folder)
    histograms: defaultdict[int, dict[str, Histogram]] = defaultdict(dict)
    for record in _steps(histograms_path(folder), until.histograms):
        histograms[record["step"]][record["name"]] = Histogram(record["edges"], record["counts"])
    for record in _steps(metrics_path(folder), until.metrics):
        metrics = {key: value for key, value in record.items() if key not in _ABOUT}
        yield Row(record["step"], record["time"], metrics, histograms.get(record["step"], {}))


def _steps(path: Path, length: int) -> Iterator[dict[str, Any]]:
    return (record for record in files.json_lines(path, length) if "step" in record)


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

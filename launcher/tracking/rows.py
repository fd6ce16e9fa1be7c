"""The metric log of a run as rows, one a step: what every tracker replays."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run import folder as folders

# What a line holds besides its metrics.
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
    """How far a run's logs reach, in bytes."""

    metrics: int
    histograms: int


def extent(folder: Path) -> Extent:
    """The present sizes of a run's logs; an absent one has none."""
    return Extent(_size(folders.metrics_path(folder)), _size(folders.histograms_path(folder)))


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def rows(folder: Path, until: Extent | None = None) -> Iterator[Row]:
    """A run's steps in the order of its log, up to `until` (default: all there is). Torn lines are left out."""
    until = until or extent(folder)
    histograms: defaultdict[int, dict[str, Histogram]] = defaultdict(dict)
    for record in _records(folders.histograms_path(folder), until.histograms):
        histograms[record["step"]][record["name"]] = Histogram(record["edges"], record["counts"])
    for record in _records(folders.metrics_path(folder), until.metrics):
        metrics = {key: value for key, value in record.items() if key not in _ABOUT}
        yield Row(record["step"], record["time"], metrics, histograms.get(record["step"], {}))


def _records(path: Path, size: int) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            lines = file.read(size).splitlines(keepends=True)
    except FileNotFoundError:
        return
    yield from (record for record in files.parse_lines(lines) if record is not None and "step" in record)


def settled(folder: Path) -> int:
    """The last step that no resume computes again, as far as checkpoints tell; 0 without one."""
    newest = folders.latest_checkpoint(folder)
    return newest[0] if newest else 0

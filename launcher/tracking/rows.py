"""The metric log of a run as rows, one for each step, which every tracker replays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run.folder import histograms_path, metrics_path

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


def extent(folder: Path) -> dict[str, int]:
    """The present lengths in bytes of a run's logs, `metrics` and `histograms`; 0 for an absent one."""
    return {"metrics": files.size_of(metrics_path(folder)), "histograms": files.size_of(histograms_path(folder))}


def rows(folder: Path, until: Mapping[str, int] | None = None) -> Iterator[Row]:
    """A run's steps in the order of its log, up to `until` (default: all of it), without torn lines."""
    until = until or extent(folder)
    histograms: defaultdict[int, dict[str, Histogram]] = defaultdict(dict)
    for record in _steps(histograms_path(folder), until["histograms"]):
        histograms[record["step"]][record["name"]] = Histogram(record["edges"], record["counts"])
    for record in _steps(metrics_path(folder), until["metrics"]):
        metrics = {key: value for key, value in record.items() if key not in _ABOUT}
        yield Row(record["step"], record["time"], metrics, histograms.get(record["step"], {}))


def _steps(path: Path, length: int) -> Iterator[dict[str, Any]]:
    return (record for record in files.json_lines(path, length) if "step" in record)

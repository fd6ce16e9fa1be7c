"""The histograms of a run: histograms.jsonl, read as tolerantly as its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.data.metric_log import Array, parsed, standing
from launcher.run.folder import histograms_path


@dataclass(frozen=True)
class Histogram:
    """edges (n + 1,) increasing, counts (n,)."""

    edges: Array
    counts: Array

    def density(self, edges: Array) -> Array:
        """The share of all counts per unit in the bins between these edges; counts are spread evenly within their
        bin."""
        below = np.concatenate(([0.0], np.cumsum(self.counts))) / self.counts.sum()
        return np.asarray(np.diff(np.interp(edges, self.edges, below)) / np.diff(edges))


@dataclass(frozen=True)
class Histograms:
    """by_step: of one name. bad: lines left out."""

    by_step: Mapping[int, Histogram]
    bad: int


def read_histograms(folder: Path, name: str) -> Histograms:
    """A run's histograms of that name. `standing` decides which ones of several attempts count."""
    try:
        data = histograms_path(folder).read_bytes()
    except FileNotFoundError:
        return Histograms({}, 0)
    by_attempt: dict[int, dict[int, Histogram | None]] = {}  # None: others of that step
    bad = 0
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            row = parsed(line)
            step, attempt = int(row["step"]), int(row.get("attempt") or 1)
            histogram = _histogram(row) if row["name"] == name else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            bad += 1
            continue
        steps = by_attempt.setdefault(attempt, {})
        steps[step] = histogram or steps.get(step)
    kept = {step: histogram for step, histogram in standing(by_attempt).items() if histogram is not None}
    return Histograms(dict(sorted(kept.items())), bad)


def _histogram(row: Mapping[str, Any]) -> Histogram:
    edges, counts = np.asarray(row["edges"], dtype=np.float64), np.asarray(row["counts"], dtype=np.float64)
    if edges.ndim != 1 or counts.shape != (edges.size - 1,) or not (np.diff(edges) > 0).all():
        raise ValueError("n + 1 increasing edges and n counts are needed")
    if not np.isfinite(edges).all() or not (counts >= 0).all() or not 0 < counts.sum() < np.inf:
        raise ValueError("finite edges and counts from 0, not all 0, are needed")
    return Histogram(edges, counts)

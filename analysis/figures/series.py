"""The curves of a metric, one set for each group: averaged over the cells of each seed, smoothed, on the steps that the
seeds share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.data.sweep import Run
from analysis.findings.study import Study
from analysis.stats import functions
from analysis.stats.curve_summaries import LARGEST

Array = NDArray[np.float64]
_POINTS = 400  # a curve of more points than that is averaged in bins: no screen or printer shows more


@dataclass(frozen=True)
class Series:
    """A group's curves, averaged over the cells of each seed.

    whole: (seeds, steps), of these `seeds`, on the steps between the latest beginning and the earliest end of them.
    axis: (steps,) what the x axis shows there; partial[seed]: a curve without full result, on it. recorded: False for a
    group that does not have the metric. silent: seeds whose runs ended well without it, though others have it.
    """

    group: str
    label: str
    recorded: bool
    steps: Array
    axis: Array
    whole: Array
    seeds: tuple[int, ...]
    partial: Mapping[int, tuple[Array, Array]]
    planned: int
    silent: tuple[int, ...]
    smoothing: int

    @property
    def short(self) -> bool:
        """Whether a seed has no whole curve."""
        return self.recorded and len(self.whole) < self.planned


def series(study: Study, metric: str) -> list[Series]:
    """The curves of one metric for every group; a seed with a missing cell has no whole curve."""
    common = study.ranges[metric]
    every = []
    for group in study.sweep.groups:
        runs = study.sweep.of(group)
        recorded = group not in common.absent
        silent = {run.seed for run in runs if recorded and run.problem is None and metric not in run.curves.values}
        seeds = sorted({run.seed for run in runs})
        curves, clocks, having = [], [], []
        partial: dict[int, tuple[Array, Array]] = {}
        for seed in seeds:
            members = [run for run in runs if run.seed == seed]
            inside = [common.curves.get(run.id) for run in members]
            clocked = common.clocks is None or all(run.id in common.clocks for run in members)
            if clocked and all(curve is not None for curve in inside):
                curves.append(_average([curve for curve in inside if curve is not None]))
                having.append(seed)
                clocks += [run.id for run in members]
            elif clocked and len(members) == 1 and (cut := _recorded(members[0], metric)) is not None:
                partial[seed] = common.at(members[0].id, cut[0]), cut[1]
        steps = _shared([curve[0] for curve in curves])
        axis = np.mean([common.at(run_id, steps) for run_id in clocks], axis=0) if clocks else steps
        whole = np.array([_on(steps, curve) for curve in curves]).reshape(len(curves), steps.size)
        steps, axis, whole = _thin(steps), _thin(axis), _thin(whole)
        width = _smoothing(steps.size)
        whole = smooth(whole, width)
        ends = {seed: (x, smooth(y, _smoothing(y.size))) for seed, (x, y) in partial.items()}
        label = study.sweep.label(group)
        drawn = steps, axis, whole, tuple(having), ends
        every.append(Series(group, label, recorded, *drawn, len(seeds), tuple(sorted(silent)), width))
    return every


def _average(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    if len(curves) == 1:
        return curves[0]
    steps = curves[0][0]
    for other, _ in curves[1:]:
        steps = np.intersect1d(steps, other)
    return steps, np.mean([values[np.isin(at, steps)] for at, values in curves], axis=0)


def _recorded(run: Run, metric: str) -> tuple[Array, Array] | None:
    values = run.curves.values.get(metric)
    if values is None:
        return None
    kept = np.abs(values) < LARGEST
    if not kept.any():
        return None
    return run.curves.steps[kept], values[kept]


def _shared(each: Sequence[Array]) -> Array:
    """All steps of any curve, from where the last one begins to where the first one ends."""
    if not each or not all(steps.size for steps in each):
        return np.empty(0)
    if all(np.array_equal(steps_of, each[0]) for steps_of in each):
        return each[0]
    steps: Array = np.unique(np.concatenate(each))
    inside = (steps >= max(steps_of[0] for steps_of in each)) & (steps <= min(steps_of[-1] for steps_of in each))
    return np.asarray(steps[inside])


def _on(steps: Array, curve: tuple[Array, Array]) -> Array:
    """The curve on these steps, NaN where it has no point: a mean over fewer seeds is never drawn."""
    if np.array_equal(curve[0], steps):
        return curve[1]
    row = np.full(steps.size, np.nan)
    inside = np.isin(curve[0], steps)
    row[np.searchsorted(steps, curve[0][inside])] = curve[1][inside]
    return row


def _thin(rows: Array) -> Array:
    width = -(-rows.shape[-1] // _POINTS)
    if width <= 1:
        return rows
    n = rows.shape[-1] // width * width
    return np.asarray(rows[..., :n].reshape(*rows.shape[:-1], -1, width).mean(axis=-1))


def _smoothing(points: int) -> int:
    """An odd number of points, about a thirtieth of the curve."""
    return max(1, points // 30) // 2 * 2 + 1


def smooth(rows: Array, width: int) -> Array:
    """Centred mean over `width` points (odd) of each row (..., n), over fewer near the ends; a NaN affects only its
    window."""
    n = rows.shape[-1]
    index = np.arange(n)
    reach = np.minimum(width // 2, np.minimum(index, n - 1 - index))
    total = np.zeros(rows.shape)
    for shift in range(-(width // 2), width // 2 + 1):
        inside = np.flatnonzero(np.abs(shift) <= reach)
        if inside.size:  # they are adjacent: copying a slice is faster than indexing
            first, last = inside[0], inside[-1] + 1
            total[..., first:last] += rows[..., first + shift : last + shift]
    return np.asarray(total / (2 * reach + 1))


def band(whole: Array, alpha: float) -> tuple[Array, Array | None]:
    """Mean (steps,) of whole (seeds, steps) and half width (steps,) of its t interval; None with fewer than two
    seeds."""
    mean = whole.mean(axis=0)
    n = len(whole)
    if n < 2:
        return mean, None
    power = np.frexp(np.abs(whole).max(axis=0))[1]  # of each point its own: no square overflows, none vanishes
    sd = np.ldexp(np.ldexp(whole, -power).std(axis=0, ddof=1), power)
    return mean, functions.t_quantile(n - 1, 1 - alpha / 2) * sd / np.sqrt(n)

"""The curves of a metric, one set for each group: on one grid of steps, averaged over each seed's cells, smoothed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.data import cells
from analysis.data.sweep import Run
from analysis.findings.study import Study
from analysis.stats import strata
from analysis.stats.curve_summaries import LARGEST
from analysis.stats.mean_curves import on_grid

Array = NDArray[np.float64]
_POINTS = 400  # a curve of more points than that is averaged in bins: no screen or printer shows more


@dataclass(frozen=True)
class Series:
    """A group's curves, averaged over the cells of each seed: the same cells, of which a seed may lack some.

    whole: (seeds, steps), of these `seeds`, on the steps between the latest beginning and the earliest end of them.
    axis: (steps,) what the x axis shows there; partial[seed]: a curve without full result, on it. recorded: False for a
    group that does not have the metric. silent: seeds whose runs ended well without it, though others have it.
    interpolated: whether a curve has no point of its own at some of the steps. single: whether each has one point only.
    averaged: what to say of cells that are left out, and of seeds that lack some; "" if there is neither.
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
    interpolated: bool
    single: bool
    averaged: str

    @property
    def short(self) -> bool:
        """Whether a seed has no whole curve."""
        return self.recorded and len(self.whole) < self.planned


def series(study: Study, metric: str) -> list[Series]:
    """The curves of one metric for every group, of the seeds and cells that a table averages over."""
    common = study.ranges[metric]
    every = []
    for group in study.sweep.groups:
        runs = study.sweep.of(group)
        recorded = group not in common.absent
        silent = {run.seed for run in runs if recorded and run.problem is None and metric not in run.curves.values}
        seeds = sorted({run.seed for run in runs})
        clocked = {run.id for run in runs if common.clocks is None or run.id in common.clocks}
        usable = {run.id for run in runs if run.id in clocked and run.id in common.curves}
        kept = cells.keep({(run.seed, run.cell): 0.0 if run.id in usable else None for run in runs})
        of = {(run.seed, run.cell): run for run in runs}
        members = [[of[seed, cell] for cell in own] for seed, own in kept.seeds.items()]
        drawn = [run.id for own in members for run in own]
        together = on_grid([common.curves[run_id] for run_id in drawn], _POINTS)
        steps, ends = together.points, np.cumsum([len(own) for own in members])[:-1]
        axis = np.mean([common.at(run_id, steps) for run_id in drawn], axis=0) if drawn else steps
        by_seed = _whole_cells(kept, np.split(together.values, ends)) if drawn else []
        whole = np.array([own.mean(axis=0) for own in by_seed]).reshape(len(by_seed), steps.size)
        steps, axis, whole = _thin(steps), _thin(axis), _thin(whole)
        width = _smoothing(steps.size)
        whole = smooth(whole, width)
        partial: dict[int, tuple[Array, Array]] = {}
        for seed in seeds:
            lone = [run for run in runs if run.seed == seed]
            drawable = seed not in kept.seeds and len(lone) == 1 and lone[0].id in clocked
            if drawable and (cut := _recorded(lone[0], metric)) is not None:
                partial[seed] = common.at(lone[0].id, cut[0]), smooth(cut[1], _smoothing(cut[1].size))
        averaged = []
        if kept.dropped and kept.seeds:
            count = f"{len(kept.planned) - len(kept.dropped)} of {len(kept.planned)} cells"
            averaged.append(f"averaged over {count}; left out, because no seed has a result: {kept.left_out}")
        if not kept.balanced:
            averaged.append(
                "each cell counts the same; where a seed lacks one, its curve has the mean of the other seeds, and "
                "what it has counts for more"
            )
        every.append(
            Series(
                group, study.sweep.label(group), recorded, steps, axis, whole, tuple(kept.seeds), partial, len(seeds),
                tuple(sorted(silent)), width, together.interpolated, steps.size == 1, "; ".join(averaged),
            )
        )  # fmt: skip
    return every


def _whole_cells(kept: cells.Kept, by_seed: list[Array]) -> list[Array]:
    """The curves of each seed (cells, steps), the same cells in every seed: completed where a seed lacks one."""
    if kept.balanced or not by_seed[0].shape[1]:  # complete, or without a common range
        return by_seed
    place = {cell: index for index, cell in enumerate(kept.cells)}
    whole = np.full((len(by_seed), len(place), by_seed[0].shape[1]), np.nan)
    for row, own, curves in zip(whole, kept.seeds.values(), by_seed, strict=True):
        row[[place[cell] for cell in own]] = curves
    return list(strata.completed(whole))


def _recorded(run: Run, metric: str) -> tuple[Array, Array] | None:
    values = run.curves.values.get(metric)
    if values is None:
        return None
    kept = np.abs(values) < LARGEST
    if not kept.any():
        return None
    return run.curves.steps[kept], values[kept]


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

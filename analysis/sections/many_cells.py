"""Many cells together, such as a benchmark's tasks: each group's scores over all of them, with intervals over runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.data import cells
from analysis.figures.canvas import POINTWISE, Sketch, canvas_of, legend, style_of
from analysis.figures.traces import Array, tell
from analysis.findings.study import Study
from analysis.numbers import format_estimate, format_level
from analysis.spec.metric_catalog import capital
from analysis.spec.validation import counted
from analysis.stats import resample
from analysis.stats.resample import Resampled
from analysis.stats.t_test import Interval
from analysis.tables.table import Entry, Table, ends, table
from analysis.tables.wording import all_levels

FEWEST = 8  # cells, below which a percentile interval of so few runs does not hold
_THRESHOLDS = 101


@dataclass(frozen=True)
class Scores:
    """A group's scores (most runs, cells) of the primary measure, and how many runs each cell has: runs (cells,). Of a
    cell, the first rows are its runs, and the others are 0."""

    values: Array
    runs: NDArray[np.int64]

    @property
    def present(self) -> Array:
        """All scores, (their number,)."""
        return self.values[np.arange(len(self.values))[:, None] < self.runs]

    @property
    def in_words(self) -> str:
        """How many runs the cells have: 5 runs in 50 cells, 3 runs in 7 cells."""
        counts = sorted(set(self.runs.tolist()), reverse=True)
        return ", ".join(
            f"{counted(n, 'run')} in {counted(int((self.runs == n).sum()), 'cell')}" for n in counts
        )  # fmt: skip


@dataclass(frozen=True)
class Many:
    """scores[group]: of the primary measure, the same cells in every group; higher is better unless `turned`, then
    lower. factors: whose levels the cells are. notes: what is left out."""

    scores: Mapping[str, Scores]
    turned: bool
    factors: tuple[str, ...]
    notes: tuple[str, ...]


def many(study: Study) -> Many | None:
    """The scores of all cells together; None where the groups share too few cells."""
    sweep, block = study.sweep, study.primary
    if block.measure.better is None:
        return None
    kept = {group: cells.keep_runs(sweep.runs_of(group), block.values) for group in sweep.groups}
    usable = {group: cells_kept for group, cells_kept in kept.items() if cells_kept.seeds}
    shared = set.intersection(*(cells.labels_of(cells_kept) for cells_kept in usable.values())) if usable else set()
    levels = {group: cells.runs_of_levels(cells_kept, shared) for group, cells_kept in usable.items()}
    common = [set(by_level) for by_level in levels.values()]
    tasks = sorted(set.intersection(*common), key=repr) if common else []
    if len(tasks) < FEWEST:
        return None
    scores = {group: _padded([by_level[task] for task in tasks]) for group, by_level in levels.items()}
    every = len(set.union(*common))
    notes = [f"{len(tasks)} of {every} cells, of which every method has a run"] if len(tasks) < every else []
    notes += [f"{sweep.label(group)} has no result" for group in sweep.groups if group not in usable]
    for group, score in scores.items():
        if score.runs.min() < score.runs.max():
            single = "; the spread of cells with one run is not in the intervals" if score.runs.min() == 1 else ""
            notes.append(f"runs: {sweep.label(group)} has {score.in_words}, and every cell has equal weight{single}")
    for group, cells_kept in usable.items():
        notes += [f"{sweep.label(group)}, seed {seed}: {why}" for seed, why in cells_kept.lost.items()]
    return Many(scores, block.measure.better == "lower", tuple(sorted(shared)), tuple(notes))


def _padded(runs: Sequence[Sequence[float]]) -> Scores:
    """The runs of each cell as one array."""
    counts = np.array([len(values_of_cell) for values_of_cell in runs])
    values = np.zeros((int(counts.max()), len(runs)))
    for cell, values_of_cell in enumerate(runs):
        values[: len(values_of_cell), cell] = values_of_cell
    return Scores(values, counts)


def many_table(study: Study, scored: Many) -> Table:
    """A row for each group: statistics over all cells, and the probability of being better than the baseline."""
    sweep, settings = study.sweep, study.settings
    base = scored.scores.get(str(sweep.baseline))
    # A gap to 1 has a meaning where 1 is the best that there is.
    bounded = not scored.turned and all(
        s.present.min() >= 0 and s.present.max() <= 1 for s in scored.scores.values()
    )  # fmt: skip
    statistics = {"IQM": resample.iqm, "median": resample.median, "mean": resample.mean}
    statistics |= {"optimality gap": resample.optimality_gap} if bounded else {}
    sign = -1.0 if scored.turned else 1.0
    entries: list[Entry] = []
    for group, scores in scored.scores.items():
        results: dict[str, Resampled | None] = {
            name: resample.stratified(scores.values, statistic, settings.alpha, runs=scores.runs, seed=settings.seed)
            for name, statistic in statistics.items()
        }
        results["improvement"] = None
        if base is not None and group != sweep.baseline:
            over = resample.probability_of_improvement
            results["improvement"] = over(
                sign * scores.values,
                sign * base.values,
                settings.alpha,
                runs=(scores.runs, base.runs),
                seed=settings.seed,
            )
        tasks, fewest, most = scores.runs.size, int(scores.runs.min()), int(scores.runs.max())
        runs = f"{most}" if fewest == most else f"{fewest} to {most}"
        shown = [format_estimate(*_numbers(result)) if result is not None else "" for result in results.values()]
        measure = study.primary.measure
        record: dict[str, Any] = {"metric": measure.metric, "summary": measure.summary, "group": group}
        record |= {"seeds": most, "fewest_runs": fewest, "cells": tasks}
        for name, result in results.items():
            value, interval = _numbers(result) if result is not None else (None, None)
            record |= {name: value, **ends(interval, f"{name} low", f"{name} high")}
        entries.append((group, (sweep.label(group), runs, str(tasks), *shown), record))
    level = format_level(settings.alpha)
    notes = [
        f"{capital(study.primary.measure.title)} of every run at every level of {', '.join(scored.factors)}, with "
        f"{level} intervals of the stratified bootstrap (runs redrawn within each cell, n - 1 of n). They hold for "
        "these cells, not for others.",
        "The intervals of the main table are over seeds. Here, the runs of one seed at different levels count as "
        "independent, so an interval of the same mean differs.",
        f"IQM: mean of the middle half of all runs and cells. Median: over cells, of the mean over runs; "
        f"{resample.NO_MEDIAN.replace('task', 'cell')}.",
    ]
    if any(2 in scores.runs for scores in scored.scores.values()):
        notes.append("Two runs of a cell tell little: where spreads differ, 95% intervals hold in 85% of experiments.")
    if bounded:
        notes.append("Optimality gap: how much scores are below 1 on average.")
    heads = list(statistics)
    if sweep.baseline is not None:
        notes.append("Better than the baseline: chance that a run is better than one of the baseline in the same cell.")
    notes += [*all_levels(settings), *(f"{capital(note)}." for note in scored.notes)]
    baseline = f"better than {sweep.label(sweep.baseline)}" if sweep.baseline is not None else "improvement"
    columns = ("method", "seeds", "cells", *heads, baseline)
    return table("many", "All cells together", columns, entries, notes)


def _numbers(result: Resampled) -> tuple[float | None, Interval | None]:
    if result.value is None:
        return None, None
    ends = None if result.low is None or result.high is None else (float(result.low), float(result.high))
    return float(result.value), ends


def many_figure(study: Study, scored: Many) -> Sketch:
    """Performance profiles: the share of runs and cells of each group that are better than each threshold."""
    sweep, settings, measure = study.sweep, study.settings, study.primary.measure
    sign = -1.0 if scored.turned else 1.0
    low = min(s.present.min() for s in scored.scores.values())
    high = max(s.present.max() for s in scored.scores.values())
    margin = 0.03 * (high - low) or 1.0
    thresholds = np.linspace(low - margin, high + margin, _THRESHOLDS)
    canvas, axes = canvas_of(7.0, 3.4)
    entries = []
    for group, scores in scored.scores.items():
        look = style_of(sweep.groups, group, markers=False)
        share = resample.performance_profile(sign * scores.values, sign * thresholds, settings.alpha, runs=scores.runs)
        gid, colour = f"mean--{group}", look["color"]
        style = {**look, "linewidth": 1.9, "gid": gid, "label": "share of runs and cells"}
        drawn = axes.plot(thresholds, np.asarray(share.value), **style)
        if share.low is not None and share.high is not None:
            ends_of = thresholds, share.low, share.high
            axes.fill_between(*ends_of, color=colour, alpha=0.13, linewidth=0, gid=f"band--{group}")
            tell(drawn, (share.low, share.high))
        entries.append((sweep.label(group), {**look, "linewidth": 1.9}))
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(thresholds[0], thresholds[-1])
    axes.set_xlabel(measure.with_unit)
    axes.set_ylabel(f"share of runs and cells {'below' if scored.turned else 'above'}")
    canvas.set_figheight(3.3 + 0.2 * legend(canvas, "upper", entries))
    count = next(iter(scored.scores.values())).runs.size
    caption = (
        f"Performance profile over {count} cells: the share of runs and cells whose {measure.title} is "
        f"{'below' if scored.turned else 'above'} each value, with pointwise "
        f"{format_level(settings.alpha)} intervals (Clopper and Pearson's, of independent runs; they hold at each "
        "value alone, not for the whole curve). A curve that is higher everywhere is better everywhere."
    )
    return Sketch("profile", "Performance profile", caption, canvas, bounds=POINTWISE)

"""Many cells together, such as a benchmark's tasks: each group's scores over all of them, with intervals over runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.data import cells
from analysis.findings.study import Study
from analysis.spec.metric_catalog import capital
from analysis.stats import resample
from analysis.stats.numbers import Array, Interval, format_estimate, format_level
from analysis.stats.resample import Resampled
from analysis.tables.table import Entry, Table, ends, table
from analysis.tables.wording import all_levels

FEWEST = 8  # cells, below which a percentile interval of so few runs does not hold


def many_table(study: Study) -> Table | None:
    """A row for each group: statistics of the primary measure over all cells, and the probability of being better than
    the baseline. None where the groups share too few cells."""
    sweep, settings, measure = study.sweep, study.settings, study.primary.measure
    kept = {group: cells.keep_runs(sweep.runs_of(group), study.primary.values) for group in sweep.groups}
    usable = {group: of for group, of in kept.items() if of.seeds}
    shared = set.intersection(*map(cells.labels_of, usable.values())) if usable else set()
    levels = {group: cells.runs_of_levels(of, shared) for group, of in usable.items()}
    common = [set(by_level) for by_level in levels.values()]
    tasks = sorted(set.intersection(*common), key=repr) if common else []
    if measure.better is None or len(tasks) < FEWEST:
        return None
    scored = {group: _padded([by_level[task] for task in tasks]) for group, by_level in levels.items()}
    base, alpha, seed = scored.get(sweep.baseline or ""), settings.alpha, settings.seed
    every_value = [value for by_level in levels.values() for task in tasks for value in by_level[task]]
    # A gap to 1 has a meaning where 1 is the best that there is.
    bounded = measure.sign > 0 and min(every_value) >= 0 and max(every_value) <= 1
    statistics = {"IQM": resample.iqm, **({"optimality gap": resample.optimality_gap} if bounded else {})}
    entries: list[Entry] = []
    for group, (values, runs) in scored.items():
        results = {
            name: resample.stratified(values, statistic, alpha, runs=runs, seed=seed)
            for name, statistic in statistics.items()
        }
        if base is not None and group != sweep.baseline:
            both = measure.sign * values, measure.sign * base[0]
            results["improvement"] = resample.probability_of_improvement(*both, alpha, runs=(runs, base[1]), seed=seed)
        fewest, most = int(runs.min()), int(runs.max())
        count = f"{most}" if fewest == most else f"{fewest} to {most}"
        numbers = {name: _numbers(results.get(name)) for name in (*statistics, "improvement")}
        shown = [format_estimate(*found) for found in numbers.values()]
        record: dict[str, Any] = {"metric": measure.metric, "summary": measure.summary, "group": group}
        record |= {"seeds": most, "fewest_runs": fewest, "cells": len(tasks)}
        for name, (value, interval) in numbers.items():
            record |= {name: value, **ends(interval, f"{name} low", f"{name} high")}
        entries.append((group, (sweep.label(group), count, str(len(tasks)), *shown), record))
    notes = [
        f"{capital(measure.title)} of every run at every level of {', '.join(sorted(shared))}, with "
        f"{format_level(alpha)} intervals of the stratified bootstrap (runs redrawn within each cell, n - 1 of n). "
        "They hold for these cells, not for others. Every cell has equal weight.",
        "The intervals of the main table are over seeds. Here, the runs of one seed at different levels count as "
        "independent.",
        "IQM: mean of the middle half of all runs and cells.",
    ]
    if any(1 in runs for _, runs in scored.values()):
        notes.append("The spread of cells with one run is not in the intervals.")
    if any(2 in runs for _, runs in scored.values()):
        notes.append(
            "Two runs of a cell tell little: where spreads differ, 95% intervals hold in 66 to 87% of experiments."
        )
    if bounded:
        notes.append("Optimality gap: how much scores are below 1 on average.")
    if sweep.baseline is not None:
        notes.append("Better than the baseline: chance that a run is better than one of the baseline in the same cell.")
    if len(tasks) < (every := len(set.union(*common))):
        notes.append(f"{len(tasks)} of {every} cells, of which every method has a run.")
    notes += all_levels(settings)
    better = f"better than {sweep.label(sweep.baseline)}" if sweep.baseline is not None else "improvement"
    return table("many", "All cells together", ("method", "seeds", "cells", *statistics, better), entries, notes)


def _padded(runs: Sequence[Sequence[float]]) -> tuple[Array, NDArray[np.int64]]:
    """The runs of each cell as one array (most runs, cells), 0 beyond those of a cell; and how many it has (cells,)."""
    return np.array([*zip_longest(*runs, fillvalue=0.0)]), np.array(list(map(len, runs)))


def _numbers(result: Resampled | None) -> tuple[float | None, Interval | None]:
    if result is None or result.value is None:
        return None, None
    interval = None if result.low is None or result.high is None else (float(result.low), float(result.high))
    return float(result.value), interval

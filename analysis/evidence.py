"""What a verdict rests on: the groups on a hypothesis' measure, intervals and their sides, the seeds that would decide,
and why there is none of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analysis import compare, student
from analysis.hypothesis import Hypothesis
from analysis.numbers import format_estimate
from analysis.student import Interval
from analysis.study import Block, Comparison, Measure, Study, block, range_of, time_to


def block_of(h: Hypothesis, runs: Study, metric: str, baseline: str | None) -> Block:
    """The groups on the measure that the hypothesis is about, each compared with `baseline`."""
    common = runs.ranges.get(metric) or range_of(runs.sweep, runs.settings, metric)
    if h.target is not None:
        measure = time_to(runs.sweep, runs.settings, common, h.target)
    else:
        measure = Measure(metric, h.summary, runs.settings.direction_of(metric))
    if baseline == runs.sweep.baseline:
        known = next((found for found in runs.blocks if found.measure == measure), None)
        if known is not None:
            return known
    return block(runs.sweep, runs.settings, common, measure, baseline)


def at_level(runs: Study, alpha: float) -> Study:
    """The same runs asked at another level, at which nothing is compared yet."""
    if alpha == runs.settings.alpha:
        return runs
    return replace(runs, settings=replace(runs.settings, alpha=alpha), blocks=())


def comparison_of(found: Block, group: str) -> Comparison:
    """The group's comparison with the block's baseline."""
    return next(c for c in found.comparisons if c.group == group)


def would_decide(distances: Sequence[NDArray[np.float64]], alpha: float) -> str:
    """How many seeds would decide, if mean and spread stay as they are: distances[i], (n,), is of each seed to a
    bound, of which the nearest counts."""
    found = [abs(mean.value) / mean.sd for d in distances if (mean := student.mean(d)) is not None and mean.sd]
    seeds = student.seeds_to_find(min(found), alpha) if found else None
    if not found or (seeds is not None and seeds <= max(d.size for d in distances)):
        return ""  # what is in the way is not the number of seeds: a stricter level, or another metric
    return seeds_said(seeds)


def seeds_said(seeds: float | None) -> str:
    """The end of a sentence on how many seeds would decide; None: more than student.MOST_SEEDS."""
    if seeds is None or seeds > student.MOST_SEEDS:
        return f"; more than {student.MOST_SEEDS} seeds would be needed if mean and spread stay as they are"
    return f"; about {seeds:g} seeds would decide if mean and spread stay as they are"


def seeds_to_tell(comparison: Comparison, alpha: float) -> float | None:
    """How many seeds would tell the two apart at this level; infinite above student.MOST_SEEDS, None without spread."""
    mean = student.mean(np.subtract(comparison.a, comparison.b))
    if mean is None or not mean.sd:
        return None
    seeds = student.seeds_to_find(abs(mean.value) / mean.sd, alpha)
    return math.inf if seeds is None else seeds


def one_of(seeds: Sequence[float | None]) -> float | None:
    """Where one comparison decides: what the one that needs the fewest seeds needs."""
    return min((count for count in seeds if count is not None), default=None)


def all_of(seeds: Sequence[float | None]) -> float | None:
    """Where every comparison must decide: what the one that needs the most seeds needs."""
    known = [count for count in seeds if count is not None]
    return max(known, default=None) if len(known) == len(seeds) else None


def so_many(seeds: float | None) -> str:
    """seeds_said of what one_of and all_of found; nothing where that is None, not known."""
    return "" if seeds is None else seeds_said(seeds)


def side_of(interval: Interval | None) -> int:
    """Of zero: 1 above it, -1 below it, 0 where the interval has it inside or does not exist."""
    return 0 if interval is None else (interval[0] > 0) - (interval[1] < 0)


def stricter(comparison: Comparison, runs: Study, looks: int) -> Interval | None:
    """The interval of the difference where one of so many comparisons is enough for a verdict."""
    return compare.paired(comparison.a, comparison.b, runs.settings.alpha / looks).interval


def difference_shown(comparison: Comparison) -> str:
    """The mean difference with its interval."""
    return format_estimate(comparison.result.mean_difference, comparison.result.interval, signed=True)


def unrecorded(comparison: Comparison, found: Block, runs: Study) -> str | None:
    """Which of the two groups does not have the metric at all."""
    lacking = [runs.sweep.label(e.group) for e in found.estimates
               if not e.recorded and e.group in (comparison.group, comparison.baseline)]  # fmt: skip
    return f"not recorded by {' and '.join(lacking)}" if lacking else None


def few(comparison: Comparison, runs: Study) -> str | None:
    """Why there is no interval of a difference."""
    if comparison.result.interval is not None:
        return None
    names = f"{runs.sweep.label(comparison.group)} and {runs.sweep.label(comparison.baseline)}"
    return f"{names}: {no_interval(comparison.result.n, 'differences')}"


def no_interval(n: int, what: str = "values") -> str:
    """Why n values have no interval."""
    if n > 1:
        return f"all {n} {what} are equal: without spread there is no interval"
    return "one seed has no interval: two are needed" if n else "no seed has a value: two are needed"


def names_of(comparisons: Sequence[Comparison], runs: Study) -> str:
    """The labels of the groups that are compared."""
    return ", ".join(runs.sweep.label(c.group) for c in comparisons)


def left_out(found: Block, rivals: Sequence[Comparison], runs: Study) -> str:
    """The end of a sentence on the groups that are no rivals because they do not have the metric."""
    known = {c.group for c in rivals}
    lacking = [c for c in found.comparisons if c.group not in known]
    return f"; without {names_of(lacking, runs)}, not recorded" if lacking else ""

"""Strengths of several methods from comparisons of two: the model of Bradley and Terry (1952), a tie half a win.

The chance that i wins over j is s_i / (s_i + s_j); a strength is shown as its logarithm, relative to a reference. The
strengths are those of the largest likelihood of all comparisons. Their intervals are a jackknife over seeds, the unit
of evidence: comparisons of one seed share its luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats import functions, t_test
from analysis.stats.resolution import check_alpha
from analysis.stats.t_test import Interval

Array = NDArray[np.float64]

#: Points of Elo's scale for a log strength of 1: 400 points are odds of 10 to 1.
ELO = 400 / float(functions.log(10.0))
_CLOSE = 1e-14  # relative change of a strength in a pass, below which the passes end
_PASSES = 100_000
_DIGITS = 10  # significant digits of a strength: those below depend on where the passes end


@dataclass(frozen=True)
class Strengths:
    """Log strengths relative to the reference, whose own is 0; one entry for each of k methods.

    values[i]: None where no comparison, or only wins or only losses, lead from i to the reference: its strength is
    unknown, or has no bound. intervals[i]: None for the reference, for fewer than two seeds, and where the value does
    not exist without one of the seeds.
    """

    values: tuple[float | None, ...]
    intervals: tuple[Interval | None, ...]


def bradley_terry(wins: ArrayLike, reference: int = 0, alpha: float = 0.05) -> Strengths:
    """Fit wins (seeds, k, k): how often i won over j with each seed, a tie counting half for both.

    intervals: value ± t (seeds - 1 degrees of freedom) times the jackknife's standard error, of the fits without one
    seed. Raises ValueError for another shape, a number that is negative or not finite, a reference that is not among
    the k, or an alpha that is not within (0, 1).
    """
    check_alpha(alpha)
    w = np.asarray(wins, dtype=np.float64)
    if w.ndim != 3 or w.shape[1] != w.shape[2] or w.shape[1] == 0:
        raise ValueError(f"wins have shape {w.shape}: (seeds, k, k) is needed")
    if not np.isfinite(w).all() or (w < 0).any():
        raise ValueError("wins must be finite numbers, 0 or more")
    seeds, k, _ = w.shape
    if not 0 <= reference < k:
        raise ValueError(f"reference = {reference}: one of 0 to {k - 1} is needed")
    total = w.sum(axis=0)
    values = _fit(total, reference)
    without = [_fit(w[[other for other in range(seeds) if other != seed]].sum(axis=0), reference)
               for seed in range(seeds)] if seeds > 1 else []  # fmt: skip
    intervals = [
        None if value is None or i == reference else _jackknife(value, [fit[i] for fit in without], alpha)
        for i, value in enumerate(values)
    ]
    return Strengths(tuple(values), tuple(intervals))


def _jackknife(value: float, without: Sequence[float | None], alpha: float) -> Interval | None:
    """The interval of a value that is `without[s]` without seed s; None where one of these does not exist."""
    known = [one for one in without if one is not None]
    n = len(known)
    if n < 2 or n < len(without):
        return None
    pseudo = [n * value - (n - 1) * one for one in known]
    mean = t_test.mean(pseudo, max(1.0, n * abs(value)))
    if mean is None:
        return None
    half = functions.t_quantile(n - 1, 1 - alpha / 2) * mean.error * mean.unit
    return value - half, value + half


def _fit(wins: Array, reference: int) -> list[float | None]:
    """Newman's iteration (2023), which converges much faster than Zermelo's, in Python's own numbers: their sums have
    the same digits on every processor."""
    k = len(wins)
    w = wins.tolist()
    members = [i for i in range(k) if _reaches(w, i, reference) and _reaches(w, reference, i)]
    strength = dict.fromkeys(members, 1.0)
    for _ in range(_PASSES):
        change = 0.0
        for i in members:
            others = [j for j in members if j != i and w[i][j] + w[j][i] > 0]
            if not others:
                continue
            won = sum(w[i][j] * strength[j] / (strength[i] + strength[j]) for j in others)
            lost = sum(w[j][i] / (strength[i] + strength[j]) for j in others)
            change = max(change, abs(won / lost / strength[i] - 1))
            strength[i] = won / lost
        if change <= _CLOSE:
            break
    values: list[float | None] = [None] * k
    for i in members:
        log = float(functions.log(strength[i] / strength[reference]))
        values[i] = 0.0 if i == reference else float(f"{log:.{_DIGITS - 1}e}")
    return values


def _reaches(wins: Sequence[Sequence[float]], start: int, goal: int) -> bool:
    """Whether wins lead from a method to another one, over any others."""
    reached, front = {start}, [start]
    while front:
        i = front.pop()
        for j, won in enumerate(wins[i]):
            if won > 0 and j not in reached:
                reached.add(j)
                front.append(j)
    return goal in reached

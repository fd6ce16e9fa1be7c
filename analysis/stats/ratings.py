"""Strengths of several methods from comparisons of two.

Strengths are those of the model of Bradley and Terry (1952), a tie half a win: the chance that i wins over j is
s_i / (s_i + s_j). A strength is shown as its logarithm, relative to a reference. The strengths are those of the largest
likelihood of all comparisons. Their intervals are a jackknife over seeds, the unit of evidence: comparisons of one seed
share its luck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats import t_test
from analysis.stats.numbers import Array, Interval
from analysis.stats.resolution import check_alpha

#: Points of Elo's scale for a log strength of 1: 400 points are odds of 10 to 1.
ELO = 400 / math.log(10.0)
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
    values = _fit(w.sum(axis=0), reference)
    without = np.array([_fit(np.delete(w, seed, axis=0).sum(axis=0), reference) for seed in range(seeds)])
    intervals: list[Interval | None] = [None] * k
    for i in range(k) if seeds > 1 else ():
        pseudo = seeds * values[i] - (seeds - 1) * without[:, i]
        if i != reference and np.isfinite(pseudo).all():
            mean = t_test.mean(pseudo, max(1.0, seeds * abs(values[i])))
            low, high = (0.0, 0.0) if mean is None else mean.interval(alpha)
            intervals[i] = None if mean is None else (values[i] - (high - low) / 2, values[i] + (high - low) / 2)
    return Strengths(tuple(None if math.isnan(value) else value for value in values.tolist()), tuple(intervals))


def _fit(wins: Array, reference: int) -> Array:
    """Log strengths, NaN where there is none, by Newman's iteration (2023), much faster than Zermelo's."""
    reach = (wins > 0) | np.eye(len(wins), dtype=np.bool_)
    for _ in wins:  # wins lead from one method to another, over any others
        reach = reach @ reach
    members = np.flatnonzero(reach[:, reference] & reach[reference])
    w = wins[np.ix_(members, members)]
    np.fill_diagonal(w, 0.0)
    strength = np.ones(members.size)
    for _ in range(_PASSES if members.size > 1 else 0):
        before = strength.copy()
        for i in range(members.size):
            both = strength[i] + strength
            strength[i] = (w[i] * strength / both).sum() / (w[:, i] / both).sum()
        if np.abs(strength / before - 1).max() <= _CLOSE:
            break
    values = np.full(len(wins), np.nan)
    for member, log in zip(members, np.log(strength / strength[members == reference]), strict=True):
        values[member] = float(f"{log:.{_DIGITS - 1}e}")
    return values

"""Intervals of means of values between known limits: times cut at a budget, and shares of runs.

A t interval of few such values is too short where they have not shown a limit that some runs reach: three times below
the budget do not say that no run exceeds it. A run more, at the limit, shows how far the mean could be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from analysis.numbers import Array, Interval
from analysis.stats.resolution import check_alpha
from analysis.stats.t_test import mean as mean_of

MOST = 1.3  # times as wide as the t interval
_FURTHER = 4  # times alpha: the level of the intervals with one more run, chosen by simulation (benchmarks.validity)


def mean_interval(values: ArrayLike, low: float, high: float, alpha: float = 0.05) -> Interval | None:
    """Interval of the mean of values (n,), all within [low, high]: `outer_interval`, whose arguments and errors it has;
    None where that is more than MOST times as wide as the t interval, or where the values are equal."""
    outer, mean = outer_interval(values, low, high, alpha), mean_of(values)
    if outer is None or mean is None:
        return None
    ends = mean.interval(alpha)
    return outer if outer[1] - outer[0] <= MOST * (min(ends[1], high) - max(ends[0], low)) else None


def outer_interval(values: ArrayLike, low: float, high: float, alpha: float = 0.05) -> Interval | None:
    """Interval that holds the mean of values (n,), all within [low, high], whether or not they have shown both limits;
    None with fewer than two values.

    It is the t interval at level 1 - alpha, extended to the t intervals at level 1 - 4 alpha of the same values and one
    more: at `high` for the upper end, at `low` for the lower end. It exists where all values are equal, too. Raises
    ValueError for alpha outside (0, 0.25), limits that are not finite and increasing, or a value outside of them.
    """
    check_alpha(alpha)
    if alpha * _FURTHER >= 1:
        raise ValueError(f"alpha = {alpha!r}: a number between 0 and {1 / _FURTHER:g} is needed")
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"limits {low!r} and {high!r}: two finite numbers are needed, the lower one first")
    x = np.asarray(values, dtype=np.float64)
    if not ((x >= low) & (x <= high)).all():
        raise ValueError(f"a value is outside of [{low:g}, {high:g}]")
    if x.size < 2:
        return None
    mean = mean_of(x)
    ends = [*(mean.interval(alpha) if mean else (float(x[0]),) * 2)]
    for limit, end, side in ((low, 0, min), (high, 1, max)):
        if (more := mean_of(np.append(x, limit))) is not None:
            ends[end] = side(ends[end], more.interval(_FURTHER * alpha)[end])
    return max(low, ends[0]), min(high, ends[1])


def share_interval(share: ArrayLike, trials: float, alpha: float = 0.05) -> tuple[Array, Array]:
    """Ends (k,) of the intervals of shares (k,) of so many independent trials, at level 1 - alpha for each share alone.

    The trials may have different chances, as runs of different tasks: their sum scatters less than the binomial with
    the mean chance (Hoeffding 1956), so the interval of that binomial (Clopper and Pearson 1934) holds for the mean of
    the chances. It has a width where the share is 0 or 1, too. Raises ValueError for alpha outside (0, 1), no trial, or
    a share outside [0, 1].
    """
    check_alpha(alpha)
    shares = np.asarray(share, dtype=np.float64)
    if not trials > 0:
        raise ValueError(f"trials = {trials!r}: a positive number is needed")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("a share is outside of [0, 1]")
    hits = shares * trials
    # The parameters of a beta distribution are positive: where they are not, the end is 0 or 1.
    below = special.betaincinv(np.where(shares > 0, hits, 1), trials - hits + 1, alpha / 2)
    above = special.betaincinv(hits + 1, np.where(shares < 1, trials - hits, 1), 1 - alpha / 2)
    return np.where(shares > 0, below, 0.0), np.where(shares < 1, above, 1.0)

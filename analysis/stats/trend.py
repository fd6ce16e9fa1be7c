"""Whether a curve rises or falls: Theil and Sen's slope, and the Mann-Kendall test in Hamed and Rao's form.

The steps of a metric are autocorrelated, and the plain Mann-Kendall test then finds trends in noise. Hamed and Rao
(1998) widen its variance by the autocorrelation of the ranks, which is still not enough: of 100 steps of noise with a
lag-one correlation of 0.6, a fifth have p < .05. So p describes one run, and claims about a method compare slopes over
seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from analysis.stats.curve_summaries import NotEvaluable, block_means, measured
from analysis.stats.exact import doubled_ranks
from analysis.stats.numbers import Array
from analysis.stats.resolution import check_alpha

_FEWEST = 4  # the autocorrelation of three points says nothing
_MOST = 2000  # pairs grow with the square: a longer curve is averaged in blocks of equal length


@dataclass(frozen=True)
class Trend:
    """n points of a curve (blocks of them if it is long). slope: the median over all pairs of points, in the metric's
    unit a unit of the axis. tau: Kendall's rank correlation with the axis, in [-1, 1]. p: two-sided, None for a
    constant curve, with a reason. inflation: by how much autocorrelation widens the variance, 1 for none.
    """

    n: int
    slope: float
    tau: float
    p: float | None
    inflation: float
    reason: str | None


def theil_sen(axis: ArrayLike, values: ArrayLike) -> float:
    """Median of the slopes between all pairs of points; NaN values are left out. Raises NotEvaluable for one point."""
    x, y = (block_means(each, _MOST) for each in measured(axis, values))
    if x.size < 2:
        raise NotEvaluable("one value has no slope; at least two are needed")
    return _slope(x, y)


def _slope(x: Array, y: Array) -> float:
    i, j = np.triu_indices(x.size, 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def kendall(axis: ArrayLike, values: ArrayLike) -> float:
    """Kendall's rank correlation with the axis, tau-b, on which Mann and Kendall's test rests; 0 for a constant curve.
    NaN values are left out. Raises NotEvaluable for one point."""
    y = block_means(measured(axis, values)[1], _MOST)
    if y.size < 2:
        raise NotEvaluable("one value has no trend: two are needed")
    score, untied, _ = _score(y)
    return score / untied if untied else 0.0


def _score(y: Array) -> tuple[float, float, Array]:
    """Rises minus falls over all pairs of y (n,), their number in a strict trend with these ties, and the sizes of the
    ties."""
    # A row at a time: all pairs at once are megabytes.
    rises = sum(np.count_nonzero(y[k + 1 :] > y[k]) - np.count_nonzero(y[k + 1 :] < y[k]) for k in range(y.size - 1))
    ties = np.unique(y, return_counts=True)[1].astype(np.float64)
    pairs = y.size * (y.size - 1) / 2
    return float(rises), math.sqrt(pairs * (pairs - float((ties * (ties - 1)).sum()) / 2)), ties


def mann_kendall(axis: ArrayLike, values: ArrayLike, alpha: float = 0.05) -> Trend:
    """Test a curve for a monotone trend, axis and values (n,); NaN values are left out.

    alpha: the level at which a lag's autocorrelation of the ranks counts, as in Hamed and Rao. Its widening is never
    below 1: a negative autocorrelation is not taken as more evidence. Raises NotEvaluable with fewer than 4 values.
    """
    check_alpha(alpha)
    x, y = (block_means(each, _MOST) for each in measured(axis, values))
    n = int(x.size)
    if n < _FEWEST:
        raise NotEvaluable(f"{n} values: a trend needs {_FEWEST}")
    slope = _slope(x, y)
    score, untied, ties = _score(y)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return Trend(n, slope, 0.0, None, 1.0, "all values are equal: there is no trend to test")
    inflation = _inflation(doubled_ranks(y - slope * x, 0.0) / 2, alpha)
    z = (score - math.copysign(1, score)) / math.sqrt(variance * inflation) if score else 0.0
    p = min(1.0, max(2 * float(special.ndtr(-abs(z))), float(np.nextafter(0, 1))))
    return Trend(n, slope, score / untied, p, inflation, None)


def _inflation(ranks: Array, alpha: float) -> float:
    """Hamed and Rao's n / n*: 1 + 2 / (n (n-1) (n-2)) * sum over lags of (n-i)(n-i-1)(n-i-2) r_i, significant r_i
    alone."""
    n = ranks.size
    centred = ranks - ranks.mean()
    power = float((centred**2).sum())
    if power == 0:
        return 1.0
    lags = np.arange(1, n - 2)
    correlation = np.correlate(centred, centred, "full")[n:][: lags.size] / power
    bound = -float(special.ndtri(alpha / 2)) / math.sqrt(n)
    weights = (n - lags) * (n - lags - 1.0) * (n - lags - 2.0)
    kept = np.abs(correlation) > bound
    return max(1.0, 1 + 2 / (n * (n - 1.0) * (n - 2.0)) * float((weights * correlation)[kept].sum()))

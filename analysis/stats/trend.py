"""Whether a curve rises or falls: Theil and Sen's slope, and Kendall's rank correlation.

The steps of a metric are autocorrelated, so no test of one run's trend is valid: claims about a method are about these
numbers over seeds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats.curve_summaries import NotEvaluable, measured

Array = NDArray[np.float64]
_MOST = 2000  # pairs grow with the square: a longer curve is averaged in blocks of equal length


def theil_sen(axis: ArrayLike, values: ArrayLike) -> float:
    """Median of the slopes between all pairs of points; NaN values are left out. Raises NotEvaluable for one point."""
    x, y = _blocks(*measured(axis, values))
    if x.size < 2:
        raise NotEvaluable("one value has no slope; at least two are needed")
    i, j = np.triu_indices(x.size, 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def kendall(axis: ArrayLike, values: ArrayLike) -> float:
    """Kendall's rank correlation with the axis, tau-b, on which Mann and Kendall's test rests; 0 for a constant curve.
    NaN values are left out. Raises NotEvaluable for one point."""
    _, y = _blocks(*measured(axis, values))
    if y.size < 2:
        raise NotEvaluable("one value has no trend: two are needed")
    # A row at a time: all pairs at once are megabytes.
    rises = sum(np.count_nonzero(y[k + 1 :] > y[k]) - np.count_nonzero(y[k + 1 :] < y[k]) for k in range(y.size - 1))
    ties = np.unique(y, return_counts=True)[1].astype(np.float64)
    pairs = y.size * (y.size - 1) / 2
    untied = math.sqrt(pairs * (pairs - float((ties * (ties - 1)).sum()) / 2))
    return rises / untied if untied else 0.0


def _blocks(x: Array, y: Array) -> tuple[Array, Array]:
    """The curve in at most _MOST points, each the mean of as many."""
    width = -(-x.size // _MOST)
    kept = x.size // width * width
    return x[:kept].reshape(-1, width).mean(axis=1), y[:kept].reshape(-1, width).mean(axis=1)

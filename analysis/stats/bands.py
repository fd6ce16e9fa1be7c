"""Simultaneous bands of a mean curve: the true mean curve is inside at all points at once, at the nominal level.

A t interval at every point is a pointwise band. The whole curve leaves it somewhere in most experiments, because it has
many points at which it may leave. The band here is wider by a factor that accounts for them:

    mean(x) +- sqrt(t^2 + z^2) * s(x) / sqrt(n)

t: Student's quantile with n - 1 degrees of freedom, for luck that moves the whole curve of a seed. z: the level that
noise along the curve exceeds with chance alpha, by the formula of Kac and Rice for a t process (Adler and Taylor,
Random Fields and Geometry, 2007, chapter 15): it grows with the number of times that the curve of a seed crosses its
own level. The root of the sum of squares bounds both together, whatever their shares are (Cauchy and Schwarz).
s(x): the standard deviation over seeds at x, and at least its root mean square over the surrounding half of the curve.
At a single point, three seeds often agree by chance. Without the second part, a band would be narrow there, or have to
be several times as wide everywhere.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from analysis.stats.resolution import check_alpha
from analysis.stats.t_test import ROUNDING, without_rounding

Array = NDArray[np.float64]

_AROUND = 0.5  # share of the curve over which a standard deviation is pooled


def simultaneous(curves: Array, alpha: float = 0.05) -> tuple[Array, Array | None]:
    """Mean (points,) of curves (n, points), all finite, and the half width (points,) of its simultaneous band at level
    1 - alpha; None with fewer than two curves. Of one point, the band is the t interval.

    It assumes that the curves are independent and their luck is nearly normal, and that the spread over seeds does not
    change much within a quarter of the curve. Raises ValueError for alpha outside (0, 1).
    """
    check_alpha(alpha)
    n = len(curves)
    mean = curves.mean(axis=0)
    if n < 2:
        return mean, None
    spread = _spread(curves)
    return mean, factor(curves - mean, alpha) * np.maximum(spread, _pooled(spread)) / math.sqrt(n)


def factor(residuals: Array, alpha: float) -> float:
    """By how many standard errors the band of n curves reaches beyond their mean. residuals (n, points): curves minus
    their mean."""
    n, points = residuals.shape
    t = float(special.stdtrit(n - 1, 1 - alpha / 2))
    crossings = _crossings(residuals)
    if crossings <= alpha:
        return t
    # Half of the curve, over which the spread is pooled, has about half as many independent points as it has crossings.
    df = (n - 1) * max(1.0, crossings / 2)
    squared = df * math.expm1(2 / df * math.log(crossings / alpha))
    bonferroni = float(special.stdtrit(df, 1 - alpha / (2 * (points - 1))))
    return math.sqrt(t**2 + min(squared, bonferroni**2))


def _crossings(residuals: Array) -> float:
    """How often a curve crosses its own mean level on average: 0 for curves that differ only by their level."""
    largest = float(np.abs(residuals).max(initial=0.0))
    if not 0 < largest < math.inf:
        return 0.0
    scaled = residuals / largest
    signs = np.sign(without_rounding(scaled - scaled.mean(axis=1, keepdims=True), 10 * ROUNDING))
    return float((signs[:, 1:] != signs[:, :-1]).sum()) / len(residuals)


def _spread(curves: Array) -> Array:
    """Standard deviation over curves at each point, scaled there so that no square overflows and none vanishes."""
    power = np.frexp(np.abs(curves).max(axis=0))[1]
    return np.asarray(np.ldexp(np.ldexp(curves, -power).std(axis=0, ddof=1), power))


def _pooled(spread: Array) -> Array:
    """Root mean square of the spread over the surrounding part of the curve, at its ends over what there is of it."""
    largest = float(spread.max(initial=0.0))
    if largest == 0:
        return spread
    around = np.ones(2 * (int(spread.size * _AROUND) // 2) + 1)
    squares, counts = (np.convolve(each, around, "same") for each in ((spread / largest) ** 2, np.ones(spread.size)))
    return np.asarray(largest * np.sqrt(squares / counts))

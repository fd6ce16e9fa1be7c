"""How the seeds of a method scatter: against another method's, against their own mean, and in one cluster or two.

The first is the paired form of Brown and Forsythe's test (1974): a t test of the distances to each method's median.
The F test and Pitman and Morgan's are exact only for normal values: with log-normal values they find a difference in 30
to 40% of experiments with 10 equal pairs, this one in 4%. With three seeds it decides nothing.

No mean describes two clusters. They are told by the largest gap of the sorted values, relative to their standard
deviation within the two clusters that it makes. That is a description, no test: of normal values at most 1% are called
two clusters, of skewed ones more, and a mean of those describes their seeds badly, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from analysis.stats import t_test
from analysis.stats.contrast import Contrast
from analysis.stats.t_test import Interval

Array = NDArray[np.float64]

LEAST = 4  # values; of three, every pair is a cluster
_DIGITS = 9  # digits of a separation that are compared, so that no last bit decides
# By number of values, the separation that 1% of normal samples exceed: the upper end of the 99.7% interval of this
# quantile in 2 million samples, rounded up. python -m tests.analysis.shape_limits computes it. Between two numbers, the
# lower one has the higher limit, and counts.
LIMITS = {
    4: 28.056, 5: 13.487, 6: 9.062, 7: 7.013, 8: 5.821, 9: 5.035, 10: 4.471, 11: 4.086, 12: 3.769, 13: 3.540,
    14: 3.340, 15: 3.175, 16: 3.048, 17: 2.937, 18: 2.837, 19: 2.762, 20: 2.692, 21: 2.632, 22: 2.573,
    23: 2.526, 24: 2.478, 25: 2.452, 26: 2.407, 27: 2.380, 28: 2.350, 29: 2.321, 30: 2.294, 40: 2.122,
    50: 2.005, 75: 1.853, 100: 1.771, 150: 1.672, 200: 1.613,
}  # fmt: skip


@dataclass(frozen=True)
class Scatter:
    """Spread of a over that of b, each the mean distance of the seeds to their median.

    ratio: None where b has no spread. contrast: the distances of a, and `most` times those of b, under a t test.
    interval: of their difference, in the values' unit, None without spread: below zero when a scatters surely less than
    `most` times b.
    """

    ratio: float | None
    contrast: Contrast
    interval: Interval | None


def against(a: ArrayLike, b: ArrayLike, most: float, alpha: float, paired: bool = True) -> Scatter:
    """Whether a (n,) scatters at most `most` times as much as b: (n,) of the same seeds, or any number if not
    paired, from 1 on."""
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    x, y = (np.abs(v - np.median(v)) for v in (left, right))
    ratio = None if t_test.constant(right) else float(x.mean() / y.mean())
    contrast = Contrast("paired_t" if paired else "welch", x, most * y)
    # Two seeds are as far from their median as each other: what their distances differ by is rounding of the values.
    size = max(float(np.abs(left).max()), most * float(np.abs(right).max()))
    known = not paired or t_test.mean(x - most * y, size) is not None
    return Scatter(ratio, contrast, contrast.interval(alpha) if known else None)


def variation(values: ArrayLike, alpha: float) -> tuple[float, Interval] | None:
    """Coefficient of variation of values (n,), standard deviation over mean, with the chi-square interval of the
    former. It assumes normal values, and a mean far from zero.

    None with fewer than two values, no spread, or values on both sides of zero.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2 or t_test.constant(x) or not (np.all(x > 0) or np.all(x < 0)):
        return None
    x = x / np.abs(x).max()  # so that no square overflows
    cv = float(x.std(ddof=1) / abs(x.mean()))
    low, high = factors(x.size, alpha)
    return cv, (cv * low, cv * high)


def factors(n: int, alpha: float) -> Interval:
    """Multiplied by the standard deviation of n values, the interval of the true one at level 1 - alpha."""
    low, high = (math.sqrt((n - 1) / float(special.chdtri(n - 1, tail))) for tail in (alpha / 2, 1 - alpha / 2))
    return low, high


@dataclass(frozen=True)
class Split:
    """Two clusters of values: larger and smaller, the places of their values in the input; of two equally large ones,
    the lower is `smaller`. larger_near, smaller_near: their medians, in the values' unit."""

    larger: tuple[int, ...]
    smaller: tuple[int, ...]
    larger_near: float
    smaller_near: float


def split(values: ArrayLike) -> Split | None:
    """The two clusters of values (n,), all finite; None if they are one cluster, equal up to rounding, or fewer than
    LEAST."""
    x = np.asarray(values, dtype=np.float64)
    if x.size < LEAST or t_test.constant(x):
        return None
    order = np.argsort(x, kind="stable")
    separations, below = separation(x[order][None])
    if round(float(separations[0]), _DIGITS) <= LIMITS[max(n for n in LIMITS if n <= x.size)]:
        return None
    count = int(below[0])
    low, high = tuple(sorted(order[:count].tolist())), tuple(sorted(order[count:].tolist()))
    larger, smaller = (high, low) if len(low) <= len(high) else (low, high)
    return Split(larger, smaller, float(np.median(x[list(larger)])), float(np.median(x[list(smaller)])))


def separation(ordered: Array) -> tuple[Array, NDArray[np.intp]]:
    """The largest gap in each sample, over the standard deviation within the two clusters that it separates (m,), and
    how many values lie below it (m,). ordered: (m, n), n >= 3, rows sorted, not constant. x / 0 is infinite."""
    n = ordered.shape[1]
    half = ordered / 2  # so that no difference overflows
    first = half[:, :1]
    x = (half - first) / (half[:, -1:] - first)
    gaps = np.diff(x, axis=1)
    largest = gaps.max(axis=1, keepdims=True)
    below = 1 + np.argmax(gaps >= largest - 10.0**-_DIGITS, axis=1)  # of equal gaps, up to rounding, the lowest
    low = np.arange(n) < below[:, None]
    means = [(x * part).sum(axis=1, keepdims=True) / part.sum(axis=1, keepdims=True) for part in (low, ~low)]
    within = np.sqrt(((x - np.where(low, *means)) ** 2).sum(axis=1) / (n - 2))
    with np.errstate(divide="ignore"):
        return largest[:, 0] / within, below

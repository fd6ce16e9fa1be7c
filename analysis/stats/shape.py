"""Whether the seeds of a method fall into two clusters, which no mean describes: the largest gap of the sorted values,
relative to their standard deviation within the two clusters that it makes.

A description, no test: of normal values at most 1% are called two clusters, of skewed ones more, and a mean of those
describes their seeds badly, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats.t_test import constant

LEAST = 4  # values; of three, every pair is a cluster
_DIGITS = 9  # of a separation that count, so that no last bit decides
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
    if x.size < LEAST or constant(x):
        return None
    order = np.argsort(x, kind="stable")
    separations, below = separation(x[order][None])
    if round(float(separations[0]), _DIGITS) <= LIMITS[max(n for n in LIMITS if n <= x.size)]:
        return None
    count = int(below[0])
    low, high = tuple(sorted(order[:count].tolist())), tuple(sorted(order[count:].tolist()))
    larger, smaller = (high, low) if len(low) <= len(high) else (low, high)
    return Split(larger, smaller, float(np.median(x[list(larger)])), float(np.median(x[list(smaller)])))


def separation(ordered: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Of samples (m, n), n >= 3, each sorted and not constant: the largest gap over the standard deviation within the
    two clusters that it makes (m,), infinite where this is 0, and how many values lie below the gap (m,)."""
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

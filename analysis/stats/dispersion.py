"""How the seeds of a method scatter: against another method's, and against their own mean.

The first is the paired form of Brown and Forsythe's test (1974): a t test of the distances to each method's median.
The F test and Pitman and Morgan's are exact only for normal values: with log-normal values they find a difference in 30
to 40% of experiments with 10 equal pairs, this one in 4%. With three seeds it decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from analysis.stats import t_test
from analysis.stats.contrast import Contrast
from analysis.stats.numbers import Interval


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

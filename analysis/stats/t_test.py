"""Student's t: the mean of one sample, and the difference of two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from analysis.numbers import Array, Interval
from analysis.stats.exact import above_zero

# Differences below this fraction of the numbers subtracted are rounding, not evidence: 0.1 + 0.2 - 0.3 is a tie.
# Without it the t test on constant differences divides by rounding noise and returns p = 1e-32.
ROUNDING = 1e-13


@dataclass(frozen=True)
class Mean:
    """A mean, or a difference of two, with its standard error and degrees of freedom.

    All in units of `unit`, so that squares neither overflow nor vanish. sd: of the sample; None for two samples.
    """

    value: float
    error: float
    df: float
    unit: float
    sd: float | None = None

    @property
    def spread(self) -> float | None:
        """Standard deviation in the unit of the values; None of two samples."""
        return None if self.sd is None else self.sd * self.unit

    @property
    def d(self) -> float | None:
        """Mean over standard deviation, without bias: times Gamma(df/2) / (sqrt(df/2) Gamma((df - 1)/2)) (Hedges 1981).
        None of two samples, or of fewer than three values."""
        if self.sd is None or self.df < 2:
            return None
        return self.value / self.sd * float(special.poch((self.df - 1) / 2, 0.5)) / math.sqrt(self.df / 2)

    def interval(self, alpha: float) -> Interval:
        """t interval at level 1 - alpha."""
        half = float(special.stdtrit(self.df, 1 - alpha / 2)) * self.error
        return (self.value - half) * self.unit, (self.value + half) * self.unit

    def p(self) -> float:
        """Two-sided p that the true mean is zero."""
        return above_zero(min(1.0, 2 * float(special.stdtr(self.df, -abs(self.value) / self.error))))

    def p_inside(self, margin: float) -> float:
        """p of two one-sided tests: small when the true mean is within (-margin, margin)."""
        nearest = margin / self.unit - abs(self.value)
        return above_zero(float(special.stdtr(self.df, -nearest / self.error)))


def mean(values: ArrayLike, size: float | None = None) -> Mean | None:
    """Mean of values (n,), all finite; None with fewer than two values or no spread.

    size: of the numbers that the values are differences of, below which a spread is rounding; default: of the values.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size < 2 or constant(x, size):
        return None
    largest = float(np.abs(x).max())
    scaled = x / largest
    sd, value = float(scaled.std(ddof=1)), float(without_rounding(scaled.mean(), ROUNDING))
    return Mean(value, sd / math.sqrt(x.size), x.size - 1, largest, sd)


def average(values: ArrayLike) -> float:
    """The mean of values (n,), at least one, whose sum does not overflow."""
    x = np.asarray(values, dtype=np.float64)
    largest = float(np.abs(x).max())
    return float((x / largest).mean()) * largest if largest > 0 else 0.0


def welch(a: ArrayLike, b: ArrayLike) -> Mean | None:
    """Difference of the means of a (n,) and b (m,) with Welch's degrees of freedom; None with fewer than two values of
    each or no spread in both."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(x.size, y.size) < 2:
        return None
    largest = float(max(np.abs(x).max(), np.abs(y).max()))
    if constant(x, largest) and constant(y, largest):
        return None
    x, y = x / largest, y / largest
    # The two squared errors as shares of the larger: a spread of 1e-200 of the values must not vanish when squared.
    errors = np.array([float(x.std(ddof=1)) / math.sqrt(x.size), float(y.std(ddof=1)) / math.sqrt(y.size)])
    most = float(errors.max())
    parts = (errors / most) ** 2
    df = float(parts.sum() ** 2 / (parts**2 / (np.array([x.size, y.size]) - 1)).sum())
    return Mean(float(x.mean()) - float(y.mean()), most * math.sqrt(float(parts.sum())), df, largest)


def t_interval(values: ArrayLike, alpha: float = 0.05) -> Interval | None:
    """t interval of the mean of values (n,), all finite; None with fewer than two values or no spread."""
    estimate = mean(values)
    return None if estimate is None else estimate.interval(alpha)


def difference(a: ArrayLike, b: ArrayLike) -> Array:
    """a - b, elementwise, zero where only rounding is left of it."""
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return without_rounding(left - right, ROUNDING * np.maximum(np.abs(left), np.abs(right)))


def rounding(*numbers: ArrayLike) -> float:
    """ROUNDING of numbers of this type: larger for single precision."""
    kinds = [np.asarray(each).dtype for each in numbers]
    return max([ROUNDING, *(8 * float(np.finfo(kind).eps) for kind in kinds if kind.kind == "f" and kind.itemsize < 8)])


def without_rounding(values: Array, slack: Array | float) -> Array:
    """The values, zero where they are no larger than `slack`."""
    return np.where(np.abs(values) <= slack, 0.0, values)


def constant(values: Array, size: float | None = None) -> bool:
    """Whether all values are equal up to rounding, relative to `size` (default: the largest of them)."""
    with np.errstate(over="ignore"):
        spread = float(np.ptp(values))
    return spread <= ROUNDING * (float(np.abs(values).max()) if size is None else size)

"""Intervals and tests of means: Student's t for one sample and for the difference of two, and intervals of means of
values between known limits, such as times cut at a budget and shares of runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from analysis.stats.exact import above_zero
from analysis.stats.numbers import Array, Interval
from analysis.stats.resolution import check_alpha

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


def difference(a: ArrayLike, b: ArrayLike, rounding: float = ROUNDING) -> Array:
    """a - b, elementwise, zero where only rounding (a share of the numbers) is left of it."""
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return without_rounding(left - right, rounding * np.maximum(np.abs(left), np.abs(right)))


def without_rounding(values: Array, slack: Array | float) -> Array:
    """The values, zero where they are no larger than `slack`."""
    return np.where(np.abs(values) <= slack, 0.0, values)


def constant(values: Array, size: float | None = None) -> bool:
    """Whether all values are equal up to rounding, relative to `size` (default: the largest of them)."""
    with np.errstate(over="ignore"):
        spread = float(np.ptp(values))
    return spread <= ROUNDING * (float(np.abs(values).max()) if size is None else size)


MOST = 1.3  # times as wide as the t interval
_HIGHEST = 0.2  # level of an interval by one more run, which is asked at a multiple of it
_FURTHER = 4  # times alpha: the level of the intervals with one more run, chosen by simulation (benchmarks.validity)


def mean_interval(values: ArrayLike, low: float, high: float, alpha: float = 0.05) -> Interval | None:
    """Interval of the mean of values (n,), all within [low, high]: `outer_interval`, whose arguments and errors it has;
    None where that is more than MOST times as wide as the t interval, or where the values are equal."""
    outer, middle = outer_interval(values, low, high, alpha), mean(values)
    if outer is None or middle is None:
        return None
    ends = middle.interval(alpha)
    return outer if outer[1] - outer[0] <= MOST * (min(ends[1], high) - max(ends[0], low)) else None


def outer_interval(values: ArrayLike, low: float, high: float, alpha: float = 0.05) -> Interval | None:
    """Interval that holds the mean of values (n,), all within [low, high], whether or not they have shown both limits;
    None with fewer than two values.

    It is the t interval at level 1 - alpha, extended to the t intervals at level 1 - 4 alpha of the same values and one
    more: at `high` for the upper end, at `low` for the lower end; for alpha above _HIGHEST it is that of _HIGHEST. It
    exists where all values are equal, too. Raises ValueError for alpha outside (0, 1), limits that are not finite and
    increasing, or a value outside of them.
    """
    check_alpha(alpha)
    alpha = min(alpha, _HIGHEST)
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"limits {low!r} and {high!r}: two finite numbers are needed, the lower one first")
    x = np.asarray(values, dtype=np.float64)
    if not ((x >= low) & (x <= high)).all():
        raise ValueError(f"a value is outside of [{low:g}, {high:g}]")
    if x.size < 2:
        return None
    middle = mean(x)
    ends = [*(middle.interval(alpha) if middle else (float(x[0]),) * 2)]
    for limit, end, side in ((low, 0, min), (high, 1, max)):
        if (more := mean(np.append(x, limit))) is not None:
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

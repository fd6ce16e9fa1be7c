"""The comparison of two methods by the test that decides: its p, and the interval that is its inversion.

The interval at level 1 - alpha holds every difference (or ratio) that the test does not reject at alpha. So it excludes
zero exactly where p <= alpha, and an interval and a verdict cannot disagree. What each test rests on:

    paired_t   differences of the same seed are normal
    signflip   they are symmetric about their mean
    wilcoxon   as signflip; it is about the median of the means of two differences, and less about outliers
    welch      both samples are normal; their spreads may differ
    relabel    the two methods give the same distribution, but for a shift (difference) or a factor (ratio)

A test that is looked at while seeds are added has a `look`: its p is then the repeated p value of this look, and its
interval the repeated interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.stats import exact, t_test
from analysis.stats.numbers import Array, Interval
from analysis.stats.resolution import PAIRED, T_TESTS, UNPAIRED, smallest_p
from analysis.stats.sequential import Look


@dataclass(frozen=True, eq=False)
class Contrast:
    """Values a (n,) of one method and b of another: (n,) of the same seeds for a paired test, else (m,); all finite.

    test: one of `resolution.PAIRED` or `resolution.UNPAIRED`. seed: of the sign patterns or relabellings that are
    drawn where they are too many to count. look: None if the number of seeds was fixed before.

    Raises ValueError for another test, or for pairs of unequal number.
    """

    test: str
    a: Array
    b: Array
    seed: int = 0
    look: Look | None = None

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.test not in (*PAIRED, *UNPAIRED):
            raise ValueError(f"test = {self.test!r}: {', '.join((*PAIRED, *UNPAIRED))} are allowed")
        if self.paired and self.a.shape != self.b.shape:
            raise ValueError(f"a has shape {self.a.shape}, b has shape {self.b.shape}: pairs are needed")

    @property
    def paired(self) -> bool:
        """Whether a[i] and b[i] are of the same seed."""
        return self.test in PAIRED

    @property
    def n(self) -> int:
        """The number of pairs, or of values of the smaller sample."""
        return min(self.a.size, self.b.size)

    @cached_property
    def difference(self) -> float | None:
        """The mean of a minus the mean of b; None without a value of both. Of pairs it is the mean difference."""
        if self.n == 0:
            return None
        return t_test.average(self._d) if self.paired else t_test.average(self.a) - t_test.average(self.b)

    @cached_property
    def _d(self) -> Array:
        return t_test.difference(self.a, self.b)

    @cached_property
    def _t(self) -> t_test.Mean | None:
        if not self.paired:
            return t_test.welch(self.a, self.b)
        size = max(float(np.abs(self.a).max()), float(np.abs(self.b).max())) if self.n else 0.0
        return t_test.mean(self._d, size)

    @property
    def above(self) -> int:
        """In how many pairs a is the higher."""
        return int((self._d > 0).sum())

    @property
    def ties(self) -> int:
        """The pairs without a difference; 0 of two samples."""
        return int((self._d == 0).sum()) if self.paired else 0

    @property
    def d_z(self) -> float | None:
        """Mean over standard deviation of the differences, with Hedges' correction; None of two samples, or of fewer
        than three pairs."""
        return None if self._t is None else self._t.d

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation of the differences of pairs, or of the values of one method; None without any."""
        if self._t is None:
            return None
        if self.paired:
            return self._t.spread
        largest = max(float(np.abs(self.a).max()), float(np.abs(self.b).max()))
        variances = [float((values / largest).var(ddof=1)) for values in (self.a, self.b)]
        return math.sqrt(sum(variances) / 2) * largest

    @property
    def effect(self) -> float | None:
        """The size of the difference in standard deviations, as `power` takes it; None without spread."""
        return None if self.difference is None or self.spread is None else abs(self.difference) / self.spread

    @cached_property
    def gain(self) -> tuple[float, float] | None:
        """What pairing by seed gains: the correlation of a with b over seeds, and the variance of the mean difference
        over what it would be if seeds were not paired. None of two samples, of fewer than three pairs, or without
        spread in a or b."""
        if not self.paired or self.n < 3 or t_test.constant(self.a) or t_test.constant(self.b):
            return None
        largest = max(float(np.abs(self.a).max()), float(np.abs(self.b).max()))
        a, b = self.a / largest, self.b / largest
        together = float(np.corrcoef(self.a / float(np.abs(self.a).max()), self.b / float(np.abs(self.b).max()))[0, 1])
        apart = float(a.var(ddof=1)) + float(b.var(ddof=1))
        return (together, float((a - b).var(ddof=1)) / apart) if apart > 0 else None

    @property
    def t(self) -> float | None:
        """Student's t of the differences, or Welch's of the values, whatever test decides; None without spread."""
        return None if self._t is None else self._t.value / self._t.error

    def level(self, alpha: float) -> float:
        """The level at which the test is asked on its own, where all looks together are asked at alpha."""
        return alpha if self.look is None else self.look.level(alpha)

    def smallest_p(self, ties: int = 0) -> float:
        """The smallest p that so many values can give, of which so many are tied."""
        smallest = smallest_p(self.test, self.a.size - ties, self.b.size - ties)
        return smallest if self.look is None else self.look.p(smallest)

    def p(self) -> float | None:
        """Two-sided p that the methods do not differ; None where the test has none."""
        p = self._p()
        return p if p is None or self.look is None else self.look.p(p)

    def _p(self) -> float | None:
        if self.n == 0:
            return None
        if self.test == "signflip":
            return exact.signflip(self._d, seed=self.seed)
        if self.test == "wilcoxon":
            return exact.wilcoxon_around(self._d)
        if self.test == "relabel":
            return exact.relabel(self.a, self.b, seed=self.seed)
        return None if self._t is None else self._t.p()

    def side(self, alpha: float) -> int:
        """1 if a is higher than b at this level, -1 if it is lower, 0 if that is not decided."""
        p, difference = self.p(), self.difference
        if p is None or difference is None or p > alpha:
            return 0
        return (difference > 0) - (difference < 0)

    def interval(self, alpha: float) -> Interval | None:
        """The differences a - b that the test does not reject at alpha; None without a bound on them."""
        if self.n == 0:
            return None
        alpha = self.level(alpha)
        if self.test not in T_TESTS:
            return self._counted(alpha, ratio=False)
        return None if self._t is None or alpha <= 0 else self._t.interval(alpha)

    def ratio(self) -> float | None:
        """The mean of a over the mean of b, all values positive; None if they are not, or there is none."""
        if self.n == 0 or min(float(self.a.min()), float(self.b.min())) <= 0:
            return None
        return t_test.average(self.a) / t_test.average(self.b)

    def ratio_interval(self, alpha: float) -> Interval | None:
        """The factors r around `ratio` by which the test of a against r b does not reject at alpha; None without a
        bound on them, without a ratio, or where `p` has no meaning.

        A t test of r b may reject factors near the ratio and not those far from it, where b is hardly told from zero
        (Fieller 1954): the interval is then the part that holds the ratio.
        """
        ratio = self.ratio()
        if ratio is None or self.p() is None:
            return None
        alpha = self.level(alpha)
        if self.test not in T_TESTS:
            return self._counted(alpha, ratio=True)
        low = _last(lambda factor: self._rejected(self.a, self.b * factor, alpha), ratio)
        high = _last(lambda factor: self._rejected(self.a * factor, self.b, alpha), 1 / ratio)
        return None if low is None and high is None else (low or 0.0, 1 / high if high else math.inf)

    def _rejected(self, a: Array, b: Array, alpha: float) -> bool:
        estimate = Contrast(self.test, a, b, self.seed)._t
        return estimate is not None and estimate.p() <= alpha

    def _counted(self, alpha: float, ratio: bool) -> Interval | None:
        """The differences, or the ratios, that a test by counting does not reject."""
        if self.test == "relabel":
            return exact.relabel_interval(self.a, self.b, alpha, ratio=ratio, seed=self.seed)
        u, v = (self.a, self.b) if ratio else (self._d, np.ones(self.n))
        if self.test == "signflip":
            return exact.signflip_interval(u, v, alpha, seed=self.seed)
        # The signed-rank test changes its mind only where u - theta v of two pairs, or of one, sum to zero.
        above, right = np.triu_indices(self.n)
        with np.errstate(divide="ignore", invalid="ignore"):
            turns = (u[above] + u[right]) / (v[above] + v[right])
        null, unit = (1.0, 1.0) if ratio else (0.0, float(np.abs(u).max()))
        turns = np.unique(np.where(np.abs(turns - null) <= exact.TIE * unit, null, turns))

        def rejects(theta: float) -> bool:
            p = exact.wilcoxon(t_test.difference(u, theta * v))
            return p is not None and p <= alpha

        low = exact.first_kept(turns, rejects)
        high = exact.first_kept(turns[::-1], rejects)
        return None if low is None or high is None else (exact.rounded(low), exact.rounded(high))


def _last(rejects: Callable[[float], bool], inside: float) -> float | None:
    """The smallest factor of the interval around `inside` that the test does not reject. None if it rejects neither 0
    nor 1."""
    outside = next((factor for factor in (0.0, 1.0) if factor < inside and rejects(factor)), None)
    if outside is None or rejects(inside):
        return None
    while (middle := (inside + outside) / 2) not in (inside, outside):  # until they are neighbours
        if rejects(middle):
            outside = middle
        else:
            inside = middle
    return inside

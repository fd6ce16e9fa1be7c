"""One group's mean over another's, by the test that decides: for times, a speed-up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from analysis.findings.study import Bound, Comparison, Ground, Reason, no_interval
from analysis.stats import t_test
from analysis.stats.contrast import Contrast
from analysis.stats.numbers import Interval


@dataclass(frozen=True)
class Ratio:
    """The ratio of two means with the interval of the test that decides, open where only a bound is known.

    n: pairs, or values of the group with fewer. contrast: of numerator and denominator, None without a ratio; level:
    at which it is asked. bound: AT_LEAST where numerators are times cut at the budget, AT_MOST where denominators are;
    its interval is then not that of the test, and decides. ground: why there is no ratio or no test, or why it is a
    bound.
    """

    n: int
    value: float | None = None
    interval: Interval | None = None
    bound: Bound | None = None
    ground: Ground | None = None
    contrast: Contrast | None = None
    level: float = 0.0

    def side(self, factor: float) -> int:
        """1 if the ratio is above a factor, -1 if it is below, 0 if that is not decided."""
        if self.bound is not None:
            low, high = self.interval or (0.0, math.inf)
            return int(low > factor) - int(high < factor)
        contrast = self.contrast
        return 0 if contrast is None else replace(contrast, b=contrast.b * factor).side(self.level)


def of_comparison(comparison: Comparison, budget: float, inverse: bool = False) -> Ratio:
    """The group's mean over the baseline's; inverse: the baseline's over the group's, the efficiency of times.

    budget: at which times are cut. If some are, or are the earliest that can be told, the interval is extended to
    that of the two means of times between 0 and the budget, each at the level of the comparison. The test of the
    times alone would hold a true ratio in as little as 52% of experiments: scaled times are cut elsewhere, so their
    differences are not symmetric (benchmarks.validity).
    """
    contrast, level, cut, first = comparison.contrast, comparison.level, comparison.times_cut, comparison.times_first
    if inverse:
        contrast, cut, first = replace(contrast, a=contrast.b, b=contrast.a), cut[::-1], first[::-1]
    n = contrast.n
    if comparison.ground is not None and comparison.ground.reason is Reason.DRAWN_APART:
        return Ratio(n, ground=comparison.ground)
    if n == 0:
        return Ratio(0, ground=Ground(Reason.NO_PAIR))
    value = contrast.ratio()
    if value is None:
        return Ratio(n, ground=Ground(Reason.NOT_POSITIVE))
    larger, smaller = cut[0] + first[1], cut[1] + first[0]  # runs for which the true ratio may be larger, or smaller
    if larger and smaller:
        return Ratio(n, ground=Ground(Reason.ALL_TIMES_CUT))
    bound = Bound.AT_LEAST if larger else Bound.AT_MOST if smaller else None
    if n < 2 or contrast.p() is None:
        return Ratio(n, value, None, bound, Ground(Reason.NO_SPREAD_OF_RATIOS, n=n) if n > 1 else no_interval(n))
    interval = contrast.ratio_interval(level)
    if interval is not None and bound is not None:
        ends = [interval, _of_bounded(contrast, budget, contrast.level(level))]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        interval = (0.0, high) if bound is Bound.AT_MOST else (low, math.inf)
    ground = Ground(Reason.TIMES_CUT, n=sum(cut)) if any(cut) else None
    ground = Ground(Reason.TIMES_FIRST, n=sum(first)) if any(first) else ground
    return Ratio(n, value, interval, bound, ground, contrast, level)


def _of_bounded(contrast: Contrast, budget: float, level: float) -> Interval:
    """The ratio's interval from those of both means of times, at least two each, between 0 and the budget."""
    if not level > 0:
        return 0.0, math.inf
    sides = (side.clip(0.0, budget) for side in (contrast.a, contrast.b))  # completed ones of a seed that lacks cells
    above, below = (t_test.outer_interval(times, 0.0, budget, level) for times in sides)
    if above is None or below is None:
        return 0.0, math.inf
    return above[0] / below[1], above[1] / below[0] if below[0] > 0 else math.inf

"""One group's numbers over another's, paired by seed: for times, a speed-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.findings.outcomes import Bound, Ground, Reason, no_interval
from analysis.findings.study import Comparison
from analysis.stats import functions, t_test
from analysis.stats.t_test import Interval


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of n seeds' ratios with the t interval of their logarithms, open where only a bound is known.

    bound: AT_LEAST where numerators are times cut at the budget, AT_MOST where denominators are. ground: why there is
    no ratio or no interval, or why it is a bound.
    """

    n: int
    value: float | None = None
    interval: Interval | None = None
    bound: Bound | None = None
    ground: Ground | None = None


def ratio(over: Sequence[float], under: Sequence[float], alpha: float, cut: tuple[int, int] = (0, 0)) -> Ratio:
    """over[i] / under[i] of seed i; cut: how many of each are times cut at the budget."""
    n = len(over)
    if n == 0:
        return Ratio(0, ground=Ground(Reason.NO_PAIR))
    if min(*over, *under) <= 0:
        return Ratio(n, ground=Ground(Reason.NOT_POSITIVE))
    if all(cut):
        return Ratio(n, ground=Ground(Reason.ALL_TIMES_CUT))
    logs = functions.log(over) - functions.log(under)
    value, interval = functions.exp(float(logs.mean())), t_test.t_interval(logs, alpha)
    bound = Bound.AT_LEAST if cut[0] else Bound.AT_MOST if cut[1] else None
    if interval is None:
        return Ratio(n, value, None, bound, Ground(Reason.NO_SPREAD_OF_RATIOS, n=n) if n > 1 else no_interval(n))
    low = 0.0 if bound is Bound.AT_MOST else functions.exp(interval[0])
    high = math.inf if bound is Bound.AT_LEAST else functions.exp(interval[1])
    return Ratio(n, value, (low, high), bound, Ground(Reason.TIMES_CUT, n=sum(cut)) if bound else None)


def of_comparison(comparison: Comparison, alpha: float, inverse: bool = False) -> Ratio:
    """The group's numbers over the baseline's; inverse: the baseline's over the group's, the efficiency of times."""
    own, theirs = comparison.times_cut
    if inverse:
        return ratio(comparison.b, comparison.a, alpha, (theirs, own))
    return ratio(comparison.a, comparison.b, alpha, (own, theirs))

"""One group's numbers over another's, paired by seed: of times, how much sooner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.findings.study import Comparison, times_cut
from analysis.numbers import format_estimate, format_number
from analysis.stats import functions, t_test


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of n seeds' ratios with the t interval of their logarithms, open where only a bound is known.

    bound: "at least" where numerators are times cut at the budget, "at most" where denominators are. reason: why there
    is no ratio or no interval.
    """

    n: int
    value: float | None
    interval: tuple[float, float] | None
    bound: str | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """As a reader sees it."""
        if self.value is None:
            return "-"
        if self.bound is None:
            return format_estimate(self.value, self.interval)
        shown = f"{self.bound} {format_number(self.value, 3)}"
        if self.interval is None:
            return shown
        low, high = self.interval
        if self.bound == "at least":
            return f"{shown} [{format_number(low, 3)}, \N{INFINITY})"
        return f"{shown} (0, {format_number(high, 3)}]"


def ratio(over: Sequence[float], under: Sequence[float], alpha: float, cut: tuple[int, int] = (0, 0)) -> Ratio:
    """over[i] / under[i] of seed i; cut: how many of each are times cut at the budget."""
    n = len(over)
    if n == 0:
        return Ratio(0, None, None, None, "no seed has both")
    if min(*over, *under) <= 0:
        return Ratio(n, None, None, None, "a ratio needs positive values in every seed")
    if all(cut):
        return Ratio(n, None, None, None, "times of both groups are cut at the budget")
    logs = functions.log(over) - functions.log(under)
    value, interval = functions.exp(float(logs.mean())), t_test.t_interval(logs, alpha)
    bound = "at least" if cut[0] else "at most" if cut[1] else None
    if interval is None:
        why = "one seed has no spread" if n == 1 else f"all {n} ratios are equal: without spread there is no interval"
        return Ratio(n, value, None, bound, why)
    low = 0.0 if bound == "at most" else functions.exp(interval[0])
    high = math.inf if bound == "at least" else functions.exp(interval[1])
    return Ratio(n, value, (low, high), bound, times_cut(sum(cut)) if bound else None)


def of_comparison(comparison: Comparison, alpha: float, inverse: bool = False) -> Ratio:
    """The group's numbers over the baseline's; inverse: the other way round, of times the efficiency."""
    own, theirs = (n - k for k, n in comparison.reached or ((0, 0), (0, 0)))
    if inverse:
        return ratio(comparison.b, comparison.a, alpha, (theirs, own))
    return ratio(comparison.a, comparison.b, alpha, (own, theirs))

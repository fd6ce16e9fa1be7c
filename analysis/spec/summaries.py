"""The summaries of a run: one number from the curve of a metric. To add one, add a function here.

The statistics are imported where they are used: the names are needed to check a plan, numpy is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.spec.registry import Curve, summary

if TYPE_CHECKING:
    from analysis.stats.numbers import Array


@summary("final", "final value", of_many=True)
def final(curve: Curve) -> Array:
    """Mean over the last tenth of the steps."""
    from analysis.stats.curve_summaries import finals

    return finals(curve.steps, curve.values, curve.stop)


@summary("auc", "area under the curve", of_many=True)
def auc(curve: Curve) -> Array:
    """Average height over the common range."""
    from analysis.stats.curve_summaries import areas

    return areas(curve.steps, curve.values, curve.start, curve.stop)


@summary("best", "best value", judged=False)
def best(curve: Curve) -> float:
    """Best mean over the window, or the final value if it is better: it may be a mean over fewer points."""
    from analysis.stats import curve_summaries

    inside, better = curve.inside, max if curve.direction == "higher" else min
    smoothed = curve_summaries.best(inside.values, curve.points, direction=curve.direction)
    late = inside.steps > (1 - curve_summaries.FINAL) * curve.stop
    return better(smoothed, float(inside.values[late].mean())) if late.any() else smoothed


@summary("mean", "mean")
def mean(curve: Curve) -> float:
    """Mean over the common range."""
    return float(curve.inside.values.mean())


@summary("early", "mean of the first tenth", until=0.1)
def early(curve: Curve) -> float:
    """Mean of the first tenth of the steps."""
    from analysis.stats import curve_summaries

    return curve_summaries.early(curve.steps, curve.values, curve.stop).mean


@summary("early_variance", "variance from step to step, in the first tenth,", until=0.1, directed=False)
def early_variance(curve: Curve) -> float:
    """Variance of the change from one step to the next in the first tenth of the steps."""
    from analysis.stats.curve_summaries import NotEvaluable, early

    phase = early(curve.steps, curve.values, curve.stop)
    if phase.step_variance is None:
        raise NotEvaluable(f"{phase.n} values in the first tenth: three are needed")
    if phase.step_variance == float("inf"):
        raise NotEvaluable("changes too large to square")
    return phase.step_variance


@summary("slope", "slope a step", directed=False)
def slope(curve: Curve) -> float:
    """Theil and Sen's slope, per step."""
    from analysis.stats.trend import theil_sen

    return theil_sen(curve.inside.steps, curve.inside.values)


@summary("trend", "Kendall's rank correlation with the step", directed=False)
def trend(curve: Curve) -> float:
    """Kendall's rank correlation with the step."""
    from analysis.stats.trend import kendall

    return kendall(curve.inside.steps, curve.inside.values)


@summary("late_relative", "final value, as a share of that in the middle,", directed=False)
def late_relative(curve: Curve) -> float:
    """The mean of the last tenth of the steps over that of the tenth in the middle."""
    from analysis.stats.curve_summaries import FINAL, NotEvaluable, finals

    end = 0.5 + FINAL / 2  # of the tenth in the middle
    middle = float(finals(curve.steps, curve.values, end * curve.stop, fraction=FINAL / end))
    if not middle > 0:
        raise NotEvaluable(f"its value in the middle is {middle:g}, and a share of it means nothing")
    return float(finals(curve.steps, curve.values, curve.stop)) / middle


@summary("lowest_relative", "least value, as a share of the first,", every_step=True)
def lowest_relative(curve: Curve) -> float:
    """The least value over the first one."""
    from analysis.stats.curve_summaries import NotEvaluable

    values = curve.inside.values
    if values[0] <= 0:
        raise NotEvaluable(f"the first value is {values[0]:g}: no share of it can be computed")
    return float(values.min() / values[0])


@summary(
    "largest_change",
    "largest change within the window, as a share of the largest value,",
    every_step=True,
    directed=False,
)
def largest_change(curve: Curve) -> float:
    """The largest change within the window, over the largest magnitude."""
    from analysis.stats import curve_summaries

    axis, window = curve.inside.measured
    return curve_summaries.largest_change(axis, curve.inside.values, window)

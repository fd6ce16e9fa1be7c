"""One number from one curve: area, final value, best value, early phase, time to a threshold.

A curve is two vectors of one length: the axis (steps from 1, or samples), increasing, and the metric's values. NaN
means "not measured at this point" and is bridged; an infinity makes the curve unusable. What cannot be computed raises
NotEvaluable with the reason: no function returns a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_SLACK = 1e-9
FINAL = 0.1  # the share of the budget at its end that a final value is the mean of
EARLY = 0.1  # the share of the budget at its beginning that is the early phase


class NotEvaluable(ValueError):
    """A summary that these data do not have; the message is the reason, fit to be shown to a reader."""


@dataclass(frozen=True)
class TimeTo:
    """When a threshold was reached, in units of the axis; `reached` False: not by `time`, the budget (censored)."""

    time: float
    reached: bool


@dataclass(frozen=True)
class EarlyPhase:
    """The first tenth of a curve's budget: n points, their mean, and the variance of the change from one point to the
    next (None with fewer than 3 points), which is the noise of steps and not the rise."""

    n: int
    mean: float
    step_variance: float | None


def auc(axis: ArrayLike, values: ArrayLike, start: float | None = None, stop: float | None = None) -> float:
    """Area under the curve by the trapezoid rule over [start, stop], divided by its length: the average height.

    start and stop default to the curve's ends; between measured points they are interpolated. Nothing is extrapolated:
    a curve that does not reach from start to stop raises NotEvaluable.
    """
    x, y = measured(axis, values)
    low, high = float(x[0]) if start is None else start, float(x[-1]) if stop is None else stop
    if x[0] > low + _SLACK:
        raise NotEvaluable(f"begins at {x[0]:g}, after {low:g}")
    if x[-1] < high - _SLACK:
        raise NotEvaluable(f"ends at {x[-1]:g} of {high:g}")
    if high - low <= 0:
        return float(np.interp(low, x, y))
    inside = (x > low) & (x < high)
    x_cut = np.concatenate(([low], x[inside], [high]))
    y_cut = np.concatenate(([np.interp(low, x, y)], y[inside], [np.interp(high, x, y)]))
    return float(np.trapezoid(y_cut, x_cut) / (high - low))


def final(axis: ArrayLike, values: ArrayLike, stop: float | None = None, *, fraction: float = FINAL) -> float:
    """Mean of the points in the last `fraction` of the budget: those above (1 - fraction) * stop, up to stop."""
    x, y = measured(axis, values)
    end = float(x[-1]) if stop is None else stop
    window = (x > (1 - fraction) * end + _SLACK) & (x <= end + _SLACK)
    if not window.any():
        raise NotEvaluable(f"no value in the last {fraction:.0%} of {end:g}: the last is at {x[-1]:g}")
    return float(y[window].mean())


def early(axis: ArrayLike, values: ArrayLike, stop: float | None = None, *, fraction: float = EARLY) -> EarlyPhase:
    """The points in the first `fraction` of the budget: up to fraction * stop, by default of the curve's end."""
    x, y = measured(axis, values)
    end = float(x[-1]) if stop is None else stop
    y = y[x <= fraction * end + _SLACK]
    if y.size == 0:
        raise NotEvaluable(f"no value in the first {fraction:.0%} of {end:g}: the first is at {x[0]:g}")
    return EarlyPhase(int(y.size), float(y.mean()), float(np.diff(y).var(ddof=1)) if y.size > 2 else None)


def best(values: ArrayLike, window: int = 20, *, direction: str = "higher") -> float:
    """Best value of the curve smoothed by a centred mean over `window` points (fewer if the curve is shorter).

    Only whole windows count: at the ends a shorter mean would be noisier, and the best of noise is biased.
    """
    y = np.asarray(values, dtype=np.float64)
    _, y = measured(np.arange(y.size, dtype=np.float64), y)
    width = min(window, y.size)
    smooth = np.convolve(y, np.full(width, 1.0 / width), mode="valid")
    return float(smooth.max() if direction == "higher" else smooth.min())


def time_to(
    axis: ArrayLike,
    values: ArrayLike,
    threshold: float,
    *,
    window: float = 20,
    budget: float | None = None,
    direction: str = "higher",
) -> TimeTo:
    """First point at which the mean over the last `window` units of the axis reaches the threshold.

    Between the points before and after the crossing the mean is interpolated linearly. The first whole window is the
    earliest time. Not reached by the budget (default: the end of the curve): censored there.
    """
    x, y = measured(axis, values)
    end = float(x[-1]) if budget is None else float(budget)
    x, y = x[x <= end + _SLACK], y[x <= end + _SLACK]
    if x.size == 0:
        raise NotEvaluable(f"no value up to the budget of {end:g}")
    sign = 1.0 if direction == "higher" else -1.0
    y, goal = sign * y, sign * threshold
    spacing = float(np.median(np.diff(x))) if x.size > 1 else 0.0
    # A point stands for the stretch of the axis that ends with it, so the first whole window ends here:
    first = min(float(x[0]) - spacing + window, float(x[-1]))
    total = np.concatenate(([0.0], np.cumsum(y)))
    begin = np.searchsorted(x, x - window + _SLACK, side="right")
    means = (total[1:] - total[begin]) / (np.arange(x.size) + 1 - begin)
    whole = np.flatnonzero(x >= first - _SLACK)
    slack = _SLACK * max(abs(goal), float(np.abs(y).max()))
    hits = whole[means[whole] >= goal - slack]
    if hits.size == 0:
        return TimeTo(end, False)
    hit = int(hits[0])
    if hit == whole[0] or means[hit] <= goal:
        return TimeTo(float(x[hit]), True)
    share = (goal - means[hit - 1]) / (means[hit] - means[hit - 1])
    return TimeTo(float(x[hit - 1] + share * (x[hit] - x[hit - 1])), True)


def restricted_mean(times: Sequence[float], reached: Sequence[bool], budget: float) -> float:
    """Mean time to the threshold, each time cut at the budget: the area under the Kaplan-Meier curve up to the budget.

    With every censored time at the budget it is the plain mean of min(time, budget). Raises NotEvaluable for no times.
    """
    if len(times) != len(reached):
        raise ValueError(f"{len(times)} times and {len(reached)} flags: one flag a time is needed")
    if not times:
        raise NotEvaluable("no run to take a time from")
    t = np.minimum(np.asarray(times, dtype=np.float64), budget)
    if not np.isfinite(t).all():
        raise NotEvaluable("a time is not finite")
    event = np.asarray(reached, dtype=bool) & (np.asarray(times, dtype=np.float64) <= budget)
    area, surviving, before = 0.0, 1.0, 0.0
    for moment in np.unique(t):
        area += surviving * (float(moment) - before)
        at_risk = int((t >= moment).sum())
        surviving *= 1.0 - int((event & (t == moment)).sum()) / at_risk
        before = float(moment)
    return area + surviving * (budget - before)


def measured(axis: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    """The points of a curve that were measured. Raises NotEvaluable if there is none or one is infinite."""
    x, y = np.asarray(axis, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"axis has shape {x.shape}, values have shape {y.shape}: two vectors of one length are needed")
    infinite = np.flatnonzero(np.isinf(y))
    if infinite.size:
        raise NotEvaluable(f"infinite at {x[infinite[0]]:g}")
    kept = ~np.isnan(y)
    if not kept.any():
        raise NotEvaluable("no value recorded")
    x, y = x[kept], y[kept]
    if x.size > 1 and not (np.diff(x) > 0).all():
        raise ValueError("the axis does not increase")
    if not math.isfinite(float(np.abs(y).sum())):
        raise NotEvaluable("values too large to add up")
    return x, y

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

from analysis.stats.numbers import Array

_SLACK = 1e-9
FINAL = 0.1  # the share of the budget at its end that a final value is the mean of
LARGEST = 1e307  # limit of the sum of a curve's absolute values: no axis can be drawn beyond it
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
    next, which measures noise and not the rise (None with fewer than 3 points, infinite if squares overflow)."""

    n: int
    mean: float
    step_variance: float | None


@dataclass(frozen=True)
class Survival:
    """A survival curve at each distinct time (n,), increasing: the share of runs that have not reached the threshold by
    then, and how many were at risk just before. censored: the times of runs that never reached it, increasing."""

    times: Array
    share: Array
    at_risk: NDArray[np.int64]
    censored: Array


def auc(axis: ArrayLike, values: ArrayLike, start: float | None = None, stop: float | None = None) -> float:
    """Area under the curve by the trapezoid rule over [start, stop], divided by its length: the average height.

    start and stop default to the curve's ends; between measured points they are interpolated. Nothing is extrapolated:
    a curve that does not reach from start to stop raises NotEvaluable, as does a stop before the start.
    """
    x, y = measured(axis, values)
    return float(areas(x, y, float(x[0]) if start is None else start, float(x[-1]) if stop is None else stop))


def areas(x: Array, y: Array, low: float, high: float) -> Array:
    """`auc` of each of the curves y (..., n) on one axis (n,), which measured() has checked; returns (...)."""
    if x.size == 1 and high > low:
        raise NotEvaluable("one value has no area")
    if x[0] > low + _SLACK:
        raise NotEvaluable(f"begins at {x[0]:g}, after {low:g}")
    if x[-1] < high - _SLACK:
        raise NotEvaluable(f"ends at {x[-1]:g} of {high:g}")
    if high < low:
        raise NotEvaluable(f"the range begins at {low:g} and ends before it, at {high:g}")
    begin, end = _at(x, y, low), _at(x, y, high)
    if high == low:
        return begin[..., 0]
    inside = slice(np.searchsorted(x, low, side="right"), np.searchsorted(x, high))
    if x[0] != low or x[-1] != high:
        y = np.concatenate((begin, y[..., inside], end), axis=-1)
        x = np.concatenate(([low], x[inside], [high]))
    return np.asarray(np.trapezoid(y, x) / (high - low))


def _at(x: Array, y: Array, point: float) -> Array:
    """Curves y (..., n) at a point of their axis, interpolated between points; (..., 1)."""
    index = int(np.searchsorted(x, point))
    if index < x.size and x[index] == point:
        return y[..., index : index + 1]
    return np.asarray(np.apply_along_axis(lambda row: np.interp([point], x, row), -1, y))


def final(axis: ArrayLike, values: ArrayLike, stop: float | None = None, *, fraction: float = FINAL) -> float:
    """Mean of the points in the last `fraction` of the budget: those above (1 - fraction) * stop, up to stop."""
    x, y = measured(axis, values)
    return float(finals(x, y, float(x[-1]) if stop is None else stop, fraction=fraction))


def finals(x: Array, y: Array, stop: float, *, fraction: float = FINAL) -> Array:
    """`final` of each of the curves y (..., n) on one axis (n,), which measured() has checked; returns (...)."""
    after = min((1 - fraction) * stop + _SLACK, stop - _SLACK)  # a budget of 0 has the value at 0
    begin, end = np.searchsorted(x, (after, stop + _SLACK), side="right")
    if begin == end:
        raise NotEvaluable(f"no value in the last {fraction:.0%} of {stop:g}: the last is at {x[-1]:g}")
    return np.asarray(y[..., begin:end].mean(axis=-1))


def early(axis: ArrayLike, values: ArrayLike, stop: float | None = None, *, fraction: float = EARLY) -> EarlyPhase:
    """The points in the first `fraction` of the budget: up to fraction * stop, by default of the curve's end."""
    x, y = measured(axis, values)
    end = float(x[-1]) if stop is None else stop
    y = y[x <= fraction * end + _SLACK]
    if y.size == 0:
        raise NotEvaluable(f"no value in the first {fraction:.0%} of {end:g}: the first is at {x[0]:g}")
    with np.errstate(over="ignore"):
        variance = float(np.diff(y).var(ddof=1)) if y.size > 2 else None
    return EarlyPhase(int(y.size), float(y.mean()), variance)


def best(values: ArrayLike, window: int = 20, *, direction: str = "higher") -> float:
    """Best value of the curve smoothed by a centred mean over `window` points (fewer if the curve is shorter).

    Only whole windows count: at the ends a shorter mean would be noisier, and the best of noise is biased. Raises
    ValueError for a window that is not positive, or another direction.
    """
    _check(window, direction)
    y = np.asarray(values, dtype=np.float64)
    y = measured(np.arange(y.size, dtype=np.float64), y)[1]
    width = min(window, y.size)
    total = np.lib.stride_tricks.sliding_window_view(y, width).sum(axis=1)
    return float(total.max() if direction == "higher" else total.min()) / width


def largest_change(axis: ArrayLike, values: ArrayLike, window: float = 20) -> float:
    """Largest change between two points at most `window` apart on the axis, over the largest magnitude: in [0, 2].

    0 for a curve that is zero everywhere. It is not relative to the start of the change, which may be zero.
    """
    x, y = measured(axis, values)
    largest = float(np.abs(y).max()) or 1.0
    change, apart = 0.0, 1
    while apart < x.size and (near := x[apart:] - x[:-apart] <= window + _SLACK).any():
        change = max(change, float(np.abs(y[apart:] - y[:-apart])[near].max()))
        apart += 1
    return change / largest


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

    Between the points before and after the crossing the mean is interpolated linearly. The first whole window is
    the earliest time (`first_window`). Not reached by the budget (default: the end of the curve): censored there.
    Raises ValueError for a threshold that is no number, a window that is not positive, or another direction.
    """
    _check(window, direction)
    if math.isnan(threshold):
        raise ValueError(f"threshold = {threshold!r}: a number is needed")
    x, y = measured(axis, values)
    end = float(x[-1]) if budget is None else float(budget)
    x, y = x[x <= end + _SLACK], y[x <= end + _SLACK]
    if x.size == 0:
        raise NotEvaluable(f"no value up to the budget of {end:g}")
    sign = 1.0 if direction == "higher" else -1.0
    y, goal = sign * y, sign * threshold
    first = first_window(x, window)
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


def first_window(x: Array, window: float) -> float:
    """The first point, of a curve with points at x (n,), at which a whole window ends; the last one if none does. A
    point stands for the stretch of the axis that ends with it."""
    spacing = float(np.median(np.diff(x))) if x.size > 1 else 0.0
    first = min(float(x[0]) - spacing + window, float(x[-1]))
    return float(x[np.searchsorted(x, first - _SLACK)])


def _check(window: float, direction: str) -> None:
    if not window > 0:
        raise ValueError(f"window = {window!r}: a positive number is needed")
    if direction not in ("higher", "lower"):
        raise ValueError(f"direction = {direction!r}: 'higher' or 'lower' is allowed")


def survival(times: Sequence[float], reached: Sequence[bool], budget: float) -> Survival:
    """Kaplan and Meier's estimate of the share that has not reached the threshold yet, each time cut at the budget.

    Raises NotEvaluable for no times or one that is not finite, ValueError for a budget that is negative or not finite.
    """
    if len(times) != len(reached):
        raise ValueError(f"{len(times)} times and {len(reached)} flags: one flag for each time is needed")
    if len(times) == 0:
        raise NotEvaluable("no run to take a time from")
    if not 0 <= budget < math.inf:
        raise ValueError(f"budget = {budget!r}: a finite number from 0 on is needed")
    t = np.minimum(np.asarray(times, dtype=np.float64), budget)
    if not np.isfinite(t).all():
        raise NotEvaluable("a time is not finite")
    event = np.asarray(reached, dtype=bool) & (np.asarray(times, dtype=np.float64) <= budget)
    moments = np.unique(t)
    at_risk = np.array([(t >= moment).sum() for moment in moments])
    events = np.array([(event & (t == moment)).sum() for moment in moments])
    return Survival(moments, np.cumprod(1.0 - events / at_risk), at_risk, np.sort(t[~event]))


def restricted_mean(times: Sequence[float], reached: Sequence[bool], budget: float) -> float:
    """Mean time to the threshold, each time cut at the budget: the area under the Kaplan-Meier curve up to the budget.

    With every censored time at the budget it is the plain mean of min(time, budget). Raises as `survival` does.
    """
    curve = survival(times, reached, budget)
    widths = np.diff(np.concatenate(([0.0], curve.times, [budget])))
    return float((widths * np.concatenate(([1.0], curve.share))).sum())


def block_means(values: Array, most: int) -> Array:
    """Curves (..., n) in at most `most` points, each the mean of as many; the points that remain at the end are left
    out."""
    width = -(-values.shape[-1] // most)
    if width <= 1:
        return values
    n = values.shape[-1] // width * width
    return np.asarray(values[..., :n].reshape(*values.shape[:-1], -1, width).mean(axis=-1))


def interval(x: Array) -> float:
    """How far apart the points of a curve (n,), at least two, are: the median distance; the largest one if more than a
    tenth of them are larger than the median, as in a log of episodes."""
    gaps = np.diff(x)
    median = float(np.median(gaps))
    return float(gaps.max()) if float(np.quantile(gaps, 0.9, method="lower")) > median else median


def measured(axis: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    """The points of a curve that were measured. Raises NotEvaluable if there is none or one is infinite, ValueError for
    other shapes or an axis that does not increase or is not finite."""
    x, y = np.asarray(axis, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"axis has shape {x.shape}, values have shape {y.shape}: two vectors of one length are needed")
    with np.errstate(over="ignore", invalid="ignore"):  # of infinities; NaN is in no order
        size = y.size * float(y.max(initial=0.0) - y.min(initial=0.0))
    if x.size and not (math.isfinite(x[0]) and math.isfinite(x[-1])):
        raise ValueError(f"the axis is not finite: it reaches from {x[0]:g} to {x[-1]:g}")
    if size < LARGEST and y.size and (x[1:] > x[:-1]).all():
        return x, y  # as nearly every curve is
    infinite = np.flatnonzero(np.isinf(y))
    if infinite.size:
        raise NotEvaluable(f"infinite at {x[infinite[0]]:g}")
    kept = ~np.isnan(y)
    if not kept.any():
        raise NotEvaluable("no value recorded")
    x, y = x[kept], y[kept]
    if x.size > 1 and not (np.diff(x) > 0).all():
        raise ValueError("the axis does not increase")
    with np.errstate(over="ignore"):
        if not float(np.abs(y).sum()) < LARGEST:
            raise NotEvaluable("values too large to add up")
    return x, y

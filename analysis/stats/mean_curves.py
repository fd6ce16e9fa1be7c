"""Curves of several runs on one grid, and the simultaneous band of their mean.

Runs that log after each episode share almost no point of the axis. Each curve is therefore interpolated linearly
between its own points, as `areas` does; none is extrapolated.

The half width of the band (docs/report.md) is sqrt(t^2 + z^2) * s(x) / sqrt(n). z is the level that noise along the
curve exceeds with chance alpha, by the formula of Kac and Rice for a t process (Adler and Taylor, Random Fields and
Geometry, 2007, chapter 15). The root of the sum of squares bounds both kinds of luck together, whatever their shares
are (Cauchy and Schwarz). s(x) is pooled over the surrounding half of the curve, because at a single point, three seeds
often agree by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from analysis.stats.numbers import Array
from analysis.stats.resolution import check_alpha
from analysis.stats.t_test import ROUNDING, without_rounding

_SPARE = 1.25  # the points of all curves together are the grid while they are at most so many times those of one curve
_AROUND = 0.5  # share of the curve over which a standard deviation is pooled


def on_grid(curves: Sequence[tuple[Array, Array]], most: int) -> tuple[Array, Array, bool]:
    """Curves (points, values) with finite values at increasing points, on the range that all have in common: the points
    of a grid (n,), the values of all curves there (curves, n), and whether a curve has another point there than its
    own.

    Curves with the same points keep them. If the points of all curves together are hardly more than those of one, they
    are the grid. Otherwise, the grid has as many points as the densest curve, evenly spaced; if these are more than
    `most`, it has `most` points, each with the mean height of the interpolated curve around it, so that no value of the
    log is lost. A curve of a single point has no range: curves of one point each are put at their mean point.
    """
    if not curves:
        return np.empty(0), np.empty((0, 0)), False
    first = curves[0][0]
    if all(x is first or np.array_equal(x, first) for x, _ in curves):
        return first, curves[0][1][None] if len(curves) == 1 else np.array([y for _, y in curves]), False
    if all(x.size == 1 for x, _ in curves):
        return np.array([np.mean([x[0] for x, _ in curves])]), np.array([y for _, y in curves]), True
    low, high = max(float(x[0]) for x, _ in curves), min(float(x[-1]) for x, _ in curves)
    if low > high:
        return np.empty(0), np.empty((len(curves), 0)), False
    inside = [x[(x >= low) & (x <= high)] for x, _ in curves]
    densest, points = max(2, *(x.size for x in inside)), _union(inside, low, high)
    interpolated = points is None or not all(np.array_equal(x, points) for x in inside)
    if points is None and densest > most:
        edges = np.linspace(low, high, most + 1)
        return (edges[1:] + edges[:-1]) / 2, np.array([heights(x, y, edges) for x, y in curves]), True
    points = np.linspace(low, high, densest) if points is None else points
    return points, np.array([np.interp(points, x, y) for x, y in curves]), interpolated


def common_points(steps: Sequence[Array], low: float, high: float) -> Array | None:
    """The points at which curves with these steps are summarised from low to high: those of all curves together, or as
    many as the densest has, evenly spaced. None if all have the same points there or a single one, or if there is no
    such range."""
    inside = [x[(x >= low) & (x <= high)] for x in {id(x): x for x in steps}.values()]
    if not low < high or all(np.array_equal(x, inside[0]) for x in inside) or all(x.size == 1 for x in steps):
        return None
    union = _union(inside, low, high)
    return np.linspace(low, high, max(2, *(x.size for x in inside))) if union is None else union


def _union(inside: Sequence[Array], low: float, high: float) -> Array | None:
    """The points of all curves together; None if they are many more than those of one."""
    most = _SPARE * max(2, *(x.size for x in inside))
    union = np.array([low, high])
    for x in inside:
        union = np.union1d(union, x)
        if union.size > most:
            return None
    return union


def heights(x: Array, y: Array, edges: Array) -> Array:
    """Mean height (n,) of a curve between neighbouring edges (n + 1,), which increase and are within its points: the
    area under its straight lines, divided by the width."""
    points = np.union1d(x, edges)
    values = np.interp(points, x, y)
    area = np.concatenate(([0.0], np.cumsum((values[1:] + values[:-1]) / 2 * np.diff(points))))
    return np.asarray(np.diff(area[np.searchsorted(points, edges)]) / np.diff(edges))


def simultaneous(curves: Array, alpha: float = 0.05) -> tuple[Array, Array | None]:
    """Mean (points,) of curves (n, points), all finite, and the half width (points,) of its simultaneous band at level
    1 - alpha; None with fewer than two curves. Of one point, the band is the t interval.

    It assumes that the curves are independent and their luck is nearly normal, and that the spread over seeds does not
    change much within a quarter of the curve. Raises ValueError for alpha outside (0, 1).
    """
    check_alpha(alpha)
    n = len(curves)
    mean = curves.mean(axis=0)
    if n < 2:
        return mean, None
    power = np.frexp(np.abs(curves).max(axis=0))[1]  # so that no square overflows and none vanishes
    spread = np.ldexp(np.ldexp(curves, -power).std(axis=0, ddof=1), power)
    return mean, factor(curves - mean, alpha) * np.maximum(spread, _pooled(spread)) / math.sqrt(n)


def factor(residuals: Array, alpha: float) -> float:
    """By how many standard errors the band of n curves reaches beyond their mean. residuals (n, points): curves minus
    their mean."""
    n, points = residuals.shape
    t = float(special.stdtrit(n - 1, 1 - alpha / 2))
    crossings = _crossings(residuals)
    if crossings <= alpha:
        return t
    # Half of the curve, over which the spread is pooled, has about half as many independent points as it has crossings.
    df = (n - 1) * max(1.0, crossings / 2)
    squared = df * math.expm1(2 / df * math.log(crossings / alpha))
    bonferroni = float(special.stdtrit(df, 1 - alpha / (2 * (points - 1))))
    return math.sqrt(t**2 + min(squared, bonferroni**2))


def _crossings(residuals: Array) -> float:
    """How often a curve crosses its own mean level on average: 0 for curves that differ only by their level."""
    largest = float(np.abs(residuals).max(initial=0.0))
    if not 0 < largest < math.inf:
        return 0.0
    scaled = residuals / largest
    signs = np.sign(without_rounding(scaled - scaled.mean(axis=1, keepdims=True), 10 * ROUNDING))
    return float((signs[:, 1:] != signs[:, :-1]).sum()) / len(residuals)


def _pooled(spread: Array) -> Array:
    """Root mean square of the spread over the surrounding part of the curve, at its ends over what there is of it."""
    largest = float(spread.max(initial=0.0))
    if largest == 0:
        return spread
    around = np.ones(2 * (int(spread.size * _AROUND) // 2) + 1)
    squares, counts = (np.convolve(each, around, "same") for each in ((spread / largest) ** 2, np.ones(spread.size)))
    return np.asarray(largest * np.sqrt(squares / counts))

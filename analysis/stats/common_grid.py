"""Curves of different runs on one grid of the range that they have in common.

Runs that log after each episode share almost no point of the axis. A mean over the points that happen to coincide would
be a mean over few points, or none. Each curve is therefore interpolated linearly between its own points, as `areas`
does; none is extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_SPARE = 1.25  # the points of all curves together are the grid while they are at most so many times those of one curve


@dataclass(frozen=True)
class OnGrid:
    """Curves on one grid: values (curves, n) at points (n,). interpolated: whether a curve has another point there than
    its own."""

    points: Array
    values: Array
    interpolated: bool


def on_grid(curves: Sequence[tuple[Array, Array]], most: int) -> OnGrid:
    """Curves (points, values) with finite values at increasing points, on the range that all have in common.

    Curves with the same points keep them. If the points of all curves together are hardly more than those of one, they
    are the grid. Otherwise, the grid has as many points as the densest curve, evenly spaced; if these are more than
    `most`, it has `most` points, each with the mean height of the interpolated curve around it, so that no value of the
    log is lost. A curve of a single point has no range: curves of one point each are put at their mean point.
    """
    if not curves:
        return OnGrid(np.empty(0), np.empty((0, 0)), False)
    first = curves[0][0]
    if all(x is first or np.array_equal(x, first) for x, _ in curves):
        return OnGrid(first, np.array([y for _, y in curves]), False)
    if all(x.size == 1 for x, _ in curves):
        return OnGrid(np.array([np.mean([x[0] for x, _ in curves])]), np.array([y for _, y in curves]), True)
    low, high = max(float(x[0]) for x, _ in curves), min(float(x[-1]) for x, _ in curves)
    if low > high:
        return OnGrid(np.empty(0), np.empty((len(curves), 0)), False)
    inside = [x[(x >= low) & (x <= high)] for x, _ in curves]
    densest, points = max(2, *(x.size for x in inside)), _union(inside, low, high)
    interpolated = points is None or not all(np.array_equal(x, points) for x in inside)
    if points is None and densest > most:
        edges = np.linspace(low, high, most + 1)
        return OnGrid((edges[1:] + edges[:-1]) / 2, np.array([heights(x, y, edges) for x, y in curves]), True)
    points = np.linspace(low, high, densest) if points is None else points
    return OnGrid(points, np.array([np.interp(points, x, y) for x, y in curves]), interpolated)


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

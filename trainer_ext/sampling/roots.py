"""Roots in [0, 1] of rising functions, many rows at once, where an evaluation is a pass over a vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]
#: More passes than any bracket can take: it is halved at least every other pass.
MOST_PASSES = 200

#: (rows, alpha) -> value and its first three derivatives, (4, len(rows))
Condition = Callable[[Indices, Numbers], Numbers]


@dataclass(frozen=True)
class Root:
    """alpha, its distance d from where the function was last evaluated, evaluations, and whether alpha is an end of
    [0, 1] beyond which the root lies; (rows,) each."""

    alpha: Numbers
    d: Numbers
    passes: Numbers
    end: Flags


def taylor(derivatives: Numbers, d: Numbers) -> Numbers:
    """Value at a distance d of a function with these derivatives, the first of them its value."""
    total: Numbers = derivatives[0].copy()
    term = np.ones_like(d)
    moved = d != 0  # 0 * inf is NaN
    for n, derivative in enumerate(derivatives[1:], start=1):
        term = term * d / n
        total[moved] += (derivative * term)[moved]
    return total


def find_root(
    condition: Condition,
    start: Numbers,
    largest: Numbers,
    straight_to_end: Flags,
    tol: float,
    kind: type[np.floating[Any]],
) -> Root:
    """Roots in [0, 1] of functions that rise with alpha and whose derivatives are cumulants of s, or sums of two.

    Householder's step of third order, kept inside a bracket that is halved whenever a step is not half the one before.
    The last step is taken without another pass, once its error is below tol. That error is of fourth order in the step
    h; it is known but for the fifth cumulant, which E[s^4] max|s| bounds as long as |h| max|s| is about 1 or less (no
    token's weight changes by more than e^(|h| max|s|)).
    largest: max|s|. straight_to_end: rows whose root may well lie outside. kind: the type of the points that a pass can
    evaluate.
    """
    at = start.astype(kind).astype(np.float64)  # the points that a pass can evaluate
    rows, rounding = len(at), float(np.finfo(kind).eps)
    # an end of the bracket outside [0, 1] has not been evaluated
    low, high, last = np.full(rows, -1.0), np.full(rows, 2.0), np.ones(rows)
    alpha, passes = at.copy(), np.zeros(rows)
    end, strayed = np.zeros(rows, dtype=bool), straight_to_end.copy()
    active = np.arange(rows)
    for _ in range(MOST_PASSES):
        a, most = at[active], largest[active]
        value, slope, second, third = condition(active, a)
        passes[active] += 1
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            straight, c2, c3 = -value / slope, second / (2 * slope), third / (6 * slope)
            bent = 1 + 2 * c2 * straight + c3 * straight**2
            tame = np.abs(bent - 1) <= 0.5
            step = np.where(tame, straight * (1 + c2 * straight) / bent, straight)
            fourth = np.abs(c3) + slope / 2  # of E[s^4] / (6 slope), E[s^4] = third + 3 slope^2
            # an error of alpha that also leaves the value at its own rounding
            enough = np.minimum(tol, 8 * rounding / np.sqrt(slope))
            # the longer of the two: where its terms cancel, the bent step says nothing of how far the root is
            reach = np.where(value == 0, 0.0, np.maximum(np.abs(step), np.abs(straight)))
            error = (np.abs(c2) ** 3 + 2 * np.abs(c2 * c3) + most * fourth) * reach**4
        step = np.where(value == 0, 0.0, step)
        left = low[active] = np.where(value < 0, a, low[active])
        right = high[active] = np.where(value > 0, a, high[active])
        guess = a + step
        inside = (guess >= np.maximum(left, 0)) & (guess <= np.minimum(right, 1))
        close = ((tame & (error <= enough)) | (reach <= enough)) & (reach * most <= 1)
        beyond = ((a == 0) & (value > 0)) | ((a == 1) & (value < 0))
        settled = beyond | (inside & close) | (right - left <= 0.1 * tol)
        alpha[active] = np.where(inside & close & ~beyond, guess, a)
        end[active] = beyond
        # Not settled: Newton where it converges, else the bracket's middle. An end of [0, 1] is looked at once two
        # steps went past it, or one that can be believed.
        bound = np.where(value < 0, right, left)
        ahead = np.clip(bound, 0, 1)
        past = ~inside & (bound != ahead)
        direct = past & (strayed[active] | (np.abs(ahead - a) * most <= 1))
        middle = np.where(direct, ahead, (a + ahead) / 2)
        following = np.where(inside & (np.abs(step) <= 0.5 * last[active]), guess, middle)
        strayed[active] |= past
        last[active] = np.abs(following - a)
        at[active] = np.where(settled, a, following.astype(kind))
        active = active[~settled]
        if not len(active):
            break
    alpha = alpha.astype(kind).astype(np.float64)
    return Root(alpha, alpha - at, passes, end)

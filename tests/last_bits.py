"""A stand-in for another processor, as a plugin of pytest: `pytest -p tests.last_bits`.

Another processor adds in another order, solves least squares with other kernels, and its exp and log differ in the last
bit. Where no such processor and no such kernel is at hand, this plugin makes numpy do the same. Means without rounding,
such as that of 1 and 2, stay as they are, for they are the same on every processor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np


def beside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a neighbour in place of each number that it returns; the first of what it returns, if it
    returns several things."""

    @wraps(function)
    def nudged(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if kwargs.get("out") is not None:
            return found
        return (nudge(found[0]), *found[1:]) if isinstance(found, tuple) else nudge(found)

    return nudged


def nudge(found: Any) -> Any:
    """A neighbour of each number but zero. Of one that is a short decimal but for its last bits, the first neighbour of
    the decimal: two wrongs must not make a right."""
    if not isinstance(found, np.ndarray | np.float64) or found.dtype != np.float64:
        return found
    short = np.array([float(f"{value:.13g}") for value in np.ravel(found).tolist()]).reshape(np.shape(found))
    near = np.where(np.abs(found - short) <= 4 * np.spacing(np.abs(short)), short, found)
    up = np.where(found == 0, found, np.nextafter(near, np.inf))
    return up if isinstance(found, np.ndarray) else np.float64(up)


def from_the_end(function: Callable[..., Any]) -> Callable[..., Any]:
    """mean as the sum from the last value to the first, one after the other."""

    @wraps(function)
    def turned(values: Any, axis: Any = None, **kwargs: Any) -> Any:
        numbers = np.asarray(values)
        if kwargs or isinstance(axis, tuple) or numbers.size == 0 or numbers.dtype != np.float64:
            return function(values, axis=axis, **kwargs)
        numbers = np.flip(numbers.ravel() if axis is None else np.moveaxis(numbers, axis, 0), axis=0)
        return np.add.accumulate(numbers, axis=0)[-1] / len(numbers)

    return turned


np.mean = from_the_end(np.mean)
np.linalg.lstsq = beside(np.linalg.lstsq)
for name in ("exp", "log", "log10", "log1p", "expm1", "convolve", "correlate", "tensordot"):
    setattr(np, name, beside(getattr(np, name)))

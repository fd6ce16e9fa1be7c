"""How far raters agree beyond chance: kappa of two raters, and of several. 1 is full agreement, 0 what chance gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def cohens_kappa(counts: ArrayLike) -> float | None:
    """Cohen (1960). counts (k, k): how many items the first rater put into category i and the second into j.

    None without an item, or where both put all items into one category: then chance alone agrees fully. Raises
    ValueError for another shape or a negative number.
    """
    table = _counts(counts)
    if table.shape[0] != table.shape[1]:
        raise ValueError(f"counts have shape {table.shape}: a square table is needed")
    n = float(table.sum())
    if n == 0:
        return None
    observed = float(table.diagonal().sum()) / n
    expected = float((table.sum(axis=0) * table.sum(axis=1)).sum()) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def fleiss_kappa(counts: ArrayLike) -> float | None:
    """Fleiss (1971). counts (items, k): how many raters put the item into category j, the same number of raters, two or
    more, for every item.

    None without an item, or where all ratings are of one category. Raises ValueError for another shape, a negative
    number, or another number of raters.
    """
    table = _counts(counts)
    if len(table) == 0:
        return None
    raters = table.sum(axis=1)
    n = float(raters[0])
    if (raters != n).any() or n < 2:
        raise ValueError("every item needs the same number of raters, two or more")
    shares = table.sum(axis=0) / (len(table) * n)
    agreeing = ((table**2).sum(axis=1) - n) / (n * (n - 1))
    expected = float((shares**2).sum())
    return None if expected == 1 else (float(agreeing.mean()) - expected) / (1 - expected)


def _counts(counts: ArrayLike) -> Array:
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all() or (table < 0).any():
        raise ValueError("counts must be a table of numbers, 0 or more")
    return table

"""Several comparisons over the same seeds: p values that hold for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats import exact
from analysis.stats.exact import TIE
from analysis.stats.resolution import cannot_decide, check_alpha, floor, multiplied, seeds_needed
from analysis.stats.t_test import constant, mean

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FamilyResult:
    """p values adjusted for all comparisons of a family, in the order given; None where a comparison has no p.

    floor: smallest adjusted p that n seeds allow (0 when the test has no floor). seeds_needed: pairs that bring it to
    alpha. reason: which comparisons have no p and why, and what else a reader must know; or None.
    """

    method: str
    test: str
    n: int
    p: tuple[float | None, ...]
    floor: float
    seeds_needed: int
    reason: str | None


def family(
    differences: ArrayLike, method: str = "max_t", *, test: str = "signflip", alpha: float = 0.05, seed: int = 0
) -> FamilyResult:
    """Adjust the p values of a family of comparisons: differences have shape (n seeds, m comparisons), NaN for a
    missing pair.

    max_t   step-down max-T (Westfall and Young): the sign of a seed is flipped in all comparisons at once, so their
            correlation is kept and the smallest p stays 2/2^n however many there are. It is a sign-flip test; `test` is
            not used. Exact when the vectors of differences are symmetric about zero under the null.
    holm    Holm's step-down of the p values of `test` (signflip, paired_t or wilcoxon); any dependence
    bh      Benjamini and Hochberg: the false discovery rate, for exploration

    The statistic of max-T is S / sqrt(sum of squares) with S the sum of the differences: increasing in Student's t, but
    finite where all differences are equal, and of variance 1 under the flips also where pairs are missing.

    Raises ValueError for another method or test, or differences that are not a matrix.
    """
    check_alpha(alpha)
    d = np.array(differences, dtype=np.float64)
    if d.ndim != 2:
        raise ValueError(f"differences have shape {d.shape}: (seeds, comparisons) is needed")
    if method not in ("max_t", "holm", "bh"):
        raise ValueError(f"family = {method!r}: 'max_t', 'holm' or 'bh' is allowed")
    _check_test(test)
    present = np.isfinite(d)
    columns = [d[here, j] for j, here in enumerate(present.T)]
    notes = []
    if not present.all():
        notes.append(f"{int((~present).sum())} of {d.size} differences are missing")
    d[~present] = 0.0
    d = d[present.any(axis=1)]
    n, m = d.shape
    p: tuple[float | None, ...]
    if method == "max_t":
        test = "signflip"
        p = tuple(value if column.size else None for value, column in zip(_max_t(d, seed), columns, strict=True))
    else:
        raw = [single(column, test, seed) for column in columns]
        p = holm(raw) if method == "holm" else benjamini_hochberg(raw)
    notes += [
        f"comparison {j + 1} has no p: {_why_none(column)}"
        for j, (column, value) in enumerate(zip(columns, p, strict=True))
        if value is None
    ]
    times = multiplied(method, test, m)
    lowest, needed = min(1.0, times * floor(n)), seeds_needed(alpha, times) if times else 2
    if lowest > alpha:
        notes.append(cannot_decide(n, needed))
    return FamilyResult(method, test, n, p, lowest, needed, "; ".join(notes) or None)


def _why_none(d: Array) -> str:
    """Why differences d (n,) have no p."""
    if d.size < 2:
        return "one pair has no spread" if d.size else "there is no pair"
    if constant(d):
        return "its differences are all equal" if d.any() else "its differences are all zero"
    return "its signed ranks are too many to count"


def holm(p: Sequence[float | None]) -> tuple[float | None, ...]:
    """Holm's adjusted p values; a None counts as a member of the family (as if its p were 1) and stays None."""
    values = np.array([1.0 if value is None else value for value in p])
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * (values.size - np.arange(values.size)))
    return _back(p, order, np.minimum(stepped, 1.0))


def benjamini_hochberg(p: Sequence[float | None]) -> tuple[float | None, ...]:
    """Benjamini and Hochberg's adjusted p values; a None counts as a member of the family and stays None."""
    values = np.array([1.0 if value is None else value for value in p])
    order = np.argsort(values, kind="stable")
    stepped = np.minimum.accumulate((values[order] * values.size / (np.arange(values.size) + 1))[::-1])[::-1]
    return _back(p, order, np.minimum(stepped, 1.0))


def _back(p: Sequence[float | None], order: NDArray[np.intp], stepped: Array) -> tuple[float | None, ...]:
    adjusted = np.empty(len(p))
    adjusted[order] = stepped
    return tuple(None if old is None else float(new) for old, new in zip(p, adjusted, strict=True))


def single(d: Array, test: str, seed: int = 0) -> float | None:
    """Two-sided p of one comparison, differences d (n,) all finite; None where the test has none.

    Raises ValueError for another test than signflip, paired_t and wilcoxon.
    """
    _check_test(test)
    if test == "signflip":
        return exact.signflip(d, seed=seed)
    if test == "wilcoxon":
        return exact.wilcoxon(d)
    estimate = mean(d)
    return None if estimate is None else estimate.p()


def _check_test(test: str) -> None:
    if test not in ("paired_t", "signflip", "wilcoxon"):
        raise ValueError(f"test = {test!r}: 'paired_t', 'signflip' or 'wilcoxon' is allowed")


def _max_t(d: Array, seed: int) -> list[float]:
    """Step-down max-T of d (n, m), zeros where a pair is missing: adjusted p values in the order of the columns."""
    n, m = d.shape
    if n == 0 or m == 0:
        return [1.0] * m
    scale = np.abs(d).max(axis=0)
    d = d / np.where(scale > 0, scale, 1.0)
    norm = np.sqrt((d * d).sum(axis=0))
    z = d / np.where(norm > 0, norm, 1.0)
    observed = np.abs(z.sum(axis=0))
    weakest_first = np.argsort(observed, kind="stable")
    limits = observed[weakest_first] - TIE
    counts = np.zeros(m, dtype=np.int64)
    for sums in exact.flipped(z[:, weakest_first], seed):
        counts += (np.maximum.accumulate(np.abs(sums), axis=1) >= limits).sum(axis=0)
    p = np.array([exact.share(int(count), n) for count in counts])
    # From the strongest comparison down, a weaker one may not look surer than a stronger one.
    p = np.maximum.accumulate(p[::-1])[::-1]
    adjusted = np.empty(m)
    adjusted[weakest_first] = p
    return [float(value) for value in adjusted]

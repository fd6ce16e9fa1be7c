"""Several comparisons over the same seeds: p values that hold for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats import exact
from analysis.stats.contrast import Contrast
from analysis.stats.exact import TIE
from analysis.stats.numbers import Array
from analysis.stats.resolution import PAIRED, cannot_decide, check_alpha, multiplied, seeds_needed, smallest_p
from analysis.stats.t_test import constant


@dataclass(frozen=True)
class FamilyResult:
    """p values adjusted for all comparisons of a family, in the order given; None where a comparison has no p.

    levels: the level at which each comparison was asked on its own: its unadjusted p is at most that exactly where the
    adjusted p is at most alpha, so an interval at this level agrees with the adjusted p (0: no p can be small enough).
    floor: smallest adjusted p that n seeds allow (0 when the test has no floor). seeds_needed: pairs that bring it to
    alpha. reason: which comparisons have no p and why, and what else a reader must know; or None.
    """

    method: str
    test: str
    n: int
    p: tuple[float | None, ...]
    levels: tuple[float, ...]
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
    holm    Holm's step-down of the p values of `test` (a paired one); any dependence
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
    if test not in PAIRED:
        raise ValueError(f"test = {test!r}: 'paired_t', 'signflip' or 'wilcoxon' is allowed")
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
        values, levels = _max_t(d, alpha, seed)
        p = tuple(value if column.size else None for value, column in zip(values, columns, strict=True))
    else:
        p, levels = adjusted([Contrast(test, column, 0 * column, seed).p() for column in columns], method, alpha)
    notes += [
        f"comparison {j + 1} has no p: {_why_none(column)}"
        for j, (column, value) in enumerate(zip(columns, p, strict=True))
        if value is None
    ]
    times = multiplied(method, m)
    lowest, needed = min(1.0, times * smallest_p(test, n)), seeds_needed(alpha, times, test)
    if lowest > alpha:
        notes.append(cannot_decide(n, needed))
    return FamilyResult(method, test, n, p, levels, lowest, needed, "; ".join(notes) or None)


def ranks(sides: ArrayLike) -> list[tuple[int, int]]:
    """For each of k methods the first and the last rank that the comparisons do not exclude; 1 is the highest.

    sides (k, k): 1 where the comparison of a family finds the row's method above the column's, -1 below, 0 where it is
    not decided. A method has at least one rank for each that is surely above it, and as many below: all sets hold the
    true ranks together wherever no comparison of the family errs in its direction (Mogstad et al. 2024, "Inference for
    ranks", section 3; Klein, Wright and Wieczorek 2020). A rank is one more than the number of methods above.
    """
    decided = np.asarray(sides)
    first, last = 1 + (decided < 0).sum(axis=1), len(decided) - (decided > 0).sum(axis=1)
    return [(int(low), int(high)) for low, high in zip(first, last, strict=True)]


def _why_none(d: Array) -> str:
    """Why differences d (n,) have no p."""
    if d.size < 2:
        return "one pair has no spread" if d.size else "there is no pair"
    if constant(d):
        return "its differences are all equal" if d.any() else "its differences are all zero"
    return "its signed ranks are too many to count"


def adjusted(
    p: Sequence[float | None], method: str, alpha: float
) -> tuple[tuple[float | None, ...], tuple[float, ...]]:
    """p values adjusted by Holm ("holm") or Benjamini and Hochberg ("bh"), and the level of each: FamilyResult.levels.

    Holm asks the k-th smallest p of m at alpha / (m - k + 1) until one is larger, and all that follow at the level of
    that one. Benjamini and Hochberg ask all at the number of discoveries (at least one) times alpha / m, which also
    keeps the false coverage rate of the intervals (Benjamini and Yekutieli 2005).
    """
    m = len(p)
    after = holm(p) if method == "holm" else benjamini_hochberg(p)
    decided = sum(value is not None and value <= alpha for value in after)
    if method != "holm":
        return after, (max(1, decided) * alpha / m,) * m if m else ()
    rank = {place: k for k, place in enumerate(np.argsort([1.0 if v is None else v for v in p], kind="stable"))}
    return after, tuple(alpha / (m - min(rank[place], decided, m - 1)) for place in range(m))


def holm(p: Sequence[float | None]) -> tuple[float | None, ...]:
    """Holm's adjusted p values; a None counts as a member of the family (as if its p were 1) and stays None."""
    times = np.arange(len(p), 0, -1)
    return _stepped(p, lambda ordered: np.maximum.accumulate(ordered * times))


def benjamini_hochberg(p: Sequence[float | None]) -> tuple[float | None, ...]:
    """Benjamini and Hochberg's adjusted p values; a None counts as a member of the family and stays None."""
    ranks = np.arange(1, len(p) + 1)
    return _stepped(p, lambda ordered: np.minimum.accumulate((ordered * len(p) / ranks)[::-1])[::-1])


def _stepped(p: Sequence[float | None], step: Callable[[Array], Array]) -> tuple[float | None, ...]:
    """The p values, adjusted by a function of them in increasing order."""
    values = np.array([1.0 if value is None else value for value in p])
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(step(values[order]), 1.0)
    return tuple(None if old is None else float(new) for old, new in zip(p, adjusted, strict=True))


def _max_t(d: Array, alpha: float, seed: int) -> tuple[list[float], tuple[float, ...]]:
    """Step-down max-T of d (n, m), zeros where a pair is missing: adjusted p values and levels, in the order of the
    columns.

    A comparison is decided where its statistic is above the critical value of its step. Its level is the share of sign
    patterns that bring its own statistic there.
    """
    n, m = d.shape
    if n == 0 or m == 0:
        return [1.0] * m, (0.0,) * m
    scale = np.abs(d).max(axis=0)
    d = d / np.where(scale > 0, scale, 1.0)
    norm = np.sqrt((d * d).sum(axis=0))
    z = d / np.where(norm > 0, norm, 1.0)
    observed = np.abs(z.sum(axis=0))
    weakest_first = np.argsort(observed, kind="stable")
    limits = observed[weakest_first] - TIE
    sums_of_patterns = np.concatenate([np.abs(sums) for sums in exact.flipped(z[:, weakest_first], seed)])
    largest = np.maximum.accumulate(sums_of_patterns, axis=1)
    p = np.array([exact.share(int(count), n) for count in (largest >= limits).sum(axis=0)])
    # From the strongest comparison down, a weaker one may not look surer than a stronger one.
    p = np.maximum.accumulate(p[::-1])[::-1]
    first_open = max(np.flatnonzero(p > alpha), default=0)  # the step at which nothing more was decided
    most = exact.patterns_at(alpha, n)
    levels = np.zeros(m)
    for place in range(m) if most else ():
        step = max(place, first_open)
        critical = np.partition(largest[:, step], -most - 1)[-most - 1]
        levels[place] = exact.share(int((sums_of_patterns[:, place] > critical + TIE).sum()), n)
    given = np.argsort(weakest_first)
    return p[given].tolist(), tuple(levels[given].tolist())

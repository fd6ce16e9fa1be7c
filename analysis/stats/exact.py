"""Exact tests by counting: sign flips and signed ranks of pairs, rank sums of two samples.

Under the null hypothesis every sign of a difference, or every split of the values into two samples, is equally likely.
p is the share of them that is as extreme as the observed one, which is counted too. So p is never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.stats.functions import normal_below
from analysis.stats.resolution import DRAWS, EXACT_UP_TO

Array = NDArray[np.float64]

_BLOCK = 14  # 2^14 patterns are summed at once
MOST_RANKED = 2000  # differences whose sums of ranks are counted within seconds and 32 MB, which grow as n^3 and n^2
TIE = 1e-9  # relative slack when a permuted statistic is compared with the observed one, which must always count itself


def signflip(differences: ArrayLike, *, seed: int = 0) -> float | None:
    """Two-sided p of the sign-flip permutation test of the mean, differences (n,) finite; None when n = 0.

    All 2^n patterns are counted while n <= 20. Above, patterns are drawn and the observed one is counted among them, so
    that p is never zero (Phipson and Smyth 2010).
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.size == 0:
        return None
    largest = float(np.abs(d).max())
    if largest == 0:
        return 1.0
    scaled = d / largest
    observed = abs(float(scaled.sum())) - TIE * float(np.abs(scaled).sum())
    count = sum(int((np.abs(sums) >= observed).sum()) for sums in flipped(scaled[:, None], seed))
    return share(count, d.size)


def wilcoxon(differences: ArrayLike) -> float | None:
    """Two-sided exact p of the signed-rank test, differences (n,) finite; None when every difference is zero, or more
    than MOST_RANKED are not.

    Zeros are dropped, ties share their mean rank, and the null distribution is that of the ranks at hand: doubled they
    are integers, so the sums of all 2^n patterns are counted by convolution.
    """
    d = np.asarray(differences, dtype=np.float64)
    d = d[d != 0]
    if not 0 < d.size <= MOST_RANKED:
        return None
    sizes = np.abs(d)
    doubled = _doubled_ranks(sizes)
    positive = int(doubled[d > 0].sum())
    fewer = min(positive, int(doubled.sum()) - positive)
    chance = np.zeros(fewer + 1)  # of each sum up to what was observed: ranks only add to it
    chance[0] = 1.0
    reach = 0
    for rank in np.sort(doubled):
        reach = min(reach + int(rank), fewer)
        so_far = chance[: reach + 1]
        so_far[rank:] += so_far[: max(0, reach + 1 - rank)].copy()
        so_far *= 0.5
    return above_zero(min(1.0, 2 * float(chance.sum())))


def mann_whitney(a: ArrayLike, b: ArrayLike) -> float | None:
    """Two-sided exact p of the rank-sum test of a (n,) and b (m,), finite, at least one each, else None.

    Ties share their mean rank, and the null distribution is that of the ranks at hand (scipy's exact method takes them
    as distinct): the sums of all choices of n among n + m ranks, counted by convolution. Above about a hundred values
    each, where that takes seconds and then gigabytes, the normal approximation, corrected for ties and continuity.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.size == 0 or y.size == 0:
        return None
    both = np.concatenate((x, y))
    doubled = _doubled_ranks(both, float(np.abs(both).max()))
    few = doubled[: x.size] if x.size <= y.size else doubled[x.size :]
    centre = few.size * float(doubled.sum()) / doubled.size
    away = abs(float(few.sum()) - centre)
    if too_many(x.size, y.size):
        sd = math.sqrt(x.size * y.size / doubled.size * float(doubled.var(ddof=1)))
        return above_zero(min(1.0, 2 * normal_below(-(away - 1) / sd))) if sd > 0 else 1.0
    # chance[k, s]: the share of the choices made so far with k ranks chosen and the sum s
    chance = np.zeros((few.size + 1, int(doubled.sum()) + 1))
    chance[0, 0] = 1.0
    for seen, rank in enumerate(doubled):
        left = few.size - np.arange(few.size + 1)  # still to be chosen, of doubled.size - seen
        take = np.clip(left / (doubled.size - seen), 0.0, 1.0)[:, None]
        taken = chance * take
        chance -= taken
        chance[1:, rank:] += taken[:-1, : chance.shape[1] - rank]
    sums = np.arange(chance.shape[1])
    extreme = np.abs(sums - centre) >= away - 0.25
    return above_zero(min(1.0, float(chance[few.size, extreme].sum())))


def too_many(n: int, m: int) -> bool:
    """Whether the rank sums of n against m values are too many to count: about a second's work."""
    return min(n, m) * (n + m) ** 3 > 1e9


def rank_sum_floor(n: int, m: int) -> float:
    """Smallest two-sided p of a rank-sum test of n against m values without ties: 2 of all their splits."""
    return above_zero(min(1.0, 2 / math.comb(n + m, n)))


def above_zero(p: float) -> float:
    """p, at least the smallest positive double."""
    return max(p, math.ulp(0.0))


def _doubled_ranks(sizes: Array, unit: float | None = None) -> NDArray[np.int64]:
    """Twice the mean ranks, from 1, of values; ties within a relative slack (of `unit`, or else of the values)."""
    order = np.argsort(sizes, kind="stable")
    slack = TIE * (sizes[order][1:] if unit is None else unit)
    group = np.concatenate(([0], np.cumsum(np.diff(sizes[order]) > slack)))
    doubled = np.empty(sizes.size, dtype=np.int64)
    for tied in range(int(group[-1]) + 1):
        places = np.flatnonzero(group == tied)
        doubled[order[places]] = places[0] + places[-1] + 2
    return doubled


def flipped(d: Array, seed: int) -> Iterator[Array]:
    """Blocks (k, m) of the sums of d (n, m) over n under one sign pattern a row: all patterns that begin with +1 while
    n <= 20, else DRAWS random ones."""
    n = len(d)
    if n <= EXACT_UP_TO:
        low, high = d[:1], np.zeros((1, d.shape[1]))
        for row in d[1:_BLOCK]:
            low = np.concatenate((low + row, low - row))
        for row in d[_BLOCK:]:
            high = np.concatenate((high + row, high - row))
        yield from (low + each for each in high)
        return
    # A byte is the signs of eight differences: their sums are looked up, which is ten times faster than signs @ d.
    bits = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    tables = [np.einsum("bi,im->bm", bits[:, : n - start], d[start : start + 8]) for start in range(0, n, 8)]
    random = np.random.default_rng(seed)
    for start in range(0, DRAWS, 1 << _BLOCK):
        rows = min(1 << _BLOCK, DRAWS - start)
        drawn = np.frombuffer(random.bytes(rows * len(tables)), dtype=np.uint8).reshape(rows, len(tables))
        sums = np.zeros((rows, d.shape[1]))
        for table, codes in zip(tables, drawn.T, strict=True):
            sums += table.take(codes, axis=0)
        yield sums


def share(count: int, n: int) -> float:
    """p from a count of patterns at least as extreme. Drawn patterns do not include the observed one: it is added."""
    return count / 2.0 ** (n - 1) if n <= EXACT_UP_TO else (count + 1) / (DRAWS + 1)

"""Exact tests by counting: sign flips and signed ranks of pairs, rank sums of two samples.

Under the null hypothesis every sign of a difference, or every split of the values into two samples, is equally likely.
p is the share of them that is as extreme as the observed one, which is counted too. So p is never zero.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain, combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from analysis.stats.numbers import Array, Interval
from analysis.stats.resolution import DRAWS, EXACT_UP_TO, MOST_SPLITS, floor

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
    scaled = d / (float(np.abs(d).max()) or 1.0)
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
    doubled = doubled_ranks(np.abs(d))
    positive = int(doubled[d > 0].sum())
    fewer = min(positive, int(doubled.sum()) - positive)
    unit = int(np.gcd.reduce(doubled))  # 2 without ties: half of the sums cannot occur
    fewer //= unit
    chance = np.zeros(fewer + 1)  # of each sum up to what was observed, in units: ranks only add to it
    chance[0] = 1.0
    reach = 0
    for rank in np.sort(doubled) // unit:
        reach = min(reach + int(rank), fewer)
        so_far = chance[: reach + 1]
        so_far[rank:] += so_far[: max(0, reach + 1 - rank)].copy()
        so_far *= 0.5
    return above_zero(min(1.0, 2 * float(chance.sum())))


def wilcoxon_around(d: Array) -> float | None:
    """The largest p of `wilcoxon` of the differences d (n,) and of these with the smallest shifts up and down.

    Where a difference is zero, or two are opposite, a shift changes the ranks, and with them p. An interval of all
    shifts that are not rejected then excludes zero only if all three are rejected.
    """
    middles = np.abs(d[:, None] + d) / 2  # at which the test changes its mind
    opposite = middles <= TIE * np.abs(d).max(initial=0.0)
    if not opposite.any() or opposite.all():
        return wilcoxon(d)
    step = middles[~opposite].min() / 2
    each = [wilcoxon(d + shift) for shift in (-step, 0.0, step)]
    return None if each[1] is None else max(p for p in each if p is not None)


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
    doubled = doubled_ranks(both, float(np.abs(both).max()))
    few = doubled[: x.size] if x.size <= y.size else doubled[x.size :]
    centre = few.size * float(doubled.sum()) / doubled.size
    away = abs(float(few.sum()) - centre)
    if few.size * doubled.size**3 > 1e9:  # about a second's work
        sd = math.sqrt(x.size * y.size / doubled.size * float(doubled.var(ddof=1)))
        return above_zero(min(1.0, 2 * float(special.ndtr(-(away - 1) / sd)))) if sd > 0 else 1.0
    # chance[k, s]: the share of the choices made so far with k ranks chosen and the sum s
    chance = np.zeros((few.size + 1, int(doubled.sum()) + 1))
    chance[0, 0] = 1.0
    for seen, rank in enumerate(doubled):
        left = few.size - np.arange(few.size + 1)  # still to be chosen, of doubled.size - seen
        take = np.clip(left / (doubled.size - seen), 0.0, 1.0)[:, None]
        taken = chance * take
        chance -= taken
        chance[1:, rank:] += taken[:-1, : chance.shape[1] - rank]
    extreme = np.abs(np.arange(chance.shape[1]) - centre) >= away - 0.25
    return above_zero(min(1.0, float(chance[few.size, extreme].sum())))


def signflip_interval(u: Array, v: Array, alpha: float, *, seed: int = 0) -> Interval | None:
    """The theta that a two-sided sign-flip test of u - theta v, (n,) each and v positive, does not reject at alpha;
    None where it rejects none. n is 1 or more.

    The sum under a pattern passes the observed one where the flipped values sum to zero: at the ratio of their sums,
    the mean of a subset where v is 1. The ends are order statistics of these ratios (Hartigan 1969), of as many
    patterns as `signflip` counts.
    """
    largest = float(np.abs(u).max())
    if largest == 0:
        return (0.0, 0.0) if floor(u.size) <= alpha else None
    unit = largest / float(v.max())
    columns = np.column_stack((u / largest, v / float(v.max())))
    whole = columns.sum(axis=0)
    slack = TIE * float(np.abs(columns[:, 0]).sum())
    turns, unmoved = [], 0
    for sums in flipped(columns, seed):
        for part in ((whole - sums) / 2, (whole + sums) / 2):  # those that are flipped, and the others
            top = np.where(np.abs(part[:, 0]) <= slack, 0.0, part[:, 0])
            some = part[:, 1] > TIE
            turns.append(top[some] / part[some, 1])
            unmoved += int((~some).sum())
    # the observed pattern is one of those that are counted, and none of those that are drawn
    few = patterns_at(alpha, u.size) - unmoved + 1
    return _between(np.concatenate(turns), few, unit)


def relabel(a: ArrayLike, b: ArrayLike, *, seed: int = 0) -> float | None:
    """Two-sided p of the permutation test of the difference of means, a (n,) and b (m,) finite; None without values.

    All splits of the n + m values into n and m are counted while there are at most MOST_SPLITS. Above, DRAWS are drawn
    and the observed one is counted among them. p is twice the share of splits that are as extreme on the same side.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.size == 0 or y.size == 0:
        return None
    both = np.concatenate((x, y))
    both = both / (float(np.abs(both).max()) or 1.0)
    means = _split_means(both, x.size, seed)
    slack = TIE * float(np.abs(both).sum())
    observed = float(both[: x.size].mean()) - float(both[x.size :].mean())
    count = min(int((means >= observed - slack).sum()), int((means <= observed + slack).sum()))
    drawn, every = _labellings(x.size, y.size)
    return min(1.0, 2 * (count + drawn) / every)


def relabel_interval(x: Array, y: Array, alpha: float, *, ratio: bool = False, seed: int = 0) -> Interval | None:
    """The shifts d of y + d, or the factors r of r y (y positive), that `relabel` does not reject against x at alpha;
    None where it rejects none. The mean of each split is a line in d or r, and meets the observed one once. x (n,) and
    y (m,) have a value each at least."""
    n = x.size
    largest, other = max(float(np.abs(x).max()), float(np.abs(y).max())) or 1.0, float(np.abs(y).max()) or 1.0
    unit = largest / other if ratio else largest
    if ratio:
        fixed, moved = np.concatenate((x / largest, 0 * y)), np.concatenate((0 * x, -y / other))
    else:
        fixed, moved = np.concatenate((x, y)) / largest, np.concatenate((np.ones(n), 0 * y))
    means, shifts = _split_means(fixed, n, seed), _split_means(moved, n, seed)
    observed = [float(column[:n].mean()) - float(column[n:].mean()) for column in (fixed, moved)]
    away = observed[1] - shifts
    some = away > TIE  # without the observed split
    top = observed[0] - means[some]
    turns = np.where(np.abs(top) <= TIE * float(np.abs(fixed).sum()), 0.0, top) / away[some]
    drawn, every = _labellings(n, y.size)
    return _between(turns, whole_up_to(alpha / 2 * every) - int((~some).sum()) + (not drawn), unit)


def _labellings(n: int, m: int) -> tuple[bool, int]:
    """Whether the labellings of n + m values are drawn, and how many count, the observed one included."""
    every = math.comb(n + m, n)
    return (True, DRAWS + 1) if every > MOST_SPLITS else (False, every)


def first_kept(turns: Array, rejects: Callable[[float], bool]) -> float | None:
    """Where a test first does not reject: turns (k,) are all values at which it changes its mind, sorted from either
    end, and the middle between two of them stands for what is between. None if it does not reject what is before."""
    span = (turns[-1] - turns[0]) or abs(turns[0]) or 1.0
    between = np.concatenate(([turns[0] - span], (turns[1:] + turns[:-1]) / 2))
    if not rejects(float(between[0])):
        return None
    first_half = between[: len(turns) // 2 + 1].tolist()  # around the middle nothing is rejected
    return float(turns[bisect_left(first_half, True, lo=1, key=lambda theta: not rejects(theta)) - 1])


def patterns_at(alpha: float, n: int) -> int:
    """The largest count of sign patterns whose `share` is at most alpha."""
    return whole_up_to(alpha * 2.0 ** (n - 1)) if n <= EXACT_UP_TO else max(0, whole_up_to(alpha * (DRAWS + 1)) - 1)


def whole_up_to(count: float) -> int:
    """The largest whole number up to a count, of which the last bits are rounding."""
    return math.floor(count * (1 + 1e-12))


@lru_cache(maxsize=4)
def _drawn_choices(size: int, n: int, seed: int) -> NDArray[np.bool_]:
    """DRAWS random choices of n among `size`, a column each."""
    random = np.random.default_rng(seed)
    chosen = np.empty((DRAWS, size), dtype=np.bool_)
    for start in range(0, DRAWS, 1 << _BLOCK):
        block = chosen[start : start + (1 << _BLOCK)]
        block[:] = random.random(block.shape).argsort(axis=1, kind="stable") < n
    return np.ascontiguousarray(chosen.T)


def _between(turns: Array, few: int, unit: float) -> Interval | None:
    """From the `few`th smallest to the `few`th largest of the values at which a test changes its mind."""
    if not 0 < few <= turns.size:
        return None
    ordered = np.partition(turns, (few - 1, turns.size - few))
    low, high = (rounded(float(ordered[place]) * unit) for place in (few - 1, turns.size - few))
    return low, high


def _split_means(values: Array, n: int, seed: int) -> Array:
    """The mean of the first part minus that of the second under each labelling of values (n + m,) as n and m."""
    m = values.size - n
    drawn, _ = _labellings(n, m)
    chosen = _drawn_choices(n + m, n, seed) if drawn else choices(n + m, n)
    sums = values @ chosen
    return np.asarray(sums / n - (float(values.sum()) - sums) / m)


@lru_cache(maxsize=8)
def choices(size: int, n: int) -> NDArray[np.bool_]:
    """Every choice of n among `size`, a column each."""
    places = np.fromiter(chain.from_iterable(combinations(range(size), n)), dtype=np.intp).reshape(-1, n)
    chosen = np.zeros((size, len(places)), dtype=np.bool_)
    np.put_along_axis(chosen, places.T, True, axis=0)
    return chosen


def rounded(value: float) -> float:
    """The value to 13 significant digits, so that a difference of two decimals equals the decimal written down."""
    return float(f"{value:.12e}")


def above_zero(p: float) -> float:
    """p, at least the smallest positive double."""
    return max(p, math.ulp(0.0))


def doubled_ranks(sizes: Array, unit: float | None = None) -> NDArray[np.int64]:
    """Twice the mean ranks, from 1, of values; ties within a relative slack (of `unit`, or else of the values)."""
    order = np.argsort(sizes, kind="stable")
    slack = TIE * (sizes[order][1:] if unit is None else unit)
    group = np.concatenate(([0], np.cumsum(np.diff(sizes[order]) > slack)))
    count = np.bincount(group)
    doubled = np.empty(sizes.size, dtype=np.int64)
    doubled[order] = (2 * np.cumsum(count) - count + 1)[group]
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

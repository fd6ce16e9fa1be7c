"""What the test that decides can find: the power of each test for normal values, and the seeds that a difference needs.

An effect is a true difference of means in standard deviations: of the differences of pairs, or of the values of one
method where seeds are not paired.

Every test here rejects where Student's t of its design is above a critical value, which for Welch's test depends on the
ratio of the two variances, and for an exact test on the directions of the residuals. For normal values, both are
independent of t. So the power is the mean of the noncentral t's over the critical values: by quadrature over the ratio,
and over simulated (seeded) residuals.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from scipy import special

from analysis.stats import exact
from analysis.stats.numbers import Array
from analysis.stats.resolution import PAIRED, seeds_needed

POWER = 0.8
MOST_SEEDS = 1000
_EXPERIMENTS = 2000  # residuals that are simulated: the power then has a standard error below a quarter of a point
_NODES = 64  # quadrature nodes over the ratio of two variances
#: The pairs, and the splits of two samples, up to which the residuals are simulated. With more, a test finds what the t
#: test of its design finds, but the signed-rank test needs pi / 3 times the seeds.
_SIMULATED = {"signflip": 10, "relabel": 4000, "wilcoxon": 40}


@lru_cache(maxsize=4096)
def detectable(test: str, n: int, alpha: float = 0.05, power: float = POWER, m: int | None = None) -> float | None:
    """The true effect that a two-sided test finds with `power`, with n pairs, or with n and m values (default: as
    many); None if no effect is large enough for so few."""
    if power_of(test, n, math.inf, alpha, m) < power:
        return None
    low, high = 0.0, 1.0
    while power_of(test, n, high, alpha, m) < power:
        high *= 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(test, n, middle, alpha, m) >= power else (middle, high)
    return high


def power_of(test: str, n: int, effect: float, alpha: float = 0.05, m: int | None = None) -> float:
    """The chance that the test finds a true effect with its right sign, in [0, 1]; as `detectable`."""
    m = n if m is None else m
    if min(n, m) < 2 or not alpha > 0:
        return 0.0
    df, root = (n - 1, math.sqrt(n)) if test in PAIRED else (n + m - 2, math.sqrt(n * m / (n + m)))
    if test == "wilcoxon" and not _is_simulated(test, n, m):
        root *= math.sqrt(3 / math.pi)
    critical, weights = _critical(test, n, m, alpha)
    rejecting = np.isfinite(critical)
    above = 1.0 if math.isinf(effect) else 1 - special.nctdtr(df, effect * root, critical[rejecting])
    return float((above * weights[rejecting]).sum())


def seeds_to_find(test: str, effect: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Smallest number of seeds of each method with which a test finds a true effect; None above MOST_SEEDS."""
    if not effect > 0 or power_of(test, MOST_SEEDS, effect, alpha) < power:
        return None
    seeds = range(seeds_needed(alpha, 1, test), MOST_SEEDS)  # the power rises with their number
    return seeds.start + bisect_left(seeds, power, key=lambda n: power_of(test, n, effect, alpha))


def _is_simulated(test: str, n: int, m: int) -> bool:
    return test in _SIMULATED and (math.comb(n + m, n) if test == "relabel" else n) <= _SIMULATED[test]


@lru_cache(maxsize=256)
def _critical(test: str, n: int, m: int, alpha: float) -> tuple[Array, Array]:
    """Critical values of t for a difference above zero, infinite where there is none, and their weights (sum 1)."""
    if test == "welch":
        return _of_welch(n, m, alpha)
    if not _is_simulated(test, n, m):
        df = n - 1 if test in PAIRED else n + m - 2
        return np.array([special.stdtrit(df, 1 - alpha / 2)]), np.ones(1)
    values = np.random.default_rng(n + m if test == "relabel" else n).standard_normal((_EXPERIMENTS, n + m))
    weights = np.full(_EXPERIMENTS, 1 / _EXPERIMENTS)
    a, b = values[:, :n], values[:, n:]
    if test == "relabel":
        errors = np.sqrt((n * a.var(axis=1) + m * b.var(axis=1)) / (n + m - 2) * (1 / n + 1 / m))
        lows = _relabelled(values, n, exact.whole_up_to(alpha / 2 * math.comb(n + m, n)))
        return (a.mean(axis=1) - b.mean(axis=1) - lows) / errors, weights
    lows = (_ranked if test == "wilcoxon" else _flipped)(a, alpha)
    return (a.mean(axis=1) - lows) / (a.std(axis=1, ddof=1) / math.sqrt(n)), weights


def _of_welch(n: int, m: int, alpha: float) -> tuple[Array, Array]:
    """Critical values of Welch's t, in terms of the t with a common variance, and their weights. The share of the first
    sample in the sum of squares, sin(angle)^2, has a beta distribution."""
    angle = (np.arange(_NODES) + 0.5) * (math.pi / 2 / _NODES)
    share, weights = np.sin(angle) ** 2, np.sin(angle) ** (n - 2) * np.cos(angle) ** (m - 2)
    parts = np.array([share / (n - 1) / n, (1 - share) / (m - 1) / m])
    freedom = parts.sum(axis=0) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1))
    scale = np.sqrt(parts.sum(axis=0) * (n + m - 2) / (1 / n + 1 / m))
    return special.stdtrit(freedom, 1 - alpha / 2) * scale, weights / weights.sum()


# The lower ends of the intervals of a test at 1 - alpha, of values (experiments, n); minus infinity if there is none.


def _flipped(values: Array, alpha: float) -> Array:
    n = values.shape[1]
    patterns = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    means = np.einsum("ei,si->es", values, patterns / patterns.sum(axis=1, keepdims=True))
    return _smallest(means, exact.patterns_at(alpha, n))


def _relabelled(values: Array, n: int, few: int) -> Array:
    """The lower ends for the permutation test. values: in each row n of one sample, then m of the other."""
    size = values.shape[1]
    weights = np.where(exact.choices(size, n).T, 1 / n, -1 / (size - n))
    means = np.einsum("ei,si->es", values, weights)
    shifts = weights[:, :n].sum(axis=1)  # of the split, if the first n values are shifted by 1
    observed = int(np.argmax(shifts))
    turns = (means[:, observed, None] - means) / np.where(shifts < 1 - 1e-9, 1 - shifts, np.nan)
    return _smallest(np.delete(turns, observed, axis=1), few)


def _ranked(values: Array, alpha: float) -> Array:
    """The lower end for the signed-rank test: a single value, or the mean of two."""
    n = values.shape[1]
    ways = np.zeros(n * (n + 1) // 2 + 1)  # patterns of signs with this sum of ranks
    ways[0] = 1
    for rank in range(1, n + 1):
        ways[rank:] += ways[:-rank].copy()
    first, second = np.triu_indices(n)
    return _smallest((values[:, first] + values[:, second]) / 2, int((ways.cumsum() <= alpha / 2 * 2.0**n).sum()))


def _smallest(turns: Array, few: int) -> Array:
    """The `few`-th smallest value of each row; minus infinity if a row has no such value."""
    if not 0 < few <= turns.shape[1]:
        return np.full(len(turns), -math.inf)
    return np.asarray(np.partition(turns, few - 1, axis=1)[:, few - 1])

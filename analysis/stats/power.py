"""What the test that decides can find: the power of each test for normal values, and the seeds that a difference needs.

An effect is a true difference of means in standard deviations: of the differences of pairs, or of the values of one
method where seeds are not paired.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from analysis.stats import exact, functions
from analysis.stats.contrast import Contrast
from analysis.stats.resolution import PAIRED, seeds_needed

POWER = 0.8
MOST_SEEDS = 1000
_EXPERIMENTS = 400  # that are simulated for an exact test: the power of one effect has a standard error of 2 points
_SIMULATED_UP_TO = 8  # seeds; with more, the exact tests find what the t tests find


@lru_cache(maxsize=4096)
def detectable(test: str, n: int, alpha: float = 0.05, power: float = POWER, m: int | None = None) -> float | None:
    """The true effect that a two-sided test finds with `power`, with n pairs, or with n and m values (default: as
    many); None if no effect is large enough for so few.

    Of the t tests from the noncentral t distribution; of the others, with at most 8 seeds of each method, from 400
    simulated experiments (seeded), and with more as the t test of the same design.
    """
    m = n if m is None else m
    if min(n, m) < 2 or not alpha > 0:
        return None
    if test in ("paired_t", "welch") or max(n, m) > _SIMULATED_UP_TO:
        return functions.rounded(_effect_of_t(*_design(test, n, m), alpha, power))
    lows = _ends(test, n, m, alpha)
    needed = sorted(-low for low in lows)[math.ceil(power * len(lows)) - 1]
    return None if math.isinf(needed) else functions.rounded(needed)


@lru_cache(maxsize=4096)
def power_of(test: str, n: int, effect: float, alpha: float = 0.05, m: int | None = None) -> float:
    """The chance that the test finds a true effect with its right sign, in [0, 1]; as `detectable`."""
    m = n if m is None else m
    if min(n, m) < 2 or not alpha > 0:
        return 0.0
    if test in ("paired_t", "welch") or max(n, m) > _SIMULATED_UP_TO:
        return _power_of_t(*_design(test, n, m), alpha, effect)
    return sum(low + effect > 0 for low in _ends(test, n, m, alpha)) / _EXPERIMENTS


def seeds_to_find(test: str, effect: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Smallest number of seeds of each method with which a test finds a true effect; None above MOST_SEEDS."""
    few, many = seeds_needed(alpha, 1, test), MOST_SEEDS
    if not effect > 0 or (detectable(test, many, alpha, power) or math.inf) > effect:
        return None
    while few < many:  # the detectable effect falls with n
        middle = (few + many) // 2
        enough = (detectable(test, middle, alpha, power) or math.inf) <= effect
        few, many = (few, middle) if enough else (middle + 1, many)
    return few


def effect_of(contrast: Contrast) -> float | None:
    """The effect seen: the difference in standard deviations; None without spread."""
    if contrast.difference is None or contrast.spread is None:
        return None
    return abs(contrast.difference) / contrast.spread


def _ends(test: str, n: int, m: int, alpha: float) -> tuple[float, ...]:
    """The lower ends of the intervals of simulated experiments without a difference: one that is added moves them.

    A test that counts has few levels, so they are kept by the number of patterns or splits that may be as extreme.
    """
    if test == "relabel":
        return _relabelled(n, m, exact.splits_at(alpha, n, m))
    return _flipped(n, exact.patterns_at(alpha, n)) if test == "signflip" else _ranked(n, exact.patterns_at(alpha, n))


@lru_cache(maxsize=256)
def _flipped(n: int, few: int) -> tuple[float, ...]:
    patterns = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    means = np.einsum("ei,si->es", _luck(n), patterns / patterns.sum(axis=1, keepdims=True))
    return _smallest(means, few)


@lru_cache(maxsize=256)
def _relabelled(n: int, m: int, few: int) -> tuple[float, ...]:
    chosen = exact.choices(n + m, n).T
    weights = np.where(chosen, 1 / n, -1 / m)
    means = np.einsum("ei,si->es", _luck(n + m), weights)
    shifts = weights[:, :n].sum(axis=1)  # of the split, if the first n values are shifted by 1
    observed = int(np.argmax(shifts))
    turns = (means[:, observed, None] - means) / np.where(shifts < 1 - 1e-9, 1 - shifts, np.nan)
    return _smallest(np.delete(turns, observed, axis=1), few)


@lru_cache(maxsize=256)
def _ranked(n: int, few: int) -> tuple[float, ...]:
    level, ends = few / 2.0 ** (n - 1), []
    for row in _luck(n):
        interval = Contrast("wilcoxon", row, np.zeros(n)).interval(level) if few else None
        ends.append(-math.inf if interval is None else interval[0])
    return tuple(ends)


@lru_cache(maxsize=32)
def _luck(values: int) -> NDArray[np.float64]:
    return np.random.default_rng(values).standard_normal((_EXPERIMENTS, values))


def _smallest(turns: NDArray[np.float64], few: int) -> tuple[float, ...]:
    """Of each row, the value that `few` are not above; minus infinity if there is none."""
    if not 0 < few <= turns.shape[1]:
        return (-math.inf,) * len(turns)
    return tuple(np.partition(turns, few - 1, axis=1)[:, few - 1].tolist())


def _design(test: str, n: int, m: int) -> tuple[float, float]:
    """Degrees of freedom, and the root of the number of values that one effect counts as."""
    return (n - 1, math.sqrt(n)) if test in PAIRED else (n + m - 2, math.sqrt(n * m / (n + m)))


def _power_of_t(df: float, root: float, alpha: float, effect: float) -> float:
    critical = functions.t_quantile(df, 1 - alpha / 2)
    wrong_side = float(special.nctdtr(df, effect * root, -critical))  # NaN where it is below 1e-11
    return 1 - float(special.nctdtr(df, effect * root, critical)) + (0.0 if math.isnan(wrong_side) else wrong_side)


def _effect_of_t(df: float, root: float, alpha: float, power: float) -> float:
    low, high = 0.0, 1.0
    while _power_of_t(df, root, alpha, high) < power and high < 1e6:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _power_of_t(df, root, alpha, middle) >= power else (middle, high)
    return high

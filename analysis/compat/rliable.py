"""The names of rliable's `library` and `metrics` on the statistics of `analysis.stats`.

    from analysis.compat import rliable as rly
    metrics = rly

Point estimates are rliable's. Intervals are ours, which hold the truth as often as they say with few runs, too, where
percentile intervals do not (`benchmarks.validity.beside_rliable` counts both). A median over tasks, the profile of the
means of tasks, and a single run have no interval but NaN, because no resampling of few runs covers them; that of a
profile is Clopper and Pearson's. `random_state` sets the seed, by default 0 (rliable does not use it). `task_bootstrap`
and other methods are refused: intervals are of the given tasks, and of one kind.

Scores have shape (runs, tasks) or (runs, tasks, ...) and are finite. All raise ValueError for others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike

from analysis.stats import resample
from analysis.stats.numbers import Array
from analysis.stats.resample import Counts, Resampled

Estimates = tuple[dict[str, Any], dict[str, Array]]


class _Drawn(np.ndarray[Any, Any]):
    """Scores that were drawn, not measured."""


def aggregate_mean(scores: ArrayLike) -> float:
    """Mean over runs and tasks."""
    return float(resample.mean(scores))


def aggregate_median(scores: ArrayLike) -> float:
    """Median over tasks of the mean over runs; NaN of scores that were drawn, so that it has no interval."""
    return float("nan") if isinstance(scores, _Drawn) else float(resample.median(scores))


def aggregate_iqm(scores: ArrayLike) -> float:
    """Mean of the middle half of the scores of all runs and tasks."""
    return float(resample.iqm(scores))


def aggregate_optimality_gap(scores: ArrayLike, gamma: float = 1) -> float:
    """By how much the scores fall short of gamma on average."""
    return float(resample.optimality_gap(scores, target=gamma))


def probability_of_improvement(scores_x: ArrayLike, scores_y: ArrayLike) -> float:
    """Chance that a run of x (n, tasks) is above one of y (m, tasks) on the same task, a tie counting half."""
    return float(_value(resample.probability_of_improvement(scores_x, scores_y, resamples=1)))


class StratifiedBootstrap:
    """Intervals of a function of scores whose runs are redrawn within each task, one draw fewer than there are runs."""

    def __init__(self, scores: ArrayLike, random_state: RandomState | None = None, task_bootstrap: bool = False):
        _only("task_bootstrap", task_bootstrap, False)
        self.scores = np.asarray(scores, dtype=np.float64)
        self.seed = 0 if random_state is None else int(random_state.randint(2**31))

    def conf_int(
        self, func: Callable[..., Any], reps: int = 1000, method: str = "percentile", size: float = 0.95
    ) -> Array:
        """The interval (2, k) of the k numbers func(scores) at the level `size`."""
        _only("method", method, "percentile")

        def statistic(_: Array, counts: Counts | None) -> Array:
            drawn = [self.scores] if counts is None else map(self._drawn, counts)
            found = np.stack([np.atleast_1d(np.asarray(func(scores), dtype=np.float64)) for scores in drawn])
            return found[0] if counts is None else found

        whole = self.scores.reshape(*self.scores.shape[:2], -1)
        return _ends(resample.stratified(whole, statistic, 1 - size, resamples=reps, seed=self.seed))

    def _drawn(self, counts: Counts) -> Array:
        """The scores with each run drawn as often as counts (runs, tasks) say."""
        seen = np.cumsum(counts, axis=0, dtype=np.int64)
        runs = (seen <= np.arange(len(counts) - 1)[:, None, None]).sum(axis=1)
        return np.asarray(self.scores[runs, np.arange(counts.shape[1])]).view(_Drawn)


def get_interval_estimates(
    score_dict: Mapping[str, Any], func: Callable[..., Any], method: str = "percentile", task_bootstrap: bool = False,
    reps: int = resample.RESAMPLES, confidence_interval_size: float = 0.95, random_state: RandomState | None = None,
) -> Estimates:  # fmt: skip
    """func of the scores of each entry, and its interval (2, k). Of an entry with two arrays, x and y, only
    `probability_of_improvement` has one."""
    _only("method", method, "percentile")
    points, intervals = {}, {}
    for key, scores in score_dict.items():
        pair, alpha = () if isinstance(scores, np.ndarray) else tuple(scores), 1 - confidence_interval_size
        if pair and func is not probability_of_improvement:
            raise ValueError(f"{key}: of two arrays, only probability_of_improvement has an interval")
        points[key] = func(*pair or (scores,))
        drawn = StratifiedBootstrap(pair[0] if pair else scores, random_state, task_bootstrap)
        if pair:
            found = resample.probability_of_improvement(pair[0], pair[1], alpha, resamples=reps, seed=drawn.seed)
        intervals[key] = _ends(found) if pair else drawn.conf_int(func, reps, size=confidence_interval_size)
    return points, intervals


def create_performance_profile(
    score_dict: Mapping[str, Any], tau_list: ArrayLike, use_score_distribution: bool = True,
    custom_profile_func: Callable[..., Any] | None = None, method: str = "percentile", task_bootstrap: bool = False,
    reps: int = 2000, confidence_interval_size: float = 0.95,
) -> Estimates:  # fmt: skip
    """Of each entry the share of scores, or of means of tasks, above each of k thresholds, and its interval (2, k)."""
    _only("method", method, "percentile")
    size = confidence_interval_size
    if (of := custom_profile_func) is not None:
        return get_interval_estimates(score_dict, lambda s: of(s, tau_list), method, task_bootstrap, reps, size)
    points, intervals = {}, {}
    for key, scores in score_dict.items():
        whole = StratifiedBootstrap(scores, task_bootstrap=task_bootstrap).scores
        shown = whole if use_score_distribution else whole.mean(axis=0, keepdims=True)
        found = resample.performance_profile(shown, tau_list, 1 - size)
        points[key] = _value(found)
        intervals[key] = _ends(found if use_score_distribution else replace(found, low=None))
    return points, intervals


def _only(name: str, value: object, allowed: object) -> None:
    if value != allowed:
        raise ValueError(f"{name} = {value!r}: there is one kind of interval, of the given tasks: choose {allowed!r}")


def _value(found: Resampled) -> Array:
    if found.value is None:
        raise ValueError(found.reason)
    return found.value


def _ends(found: Resampled) -> Array:
    """The ends (2, k), NaN without an interval, which a warning explains."""
    value = np.atleast_1d(_value(found))
    ends = value * np.nan, value * np.nan
    if found.low is not None and found.high is not None:
        ends = np.atleast_1d(found.low), np.atleast_1d(found.high)
    if np.isnan(ends).any():
        warnings.warn(found.reason or resample.NO_MEDIAN, stacklevel=3)
    return np.stack(ends)

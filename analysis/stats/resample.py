"""Scores of many tasks summarised together, with the stratified bootstrap: runs are redrawn within each task.

Scores have shape (runs, tasks) or (runs, tasks, time). A resample draws n - 1 of the n runs of a task (Rao and Wu
1988), so that the resampled mean has the variance that is estimated without bias; a run is drawn with its whole curve.
The same seed draws the same runs, also for two methods of one shape.

Tasks may have different numbers of runs: `runs` (tasks,) says how many of the rows of each task count, from the first
on. Each task then has the same weight, and n - 1 of its own n runs are drawn; a task with one run keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from analysis.stats.numbers import Array
from analysis.stats.resolution import check_alpha
from analysis.stats.t_test import difference, share_interval

Runs = NDArray[np.int64]
# How often each run of each task was drawn. If tasks have different numbers of runs, not whole numbers: the weights of
# the draws, whose sum is the same in every task.
Counts = NDArray[np.uint8] | NDArray[np.float64]
# Of scores (runs, tasks[, time]) and how often each run of a task was drawn (resamples, runs, tasks), None for once:
# the statistic of each resample, (resamples[, anything]), or of the scores themselves without the first axis.
Statistic = Callable[[Array, Counts | None], Array]

RESAMPLES = 50_000
NO_MEDIAN = "a median over tasks has no interval: where tasks differ in noise, the median of noisy means is biased"
_BLOCK = 2048  # resamples at a time: their counts stay in the processor's cache
MOST_RUNS = 255  # runs that can be redrawn: counts are bytes


@dataclass(frozen=True)
class Resampled:
    """A statistic with its interval, both shaped as the statistic (a number has shape ()).

    value: of the scores as they are; low, high: the ends of the interval at level 1 - alpha; each None without a
    meaning, for which `reason` says why. runs, tasks: of the scores.
    """

    runs: int
    tasks: int
    value: Array | None
    low: Array | None
    high: Array | None
    reason: str | None


def stratified(
    scores: ArrayLike,
    statistic: Statistic,
    alpha: float = 0.05,
    *,
    runs: ArrayLike | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Resampled:
    """A statistic of scores (runs, tasks[, time]), such as `iqm`, with its interval over runs.

    statistic(scores, counts), for one of one's own: counts (resamples, runs, tasks) say how often each run of each task
    was drawn, and it returns one value, or array, for each resample; with counts None the one of the scores themselves.

    The interval is a percentile interval, further out than at alpha / 2: as far as Student's t is from the normal
    distribution with tasks * (runs - 1) / 2 degrees of freedom. The spread is estimated from few runs, and tasks differ
    in it: half of the degrees of freedom is what remains when half of the tasks have all of it.

    Raises ValueError for scores or runs of another shape, no resamples, or alpha outside (0, 1).
    """
    check_alpha(alpha)
    s, of_task, reason = _scores(scores, runs)
    n, tasks = s.shape[:2]
    if reason is not None:
        return Resampled(n, tasks, None, None, None, reason)
    once = np.where(np.arange(n)[:, None] < of_task, (n - 1) / of_task, 0.0)[None]
    value = np.asarray(statistic(s, None) if (of_task == n).all() else statistic(s, once)[0], dtype=np.float64)
    if (why := NO_MEDIAN if statistic is median else _not_drawn(n)) is not None:
        return Resampled(n, tasks, value, None, None, why)
    drawn = [statistic(s, counts) for counts in _draws(of_task, resamples, seed)]
    return Resampled(n, tasks, value, *_ends(np.concatenate(drawn), alpha, float((of_task - 1).sum()) / 2), None)


def probability_of_improvement(
    a: ArrayLike,
    b: ArrayLike,
    alpha: float = 0.05,
    *,
    runs: tuple[ArrayLike | None, ArrayLike | None] = (None, None),
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Resampled:
    """Chance that a run of `a` (n, tasks) is above one of `b` (m, tasks) on the same task, a tie counting half; the
    mean over tasks. Runs of a and b are redrawn independently: shared seeds can only make the interval too wide.

    Raises ValueError as `stratified` does.
    """
    check_alpha(alpha)
    (x, runs_a, why_a), (y, runs_b, why_b) = _scores(a, runs[0]), _scores(b, runs[1])
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"a has shape {x.shape}, b has shape {y.shape}: (runs, tasks) of the same tasks are needed")
    (n, tasks), m = x.shape, y.shape[0]
    if why_a or why_b:
        return Resampled(n, tasks, None, None, None, "; ".join(filter(None, (why_a, why_b))))
    above = (np.sign(difference(x[:, None, :], y[None, :, :])) + 1) / 2  # (n, m, tasks)
    both = [above[:i, :j, task].mean() for task, (i, j) in enumerate(zip(runs_a, runs_b, strict=True))]
    value = np.asarray(np.mean(both))
    if (why := _not_drawn(n) or _not_drawn(m)) is not None:
        return Resampled(n, tasks, value, None, None, why)
    streams = np.random.SeedSequence(seed).spawn(2)
    pairs = zip(_draws(runs_a, resamples, streams[0]), _draws(runs_b, resamples, streams[1]), strict=True)
    # One product a task, (resamples, n) by (n, m): what is left is a sum over the m runs.
    by_task = above.transpose(2, 0, 1)
    drawn = [((a.transpose(2, 0, 1) @ by_task) * b.transpose(2, 0, 1)).sum(axis=(0, 2)) for a, b in pairs]
    df = float((np.minimum(runs_a, runs_b) - 1).sum()) / 2
    return Resampled(n, tasks, value, *_ends(np.concatenate(drawn) / ((n - 1) * (m - 1) * tasks), alpha, df), None)


def performance_profile(
    scores: ArrayLike, thresholds: ArrayLike, alpha: float = 0.05, *, runs: ArrayLike | None = None
) -> Resampled:
    """Share of runs and tasks with a score above each threshold (k,), scores (runs, tasks), with an interval for each
    threshold alone. runs (tasks,): as `stratified`; each task counts the same.

    The interval is not resampled, because no resample has a run that no run was: where all runs of a task are on one
    side of a threshold, resampling gives this task no spread. It is `share_interval` of all runs, for tasks that are
    given and runs that are independent. Raises ValueError as `stratified` does.
    """
    limits = np.asarray(thresholds, dtype=np.float64)
    if np.ndim(scores) != 2 or limits.ndim != 1:
        raise ValueError(f"scores have {np.ndim(scores)} axes, thresholds {limits.ndim}: 2 and 1 are needed")
    if np.isnan(limits).any():
        raise ValueError("a threshold is NaN: no score is above or below it")
    s, of_task, reason = _scores(scores, runs)
    n, tasks = s.shape
    if reason is not None:
        return Resampled(n, tasks, None, None, None, reason)
    counted = np.arange(n)[:, None] < of_task  # (runs, tasks)
    hits = ((s[:, :, None] > limits) & counted[:, :, None]).sum(axis=0)  # (tasks, k)
    share = np.asarray((hits / of_task[:, None]).mean(axis=0))
    # As many trials as give a mean of shares that count the same its variance.
    trials = tasks**2 / float((1 / of_task).sum())
    return Resampled(n, tasks, share, *share_interval(share, trials, alpha), None)


# ---------------------------------------------------------------- statistics
# Of scores (runs, tasks) a number, of (runs, tasks, time) one for each time; with counts (resamples, runs, tasks), as
# `stratified` gives them, one for each resample before that. All raise ValueError for scores of another shape or not
# finite.


def iqm(scores: ArrayLike, counts: Counts | None = None) -> Array:
    """Interquartile mean: of all runs and tasks together the mean without the lowest and the highest quarter.

    Of N scores, floor(N / 4) are left out at each end. If tasks have different numbers of runs, a quarter of the weight
    is.
    """
    s = _usable(scores, counts)
    if s.ndim == 3:
        return np.stack([iqm(s[..., time], counts) for time in range(s.shape[2])], axis=-1)
    order = np.argsort(s, axis=None, kind="stable")
    ranked = s.ravel()[order]
    if counts is None:
        cut = ranked.size // 4
        return np.asarray(ranked[cut : ranked.size - cut].mean())
    drawn = (s.shape[0] - 1) * s.shape[1]
    whole = counts.dtype == np.uint8
    cut = drawn // 4 if whole else drawn / 4
    # below[r, k]: how many of the draws of resample r that count are among the k lowest scores. The sum of those that
    # count is then, summed by parts, one product with the steps between scores.
    below = np.cumsum(
        np.take(counts.reshape(len(counts), -1), order, axis=1), axis=1, dtype=np.int32 if whole else np.float64
    )
    np.clip(below, cut, drawn - cut, out=below)
    kept = drawn - 2 * cut
    return np.asarray((ranked[-1] * kept - (below[:, :-1] - cut) @ np.diff(ranked)) / kept)


def mean(scores: ArrayLike, counts: Counts | None = None) -> Array:
    """Mean over runs and tasks."""
    s = _usable(scores, counts)
    if counts is None:
        return np.asarray(s.mean(axis=(0, 1)))
    n, tasks = s.shape[:2]
    weights = counts.reshape(len(counts), -1).astype(np.float64)
    return np.asarray(np.einsum("rk,k...->r...", weights, s.reshape(n * tasks, *s.shape[2:])) / ((n - 1) * tasks))


def median(scores: ArrayLike, counts: Counts | None = None) -> Array:
    """Median over tasks of the mean over runs."""
    s = _usable(scores, counts)
    if counts is None:
        return np.asarray(np.median(s.mean(axis=0), axis=0))
    means = np.einsum("rnm,nm...->rm...", counts.astype(np.float64), s) / (s.shape[0] - 1)
    return np.asarray(np.median(means, axis=1))


def optimality_gap(scores: ArrayLike, counts: Counts | None = None, target: float = 1.0) -> Array:
    """By how much the scores fall short of `target` on average; scores above it count as the target."""
    return np.asarray(target - mean(np.minimum(_usable(scores, counts), target), counts))


def _usable(scores: ArrayLike, counts: Counts | None) -> Array:
    """The scores as an array; with counts unchecked, because `stratified` has checked them."""
    if counts is not None:
        return np.asarray(scores, dtype=np.float64)
    s, _, reason = _scores(scores)
    if reason is not None:
        raise ValueError(reason)
    return s


# ---------------------------------------------------------------- drawing


def _draws(runs: Runs, resamples: int, seed: int | np.random.SeedSequence) -> Iterator[Counts]:
    """Blocks (resamples, n, tasks) of how often each run of each task was drawn, with one draw fewer than the task has
    runs (tasks,); n is the largest number of runs."""
    if resamples < 1:
        raise ValueError(f"resamples = {resamples}: a number from 1 on is needed")
    random = np.random.default_rng(seed)
    n, tasks = int(runs.max()), runs.size
    whole, draws = (runs == n).all(), np.maximum(runs - 1, 1)
    beyond = (np.arange(n - 1)[:, None] >= draws)[:, None]  # (draws, 1, tasks)
    for start in range(0, resamples, _BLOCK):
        size = (n - 1, min(_BLOCK, resamples - start), tasks)
        chosen = random.integers(0, n, size=size, dtype=np.uint8) if whole else random.integers(0, runs, size=size)
        counts = np.empty((size[1], n, tasks), dtype=np.uint8)
        for run in range(n):
            np.sum((chosen == run) & ~beyond, axis=0, dtype=np.uint8, out=counts[:, run])
        yield counts if whole else counts * ((n - 1) / draws)


def _not_drawn(runs: int) -> str | None:
    """Why this number of runs has no interval, or None."""
    if runs == 1:
        return "one run: its spread cannot be estimated, so there is no interval"
    return f"{runs} runs: no more than {MOST_RUNS} are redrawn, so there is no interval" if runs > MOST_RUNS else None


def _ends(drawn: Array, alpha: float, df: float) -> tuple[Array, Array]:
    """Ends of the percentile interval of drawn (resamples, ...), at the levels of Student's t with `df`."""
    level = float(special.ndtr(special.stdtrit(df, alpha / 2)))
    low, high = np.quantile(drawn, (level, 1 - level), axis=0)
    return low, high


def _scores(scores: ArrayLike, runs: ArrayLike | None = None) -> tuple[Array, Runs, str | None]:
    """The scores as an array, 0 beyond the runs of a task; the runs of each task; and why there is no statistic."""
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim not in (2, 3) or 0 in s.shape:
        raise ValueError(f"scores have shape {s.shape}: (runs, tasks) or (runs, tasks, time) is needed, none empty")
    of_task = np.full(s.shape[1], len(s)) if runs is None else np.asarray(runs, dtype=np.int64)
    if of_task.shape != s.shape[1:2] or of_task.min() < 1 or of_task.max() != len(s):
        raise ValueError(f"runs = {of_task.tolist()}: for each of {s.shape[1]} tasks 1 to {len(s)}, which one has")
    if (of_task < len(s)).any():
        s = np.where((np.arange(len(s))[:, None] < of_task).reshape(*s.shape[:2], *[1] * (s.ndim - 2)), s, 0.0)
    bad = np.argwhere(~np.isfinite(s))
    if bad.size == 0:
        return s, of_task, None
    named = ", ".join(f"run {i + 1} of task {j + 1}" for i, j in dict.fromkeys((i, j) for i, j, *_ in bad[:3].tolist()))
    return s, of_task, f"{len(bad)} of {s.size} scores are not finite: {named}{', ...' if len(bad) > 3 else ''}"

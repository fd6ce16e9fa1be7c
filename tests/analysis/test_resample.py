"""Many tasks: the statistics, what the bootstrap draws, its laws and its guards; how much seeds scatter."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.stats import dispersion, resample
from analysis.stats.resample import (
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified,
)

SHAPES = st.tuples(st.integers(2, 6), st.integers(1, 9))
SEEDS = st.integers(0, 10**6)
STATISTICS = (iqm, mean, median, optimality_gap)


def scores_of(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@settings(max_examples=60)
@given(SHAPES, SEEDS)
def test_counts_are_what_repeating_the_runs_gives(shape: tuple[int, int], seed: int) -> None:
    scores = scores_of(shape, seed)
    (counts,) = resample._draws(np.full(shape[1], shape[0]), 5, seed)
    assert (counts.sum(axis=1) == shape[0] - 1).all()
    for drawn, *found in zip(counts, *(f(scores, counts) for f in STATISTICS), strict=True):
        by_task = np.column_stack([np.repeat(scores[:, t], drawn[:, t]) for t in range(shape[1])])
        assert found == pytest.approx([float(f(by_task)) for f in STATISTICS])


@settings(max_examples=40)
@given(SHAPES, SEEDS)
def test_tasks_with_fewer_runs_count_the_same(shape: tuple[int, int], seed: int) -> None:
    scores = scores_of(shape, seed)
    runs = np.random.default_rng(seed).integers(1, shape[0] + 1, shape[1])
    runs[0] = shape[0]
    own = [scores[:n, t] for t, n in enumerate(runs)]
    beyond = np.where(np.arange(shape[0])[:, None] < runs, scores, np.nan)  # is not read
    found = {f.__name__: stratified(beyond, f, runs=runs, resamples=50, seed=seed) for f in (iqm, mean, median)}
    assert found["mean"].value == pytest.approx(np.mean([task.mean() for task in own]))
    assert found["median"].value == pytest.approx(np.median([task.mean() for task in own]))
    times = math.lcm(*runs.tolist()) // runs  # copies of each run, so that all tasks have as many
    alike = np.concatenate([np.repeat(task, n) for task, n in zip(own, times, strict=True)])
    whole = np.repeat(alike, 4)  # a quarter of them is a whole number
    assert (runs == shape[0]).all() or found["iqm"].value == pytest.approx(
        np.sort(whole)[whole.size // 4 : 3 * whole.size // 4].mean()
    )
    for counts in resample._draws(runs, 5, seed):
        assert counts.sum(axis=1) == pytest.approx(np.full((5, shape[1]), shape[0] - 1.0))
        assert not counts[:, np.arange(shape[0])[:, None] >= runs].any()
    chance = probability_of_improvement(beyond, scores, runs=(runs, None), resamples=50)
    above = [(a[:, None] > scores[:, t]).mean() + (a[:, None] == scores[:, t]).mean() / 2 for t, a in enumerate(own)]
    assert chance.value == pytest.approx(np.mean(above))
    share = performance_profile(beyond, [0.1], runs=runs)
    assert share.value == pytest.approx([np.mean([(task > 0.1).mean() for task in own])])
    equal = performance_profile(scores, [0.1])
    assert share.low is not None and share.high is not None and equal.low is not None and equal.high is not None
    assert share.value == equal.value or share.high - share.low > 0


@pytest.mark.parametrize("runs", [2, 3, 5, 10, 50])
def test_a_median_over_tasks_has_no_interval_and_says_why(runs: int) -> None:
    found = stratified(np.random.default_rng(0).standard_normal((runs, 8)), median, resamples=60)
    assert found.value is not None and found.low is None and found.high is None
    assert found.reason is not None and "tasks differ in noise" in found.reason


@settings(max_examples=40)
@given(SHAPES, SEEDS, st.floats(0.1, 10), st.floats(-5, 5))
def test_moving_and_stretching_the_scores_moves_and_stretches_the_interval(
    shape: tuple[int, int], seed: int, stretch: float, move: float
) -> None:
    scores = scores_of(shape, seed)
    for statistic in (iqm, mean):
        one = stratified(scores, statistic, resamples=60, seed=seed)
        other = stratified(stretch * scores + move, statistic, resamples=60, seed=seed)
        for name in ("value", "low", "high"):
            assert getattr(other, name) == pytest.approx(stretch * getattr(one, name) + move, abs=1e-9)


@settings(max_examples=40)
@given(SHAPES, SEEDS)
def test_one_method_against_another_is_one_less_than_the_other_way_round(shape: tuple[int, int], seed: int) -> None:
    a, b = np.round(scores_of(shape, seed), 1), np.round(scores_of(shape, seed + 1), 1)
    one, other = (probability_of_improvement(*pair, resamples=50) for pair in ((a, b), (b, a)))
    assert one.value + other.value == pytest.approx(1)
    assert 0 <= one.low <= one.high <= 1
    assert probability_of_improvement(a, a, resamples=50).value == pytest.approx(0.5)


@settings(max_examples=40)
@given(SHAPES, SEEDS)
def test_profiles_fall_from_one_to_zero(shape: tuple[int, int], seed: int) -> None:
    found = performance_profile(scores_of(shape, seed), np.linspace(-9, 9, 30))
    assert (
        found.value[0] == found.high[0] == 1 > found.low[0] and found.value[-1] == found.low[-1] == 0 < found.high[-1]
    )
    for line in (found.value, found.low, found.high):
        assert (np.diff(line) <= 1e-6).all()


def test_rescaled_resampling_has_the_unbiased_variance_of_the_mean() -> None:
    """n draws would give 2/3 of it with three runs."""
    scores = scores_of((3, 20), 1)
    drawn = np.concatenate([mean(scores, counts) for counts in resample._draws(np.full(20, 3), 20_000, 0)])
    unbiased = (scores.var(axis=0, ddof=1) / 3).mean() / 20
    assert drawn.var() == pytest.approx(unbiased, rel=0.05)


def test_a_run_is_drawn_with_its_whole_curve() -> None:
    """The area under the resampled curve is the resampled mean of the areas, not something narrower."""
    curves = scores_of((4, 9, 1), 2) + 0.1 * scores_of((4, 9, 25), 3)

    def area(s: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
        return np.asarray(np.trapezoid(mean(s, counts), dx=1 / 24, axis=-1))

    of_curves = stratified(curves, area, resamples=500)
    of_areas = stratified(np.trapezoid(curves, dx=1 / 24, axis=-1), mean, resamples=500)
    for name in ("value", "low", "high"):
        assert getattr(of_curves, name) == pytest.approx(getattr(of_areas, name))
    over_time = stratified(curves, iqm, resamples=50)
    assert over_time.value.shape == over_time.low.shape == (25,)
    assert over_time.value[7] == iqm(curves[..., 7])


def test_the_seed_decides_the_draws() -> None:
    scores = scores_of((5, 8), 4)
    one, again, other = (stratified(scores, iqm, resamples=200, seed=seed) for seed in (1, 1, 2))
    assert (one.low, one.high) == (again.low, again.high) != (other.low, other.high)
    # More than one block of resamples is not the first one again.
    assert stratified(scores, iqm, resamples=5000).low != stratified(scores, iqm, resamples=2048).low


def test_two_methods_of_one_shape_share_their_draws() -> None:
    scores = scores_of((3, 8), 5)
    ahead = [mean(s, counts) for s in (scores, scores + 0.25) for counts in resample._draws(np.full(8, 3), 100, 7)]
    assert ahead[1] - ahead[0] == pytest.approx(np.full(100, 0.25))


@pytest.mark.parametrize(
    ("scores", "reason"),
    [([[1.0, 2.0]], "one run"), ([[1.0, 2.0], [math.inf, 3.0]], "run 2 of task 1"),
     ([[1.0, math.nan], [2.0, 3.0]], "1 of 4 scores are not finite: run 1 of task 2")],
)  # fmt: skip
def test_guards_give_a_reason_and_no_interval(scores: list[list[float]], reason: str) -> None:
    for found in (stratified(scores, iqm), probability_of_improvement(scores, scores)):
        assert reason in (found.reason or "") and found.low is None and found.high is None
        assert (found.value is None) == (reason != "one run")
    profile = performance_profile(scores, [0.0])  # of one run for each task, it has an interval
    assert (profile.low is None) == (reason != "one run") and (profile.reason is None or reason in profile.reason)


def test_what_differs_by_rounding_is_a_tie() -> None:
    found = probability_of_improvement(np.full((3, 2), 0.1 + 0.2), np.full((3, 2), 0.3), resamples=10)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_more_runs_than_can_be_redrawn_have_no_interval() -> None:
    many = scores_of((256, 2), 3)
    for found in (stratified(many, mean), probability_of_improvement(many[:9], many)):
        assert found.value is not None and found.low is None and "256 runs: no more than 255" in (found.reason or "")
    assert stratified(many[:255], mean, resamples=10).low is not None


def test_equal_scores_have_an_interval_without_width() -> None:
    found = stratified(np.full((3, 8), 0.3), iqm, resamples=100)
    assert (found.low, found.high) == pytest.approx((0.3, 0.3))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *((lambda runs=runs: stratified([[1.0, 2.0], [3.0, 4.0]], mean, runs=runs), "for each of 2 tasks 1 to 2")
          for runs in ([2, 0], [3, 2], [2], [1, 1])),
        (lambda: stratified([1.0, 2.0, 3.0], iqm), r"shape \(3,\)"),
        (lambda: stratified(np.empty((0, 3)), iqm), "none empty"),
        (lambda: stratified([[1.0]], iqm, alpha=2), "alpha = 2"),
        (lambda: stratified(np.zeros((3, 3)), iqm, resamples=0), "resamples = 0"),
        (lambda: probability_of_improvement(np.zeros((3, 2)), np.zeros((3, 4))), "same tasks"),
        (lambda: performance_profile(np.zeros((3, 2)), [0.5, math.nan]), "a threshold is NaN"),
        (lambda: performance_profile(np.zeros((3, 2)), 0.5), "thresholds 0"),
        *((lambda of=of: of([[1.0, 2.0], [math.nan, 3.0]]), "run 2 of task 1") for of in STATISTICS),
        *((lambda of=of: of([1.0, 2.0, 3.0]), r"shape \(3,\)") for of in STATISTICS),
    ],
)  # fmt: skip
def test_arguments_without_a_meaning_are_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_statistics_take_what_arrays_are_made_of() -> None:
    scores = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    for statistic in STATISTICS:
        assert statistic(scores) == statistic(np.array(scores, dtype=float)) == statistic(np.float32(scores))


def test_few_runs_reach_further_than_plain_percentiles() -> None:
    scores = scores_of((3, 8), 6)
    drawn = np.concatenate([mean(scores, counts) for counts in resample._draws(np.full(8, 3), 4000, 0)])
    found = stratified(scores, mean, resamples=4000)
    level = stats.norm.cdf(stats.t.ppf(0.025, 8))  # half of the 8 tasks' 16 degrees of freedom
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, (level, 1 - level))))
    assert found.low < np.quantile(drawn, 0.025) and found.high > np.quantile(drawn, 0.975)


LUCK = np.array([-1.5, -0.9, -0.5, -0.2, 0.1, 0.3, 0.8, 1.2, 1.7, -2.0])


def test_spread_against_is_browns_and_forsythes_test_in_pairs() -> None:
    a, b = 5 + 3 * LUCK, 2 + LUCK[::-1]
    found = dispersion.against(a, b, 2.0, 0.05)
    distances = np.abs(a - np.median(a)), 2 * np.abs(b - np.median(b))
    expected = stats.ttest_rel(*distances).confidence_interval(0.95)
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert found.ratio == pytest.approx(3.0)


def test_spread_against_what_does_not_scatter() -> None:
    found = dispersion.against([1.0, 2.0, 4.0], [3.0, 3.0, 3.0], 1.5, 0.05)
    assert found.ratio is None and (found.contrast.a - found.contrast.b) == pytest.approx([1, 0, 2])


def test_coefficient_of_variation_has_the_chi_square_interval() -> None:
    values = np.array([9.8, 10.1, 10.4, 9.9])
    found = dispersion.variation(values, 0.05)
    cv, (low, high) = found
    assert cv == pytest.approx(values.std(ddof=1) / values.mean())
    assert low == pytest.approx(cv * np.sqrt(3 / stats.chi2.ppf(0.975, 3)))
    assert high == pytest.approx(cv * np.sqrt(3 / stats.chi2.ppf(0.025, 3)))
    assert dispersion.variation(1e300 * values, 0.05) == (pytest.approx(cv), (pytest.approx(low), pytest.approx(high)))
    for none in ([1.0], [2.0, 2.0], [-1.0, 1.0], [0.0, 1.0]):
        assert dispersion.variation(none, 0.05) is None

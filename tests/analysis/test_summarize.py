"""Summaries of one curve, by hand."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from analysis.spec.registry import Curve
from analysis.spec.summaries import late_relative, lowest_relative
from analysis.stats.curve_summaries import (
    NotEvaluable,
    TimeTo,
    auc,
    best,
    early,
    final,
    largest_change,
    restricted_mean,
    time_to,
)

STEPS = np.arange(1.0, 101.0)


def curve(values: list[float]) -> Curve:
    """The curve of a value at each step from 1 on."""
    steps = np.arange(1.0, len(values) + 1)
    return Curve(steps, np.array(values), 1.0, float(len(values)), 20, "higher")


def test_auc_is_the_average_height() -> None:
    assert auc([1, 2, 3], [0.0, 1.0, 0.0]) == 0.5
    assert auc(STEPS, np.full(100, 0.7)) == pytest.approx(0.7)
    assert auc([1, 2, 10], [0.0, 1.0, 1.0]) == pytest.approx(8.5 / 9)


def test_auc_on_a_common_range_interpolates_but_never_extrapolates() -> None:
    assert auc([0, 10], [0.0, 10.0], start=2, stop=4) == pytest.approx(3.0)
    with pytest.raises(NotEvaluable, match="ends at 57 of 100"):
        auc(STEPS[:57], STEPS[:57], 1, 100)
    with pytest.raises(NotEvaluable, match="begins at 5, after 1"):
        auc(STEPS[4:], STEPS[4:], 1, 100)
    with pytest.raises(NotEvaluable, match="begins at 60 and ends before it, at 40"):
        auc(STEPS, STEPS, 60, 40)


def test_final_is_the_mean_of_the_last_tenth() -> None:
    assert final(STEPS, STEPS) == np.mean(range(91, 101))
    assert final([10, 20, 95, 100], [9.0, 9.0, 1.0, 2.0]) == 1.5
    assert final([0], [2.0]) == 2.0
    with pytest.raises(NotEvaluable, match="last 10% of 100"):
        final(STEPS[:80], STEPS[:80], stop=100)


def test_early_phase_is_the_first_tenth_and_its_noise_is_of_steps() -> None:
    rising = early(STEPS, STEPS)
    assert (rising.n, rising.mean) == (10, 5.5) and rising.step_variance == pytest.approx(0.0)
    noisy = early(STEPS, np.where(STEPS % 2 == 0, 1.0, -1.0))
    assert noisy.step_variance == pytest.approx(np.var([2, -2] * 4 + [2], ddof=1))
    assert early([10, 100], [3.0, 4.0]).step_variance is None
    with pytest.raises(NotEvaluable, match="first 10% of 100"):
        early(STEPS[20:], STEPS[20:])


def test_best_is_of_the_smoothed_curve() -> None:
    spike = np.zeros(100)
    spike[50] = 1.0
    assert best(spike) == pytest.approx(0.05)
    assert best(-spike, direction="lower") == pytest.approx(-0.05)
    assert best([3.0, 1.0]) == 2.0
    assert best([0, 1, 1, 1, 0], 3) == 1, "a product with 1/3, added up, is not 1"


def test_time_to_interpolates_inside_the_step() -> None:
    assert time_to(STEPS, STEPS, 20.25, window=20) == TimeTo(pytest.approx(29.75), True)
    assert time_to(STEPS, STEPS, 49.75, window=1) == TimeTo(pytest.approx(49.75), True)


@pytest.mark.parametrize(
    "wrong", [{"direction": "up"}, {"window": 0}, {"window": -3}, {"window": math.nan}, {"threshold": math.nan}]
)
def test_time_to_refuses_what_has_no_meaning(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} = {value!r}"):
        time_to(STEPS, STEPS, **{"threshold": 50.0, **wrong})
    if name != "threshold":
        with pytest.raises(ValueError, match=f"{name} = {value!r}"):
            best(STEPS, **wrong)


def test_time_to_edges() -> None:
    assert time_to(STEPS, STEPS, 0.0) == TimeTo(20.0, True)  # the first whole window is the earliest time
    assert time_to(STEPS, STEPS, 1000.0) == TimeTo(100.0, False)
    assert time_to(STEPS, STEPS, 1000.0, budget=60) == TimeTo(60.0, False)
    assert time_to(STEPS, 100 - STEPS, 50.0, window=1, direction="lower") == TimeTo(50.0, True)
    assert time_to(STEPS[:5], STEPS[:5], 3.0) == TimeTo(5.0, True)  # shorter than the window: one window


def test_time_to_counts_steps_not_points_and_needs_the_mean_not_one_lucky_step() -> None:
    assert time_to(STEPS[9::10], STEPS[9::10], 15.0, window=20) == TimeTo(20.0, True)
    assert not time_to(STEPS, 5.0 * (STEPS == 31), 0.5).reached


def test_restricted_mean() -> None:
    assert restricted_mean([100, 100], [False, False], 100) == 100 == restricted_mean([120.0], [True], 100)
    # Kaplan-Meier where one leaves early: 10 steps at 1, 10 at 2/3 (two of three at risk), then none
    assert restricted_mean(np.array([10, 15, 20]), np.array([True, False, True]), 100) == pytest.approx(10 + 10 * 2 / 3)
    for empty in ([], np.array([])):
        with pytest.raises(NotEvaluable, match="no run"):
            restricted_mean(empty, empty, 10)
    for budget in (-1, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"budget = {budget}"):
            restricted_mean([1], [True], budget)


def test_nan_is_bridged_and_infinity_refused() -> None:
    assert auc([1, 2, 3], [0.0, math.nan, 2.0]) == 1.0
    for function in (auc, final):
        with pytest.raises(NotEvaluable, match="infinite at 2"):
            function([1, 2, 3], [0.0, math.inf, 2.0])
        with pytest.raises(NotEvaluable, match="no value recorded"):
            function([1, 2], [math.nan, math.nan])
    with pytest.raises(ValueError, match="does not increase"):
        auc([2, 1], [0.0, 0.0])
    with pytest.raises(ValueError, match="not finite: it reaches from 1 to inf"):
        auc([1, math.inf], [0.0, 0.0])
    with warnings.catch_warnings(action="error"), pytest.raises(NotEvaluable, match="too large"):
        auc([1, 2], [1e308, 1e308])


def test_the_end_as_a_share_of_the_middle() -> None:
    assert late_relative(curve([1.0] * 100)) == 1.0
    assert late_relative(curve([1.0] * 90 + [0.5] * 10)) == 0.5
    assert late_relative(curve([2.0 if 45 < step <= 55 else 1.0 for step in STEPS])) == 0.5
    with pytest.raises(NotEvaluable, match="its value in the middle is -1"):
        late_relative(curve([-1.0] * 100))


def test_lowest_value_as_a_share_of_the_first() -> None:
    assert lowest_relative(curve([2.0, 0.5, 1.0])) == 0.25
    assert lowest_relative(curve([2.0, 3.0])) == 1.0
    with pytest.raises(NotEvaluable, match="the first value is 0"):
        lowest_relative(curve([0.0, 1.0]))


def test_largest_change_within_a_window_as_a_share_of_the_largest_value() -> None:
    ramp = STEPS / 100  # 0.2 within 20 steps
    assert largest_change(STEPS, ramp, 20) == pytest.approx(0.2)
    assert largest_change(STEPS, -ramp, 20) == pytest.approx(0.2)
    assert largest_change(STEPS, ramp, 200) == pytest.approx(0.99)  # from the first to the last
    jump = np.where(STEPS > 50, 4.0, 0.0)
    assert largest_change(STEPS, jump, 20) == largest_change(STEPS, jump, 1) == 1.0
    bump = np.where(STEPS == 50, 1.0, 0.0)  # there and back again within the window
    assert largest_change(STEPS, bump, 20) == 1.0
    assert largest_change(STEPS, np.zeros(100), 20) == 0.0
    assert largest_change([10, 20, 50], [1.0, 2.0, 4.0], 20) == 0.25  # 50 is too far from 20

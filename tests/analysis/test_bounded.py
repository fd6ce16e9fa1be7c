"""Means of values between known limits, such as times that are cut at the budget, and shares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.findings.study import Study
from analysis.report.headline import answer
from analysis.stats.resample import performance_profile
from analysis.stats.t_test import MOST, mean_interval, outer_interval, share_interval, t_interval
from tests.analysis.conftest import MakeSweep, logging, reported, studied, sweeps_in

REWARD = "analysis/reward_sum_mean"


def test_one_more_run_at_a_limit_extends_the_interval_there() -> None:
    values = [0.2, 0.25, 0.3, 0.2, 0.3]
    own, found = t_interval(values), outer_interval(values, 0, 1)
    upper, lower = (t_interval([*values, limit], 0.2) for limit in (1.0, 0.0))
    assert own and found and upper and lower
    assert found == pytest.approx((min(own[0], lower[0]), max(own[1], upper[1])))
    assert found[1] == upper[1] > own[1]


def test_equal_values_have_an_interval_and_one_value_has_none() -> None:
    found = outer_interval([1.0, 1.0, 1.0], 0, 1)
    assert mean_interval([1.0, 1.0, 1.0], 0, 1) is None
    assert found is not None and found[1] == 1 and 0.2 < found[0] < 0.6
    assert mean_interval([1.0], 0, 1) is None
    assert outer_interval([0.2, 0.3], 0, 1, 0.6) == outer_interval([0.2, 0.3], 0, 1, 0.2)


@pytest.mark.parametrize(
    ("values", "low", "high", "alpha", "message"),
    [([0.5, 1.5], 0, 1, 0.05, "outside of"), ([0.5, np.nan], 0, 1, 0.05, "outside of"),
     ([0.5, 0.6], 1, 1, 0.05, "limits 1 and 1"), ([0.5, 0.6], 0, 1, 1.0, "alpha = 1.0")],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(values: Any, low: float, high: float, alpha: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_interval(values, low, high, alpha)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_the_interval_is_within_the_limits_has_a_width_and_turns_with_the_values(values: list[float]) -> None:
    found = outer_interval(values, 0, 1)
    assert found is not None and 0 <= found[0] < found[1] <= 1
    assert found[0] - 1e-9 <= np.mean(values) <= found[1] + 1e-9
    turned = outer_interval([1 - value for value in values], 0, 1)
    assert turned == pytest.approx((1 - found[1], 1 - found[0]), abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("spread", [0.05, 0.2, 0.5])
def test_an_interval_of_times_holds_and_is_hardly_wider_than_a_t_interval_or_there_is_none(
    n: int, spread: float
) -> None:
    random, held = np.random.default_rng([n, int(100 * spread)]), []
    mean = float(np.clip(0.5 + spread * random.standard_normal(200_000), 0, 1).mean())
    for values in np.clip(0.5 + spread * random.standard_normal((500, n)), 0, 1):
        found, own = mean_interval(values, 0, 1), t_interval(values)
        if found is not None and own is not None:
            assert found[1] - found[0] <= MOST * (own[1] - own[0]) + 1e-12
            held.append(found[0] <= mean <= found[1])
    assert not held or np.mean(held) >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / len(held))


def timed(make_sweep: MakeSweep, heights: Mapping[str, float]) -> Study:
    lines = logging(lambda group, seed, _, step: heights[group] * (1 + 0.05 * seed) * step / 20, 20, REWARD)
    asked = {"primary": {"metric": REWARD, "summary": "time_to"}, "time_to": [{"at": 1.0}], "window": 1}
    return studied(make_sweep(("C0", "C1"), seeds=range(4), steps=20, analysis=asked, lines=lines))


def test_times_have_the_same_kind_of_interval_with_and_without_censored_runs(tmp_path: Path) -> None:
    found = timed(sweeps_in(tmp_path / "all"), {"C0": 1.5, "C1": 2.0})
    cut = timed(sweeps_in(tmp_path / "some"), {"C0": 0.92, "C1": 2.0})
    for each, reached in ((found, (4, 4)), (cut, (2, 4))):
        estimate, (comparison,) = each.primary.estimate("C0"), each.primary.comparisons
        assert estimate.reached == reached
        assert estimate.interval == mean_interval(estimate.values, 0.0, each.primary.budget)
        assert comparison.contrast.test == "signflip" and comparison.interval is None  # of four seeds
        none = any(other.interval is None for other in each.primary.estimates)
        assert any(line.startswith("A mean time has no interval where") for line in answer(each).limits) == none
    assert found.primary.estimate("C1").interval is None


@pytest.mark.parametrize(("n", "there"), [(3, False), (10, True)])
def test_a_report_has_no_interval_of_a_mean_time_that_is_much_wider_than_the_times_scatter(
    make_sweep: MakeSweep, unrendered: None, n: int, there: bool
) -> None:
    lines = logging(lambda group, seed, _, step: step >= (8 if group == "C1" else 10) + 5 * seed, 60, REWARD)
    primary = {"metric": REWARD, "summary": "time_to"}
    asked = {"primary": primary, "time_to": [{"metric": REWARD, "at": 0.5}], "window": 1}
    folder = make_sweep(("C0", "C1"), seeds=range(n), steps=60, analysis=asked, lines=lines)
    block, *_ = reported(folder).document["comparisons"]
    for group in block["groups"]:
        low, high = stats.t.interval(0.95, n - 1, np.mean(group["values"]), stats.sem(group["values"]))
        found = group["interval"]
        assert (found is not None) is there, found
        assert not found or found[1] - found[0] <= 1.3 * (high - low), found


def test_the_interval_of_a_share_is_clopper_and_pearsons() -> None:
    low, high = share_interval([0.0, 0.3, 1.0], 10)  # published: 3 of 10 is 0.067 to 0.652
    assert low == pytest.approx([0, 0.06673951, 1 - high[0]]) and high == pytest.approx([0.30849711, 0.65245285, 1])


def test_a_profile_has_the_interval_of_all_its_runs_and_a_width_where_runs_agree() -> None:
    scores = np.array([[0.1, 0.9, 0.4, 0.6], [0.2, 0.8, 0.6, 0.7], [0.1, 0.9, 0.3, 0.8]])
    found = performance_profile(scores, [0.0, 0.5], 0.1)
    assert found.value is not None and found.value == pytest.approx([1, 7 / 12])
    ends = share_interval([1, 7 / 12], 12, 0.1)
    assert found.low == pytest.approx(ends[0]) and found.high == pytest.approx(ends[1])
    assert found.low[0] < found.high[0] == 1


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0.001, 0.5))
def test_the_interval_holds_its_share_turns_with_it_and_shrinks_with_runs(
    trials: int, share: float, alpha: float
) -> None:
    (low,), (high,) = share_interval([share], trials, alpha)
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1 and low < high
    (other_low,), (other_high,) = share_interval([1 - share], trials, alpha)
    assert (other_low, other_high) == pytest.approx((1 - high, 1 - low), abs=1e-7)
    (more_low,), (more_high,) = share_interval([share], 4 * trials, alpha)
    assert more_high - more_low < high - low


@pytest.mark.parametrize(
    ("share", "trials", "message"), [([1.5], 3, "outside"), ([float("nan")], 3, "outside"), ([0.5], 0, "trials = 0")]
)
def test_what_is_no_share_is_refused(share: list[float], trials: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        share_interval(share, trials)

"""Intervals of shares, and of performance profiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.stats.bounded import share_interval
from analysis.stats.resample import performance_profile


def test_the_interval_of_a_share_is_clopper_and_pearsons() -> None:
    low, high = share_interval([0.0, 0.3, 1.0], 10)  # published: 3 of 10 is 0.067 to 0.652
    assert low == pytest.approx([0, 0.06673951, 1 - high[0]]) and high == pytest.approx([0.30849711, 0.65245285, 1])


def test_a_profile_has_the_interval_of_all_its_runs_and_a_width_where_runs_agree() -> None:
    scores = np.array([[0.1, 0.9, 0.4, 0.6], [0.2, 0.8, 0.6, 0.7], [0.1, 0.9, 0.3, 0.8]])
    found = performance_profile(scores, [0.0, 0.5], 0.1)
    assert found.value is not None and found.value == pytest.approx([1, 7 / 12])
    assert found.low is not None and found.high is not None
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

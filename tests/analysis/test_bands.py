"""Simultaneous bands: the whole true mean curve is inside, and never less is inside than at each point alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.stats.mean_curves import factor, simultaneous
from analysis.stats.t_test import t_interval

T_OF_TWO = 4.302652729911275  # Student's t, 2 degrees of freedom, 97.5%


def test_the_band_of_one_point_is_the_t_interval() -> None:
    values = np.array([0.3, 0.5, 0.4, 0.9])
    mean, half = simultaneous(values[:, None], 0.1)
    assert (mean[0] - half[0], mean[0] + half[0]) == pytest.approx(t_interval(values, 0.1))


def test_curves_that_differ_only_in_level_have_the_factor_of_one_point() -> None:
    level = np.array([[0.1], [0.4], [0.2]]) + np.linspace(0, 1, 100)
    assert factor(level - level.mean(axis=0), 0.05) == pytest.approx(T_OF_TWO, rel=1e-9)


def test_noise_along_the_curve_needs_a_larger_factor_and_most_where_it_is_slow() -> None:
    """Slow noise has few independent points, from which its spread is known badly."""
    noise = np.random.default_rng(0).standard_normal((3, 100))
    slow, fast = (factor(each - each.mean(axis=0), 0.05) for each in (np.cumsum(noise, axis=1), noise))
    assert math.hypot(T_OF_TWO, 3) < fast < slow < 2 * T_OF_TWO


def test_a_point_where_all_seeds_agree_by_chance_has_the_spread_around_it() -> None:
    curves = np.random.default_rng(1).standard_normal((3, 40))
    curves[:, 20] = 0.7
    _, half = simultaneous(curves)
    assert half is not None and half[20] > 0.5 * np.median(half)


def test_no_band_without_a_spread_or_a_second_curve() -> None:
    mean, half = simultaneous(np.ones((1, 5)))
    assert half is None and mean.tolist() == [1] * 5
    _, half = simultaneous(np.ones((3, 5)))
    assert half is not None and half.tolist() == [0] * 5
    with pytest.raises(ValueError, match="alpha = 0"):
        simultaneous(np.ones((3, 5)), 0)


def test_no_number_is_too_large_or_too_small_for_a_band() -> None:
    each = np.array([1e300, 1.0, 1e-200, 0.0])
    mean, half = simultaneous(np.array([[1.0], [2.0], [3.0]]) * each, 0.05)
    np.testing.assert_allclose(mean, 2 * each, rtol=1e-9)
    assert half is not None and np.isfinite(half).all()
    assert (half >= T_OF_TWO * each / np.sqrt(3) * (1 - 1e-9)).all()


CURVES = st.integers(2, 6).flatmap(
    lambda n: st.integers(1, 12).flatmap(
        lambda points: st.lists(
            st.lists(st.integers(-9, 9), min_size=points, max_size=points), min_size=n, max_size=n
        )
    )
)  # fmt: skip


@given(CURVES)
def test_a_band_is_nowhere_narrower_than_the_t_interval_and_does_not_depend_on_order_or_unit(
    numbers: list[list[int]],
) -> None:
    curves = np.array(numbers, dtype=np.float64)
    mean, half = simultaneous(curves)
    for at, values in enumerate(curves.T):
        interval = t_interval(values)
        assert interval is None or mean[at] - half[at] <= interval[0] + 1e-9
    turned = simultaneous(5 - 1000 * curves[::-1])[1]
    np.testing.assert_allclose(turned, 1000 * half, rtol=1e-9, atol=1e-6)

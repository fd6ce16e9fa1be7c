"""Seeds that fall into two clusters: the rule, and where a report says it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.numbers import format_apart
from analysis.stats.dispersion import LIMITS, separation, split
from tests.analysis import shape_limits as limits
from tests.analysis.conftest import MakeSweep, reported
from tests.analysis.test_reports import APART, ASKED, LEVELS, TOGETHER, built

# ---------------------------------------------------------------- the rule


def test_a_seed_far_from_the_others_is_a_cluster_of_its_own() -> None:
    found = split(APART)
    assert found is not None
    assert (found.larger, found.smaller) == ((0, 1, 2, 4, 5), (3,))
    assert (found.larger_near, found.smaller_near) == (0.81, 0.10)
    assert split(TOGETHER) is None


def test_the_separation_is_the_largest_gap_over_the_standard_deviation_within_the_clusters() -> None:
    separations, below = separation(np.array([[0.0, 1.0, 5.0, 6.0, 7.0]]))
    assert separations[0] == pytest.approx(4 / np.sqrt((0.5 + 2.0) / 3)) and below[0] == 2


def test_of_two_equally_large_clusters_the_lower_is_the_smaller() -> None:
    found = split([1.0, 9.0, 1.001, 9.001])
    assert found is not None and (found.larger, found.smaller) == ((1, 3), (0, 2))


@pytest.mark.parametrize(("low", "high"), [(-0.3, 0.1 + 0.2), (-0.1 - 0.2, 0.3)])
def test_of_gaps_that_are_equal_up_to_rounding_the_lowest_counts(low: float, high: float) -> None:
    found = split([0.0] * 28 + [high, low])
    assert found is not None and found.smaller == (29,)


@pytest.mark.parametrize(
    "values", [[], [1.0], [0.0, 0.0, 9.0], [0.3, 0.1 + 0.2, 0.3, 0.3, 0.3], [1.0, 2.0, 3.0, 4.0, 5.0]]
)
def test_too_few_values_equal_values_and_evenly_spaced_ones_are_one_cluster(values: list[float]) -> None:
    assert split(values) is None


def test_a_larger_cluster_without_spread_and_extreme_values_are_judged_without_a_warning() -> None:
    for values in ([1.0, 1.0, 1.0, 0.2], [1e308, 1e308, -1e308, 1e308], [3e-320, 3e-320, 0.0, 3e-320]):
        found = split(values)
        assert found is not None and len(found.smaller) == 1


@given(st.lists(st.integers(-50, 50), min_size=4, max_size=12), st.integers(1, 9), st.integers(-9, 9), st.randoms())
def test_unit_origin_and_order_do_not_matter(values: list[int], unit: int, origin: int, random: Any) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    moved = split([0.1 * unit * values[place] + origin / 3 for place in order])
    found = split(values)
    assert (found is None) == (moved is None)
    if found is not None and moved is not None:
        assert sorted(order[place] for place in moved.smaller) == list(found.smaller)


def test_the_limits_are_those_of_normal_samples() -> None:
    for n in (4, 10, 30):
        rough = limits.limit(n, 200_000)  # with its own error of 3 standard errors, which moves it up
        assert 0.98 * LIMITS[n] < rough < 1.1 * LIMITS[n]
    assert tuple(LIMITS) == limits.SIZES
    assert list(LIMITS.values()) == sorted(LIMITS.values(), reverse=True)  # so that a lower number is the stricter


# ---------------------------------------------------------------- where it is said


def test_report_json_has_the_clusters(make_sweep: MakeSweep) -> None:
    document = reported(built(make_sweep, replace(LEVELS["seeds fall apart"], asked=ASKED))).document
    groups = {group["group"]: group for group in document["comparisons"][0]["groups"]}
    assert groups["A"]["clusters"] is None
    assert groups["B"]["clusters"] == [{"seeds": [0, 1, 2, 4, 5], "near": 0.81}, {"seeds": [3], "near": 0.10}]
    assert any("fall apart" in note for note in document["notes"]["main"])


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (0.8123, 0.1, ("0.81", "0.10")), (1000.001, 1000.002, ("1000.00100", "1000.00200")), (0, 5, ("0", "5.0")),
        (12.3, 0.0004, ("12.3", "0.0004")), (-1e308, 1e308, ("-1.0e+308", "1.0e+308")),
        (2e5, 1e5, ("200000", "100000")),
    ],
)  # fmt: skip
def test_two_numbers_are_shown_to_two_digits_of_half_their_distance(a: float, b: float, shown: tuple[str, str]) -> None:
    assert format_apart(a, b) == shown

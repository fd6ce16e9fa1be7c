"""The short form of benchmarks/validity.py: false positives and coverage, counted on seeded experiments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.validity import Rate, intervals, joints, single, verdicts


def kept(rates: Iterator[Rate]) -> list[Rate]:
    found = list(rates)
    assert [rate for rate in found if not rate.kept] == []
    return found


@pytest.mark.parametrize("luck", ["normal", "skewed"])
@pytest.mark.parametrize("n", [3, 5])
def test_tests_find_nothing_where_nothing_is(n: int, luck: str) -> None:
    found = kept(single(600, n, luck))
    assert sum(rate.hits for rate in found) > 0  # and they are not dead


@pytest.mark.parametrize(
    ("n", "luck", "test", "family", "cells"),
    [
        (5, "normal", "paired_t", "holm", 1),
        (6, "skewed", "signflip", "max_t", 3),
        (3, "normal", "paired_t", "max_t", 1),
    ],
)
def test_verdicts_find_nothing_where_nothing_is(n: int, luck: str, test: str, family: str, cells: int) -> None:
    kept(verdicts(120 if cells == 1 else 50, n, luck, test, family, cells))


def test_hypotheses_on_hypotheses_find_nothing_where_nothing_is() -> None:
    kept(joints(20, 5, "normal"))


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_hold_the_truth(n: int) -> None:
    kept(intervals(200, n))


def test_a_rate_out_of_bounds_is_not_kept() -> None:
    assert not Rate("", 100, 1000, most=0.05).kept and Rate("", 60, 1000, most=0.05).kept
    assert not Rate("", 900, 1000, least=0.93).kept and Rate("", 915, 1000, least=0.93).kept

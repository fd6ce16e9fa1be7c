"""The short form of benchmarks/validity.py: false positives and coverage, counted on seeded experiments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from analysis.findings.study import study
from analysis.findings.verdicts import judge
from analysis.spec.settings import settings
from benchmarks.validity import CLAIMS, DOWN, RIVALS, UP, Rate, intervals, joints, single, sweep_of, verdicts


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
        (6, "normal", "signflip", "holm", 1),
    ],
)
def test_verdicts_find_nothing_where_nothing_is(n: int, luck: str, test: str, family: str, cells: int) -> None:
    kept(verdicts(120 if cells == 1 else 50, n, luck, test, family, cells))


def test_hypotheses_on_hypotheses_find_nothing_where_nothing_is() -> None:
    kept(joints(20, 5, "normal"))


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_hold_the_truth(n: int) -> None:
    kept(intervals(200, n))


def test_a_verdict_rests_on_what_the_study_has_compared_as_on_its_own_comparisons() -> None:
    random, groups = np.random.default_rng(0), ("A", *RIVALS)
    asked = {name: {"claim": "It is so.", **claim} for name, claim in CLAIMS.items()}
    asked["any"] = {"claim": "So is one of them.", "kind": "any", "of": list(CLAIMS)}
    options = settings({"primary": {"metric": UP}, "hypotheses": asked}, groups=groups, baseline="A")
    scores = {metric: {group: 5 + random.standard_normal((6, 1)) for group in groups} for metric in (UP, DOWN)}
    found = study(sweep_of(scores), options)
    for hypothesis in options.hypotheses:
        assert judge(hypothesis, found) == judge(hypothesis, replace(found, blocks=())), hypothesis.id


def test_a_rate_out_of_bounds_is_not_kept() -> None:
    assert not Rate("", 100, 1000, most=0.05).kept and Rate("", 60, 1000, most=0.05).kept
    assert not Rate("", 900, 1000, least=0.93).kept and Rate("", 915, 1000, least=0.93).kept

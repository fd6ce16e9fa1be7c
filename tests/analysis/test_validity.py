"""The short form of benchmarks/validity.py: false positives and coverage, counted on seeded experiments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from analysis.findings.study import study
from analysis.findings.verdicts import judge
from analysis.spec.settings import settings
from benchmarks.validity import (
    CLAIMS,
    DOWN,
    RIVALS,
    UP,
    Rate,
    added_intervals,
    added_power,
    added_seeds,
    deciding_tests,
    efficiencies,
    equivalences,
    intervals,
    joints,
    means_of_skewed_seeds,
    noisy_maxima,
    single,
    stepwise,
    sweep_of,
    verdicts,
    winners,
    wordings,
)


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
    kept(verdicts(70 if cells == 1 else 30, n, luck, test, family, cells))


def test_hypotheses_on_hypotheses_find_nothing_where_nothing_is() -> None:
    kept(joints(14, 5, "normal"))


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_hold_the_truth(n: int) -> None:
    kept(intervals(120, n))


def test_a_verdict_rests_on_what_the_study_has_compared_as_on_its_own_comparisons() -> None:
    random, groups = np.random.default_rng(0), ("A", *RIVALS)
    asked = {name: {"claim": "It is so.", **claim} for name, claim in CLAIMS.items()}
    asked["any"] = {"claim": "So is one of them.", "kind": "any", "of": list(CLAIMS)}
    options = settings({"primary": {"metric": UP}, "hypotheses": asked}, groups=groups, baseline="A")
    scores = {metric: {group: 5 + random.standard_normal((6, 1)) for group in groups} for metric in (UP, DOWN)}
    found = study(sweep_of(scores), options)
    for hypothesis in options.hypotheses:
        assert judge(hypothesis, found) == judge(hypothesis, replace(found, blocks=())), hypothesis.id


def test_the_tests_that_decide_hold_their_level_on_luck_like_real() -> None:
    kept(deciding_tests(60, 4))


@pytest.mark.parametrize(("n", "test"), [(3, "paired_t"), (6, "signflip"), (5, "relabel")])
def test_one_claim_has_one_verdict_which_is_that_of_the_interval(n: int, test: str) -> None:
    kept(wordings(30, n, test))


def test_what_no_test_can_see_is_said_beside_the_verdict() -> None:
    found = kept(equivalences(60, 6))
    assert found[1].hits > 0  # the verdict is given, with its assumption


def test_a_maximum_is_never_better_and_the_largest_difference_seldom() -> None:
    assert kept(noisy_maxima(60, 10))[0].hits > 30  # of what a t test would say
    kept(winners(80, 5))


def test_looks_find_nothing_where_nothing_is_and_looking_without_a_design_does() -> None:
    found = kept(added_seeds(50, (1, 4)))
    usual = [rate.share for rate in found if "looked at after every seed" in rate.name]
    assert min(usual) > 0.12
    assert max(rate.share for rate in found if "futility ignored" in rate.name) > 0.04  # and the design is not idle


def test_looks_save_seeds_and_cost_little_power() -> None:
    found = {rate.name: rate for rate in kept(added_power(80))}
    assert found["seeds of 10 that were needed, 1.5 standard deviations, 1 methods"].most == 0.7
    assert found["better with 4 to 10 seeds, 1.5 standard deviations, 1 methods"].least is not None


def test_repeated_intervals_hold_where_the_seeds_end() -> None:
    kept(added_intervals(200))


def test_the_report_looks_as_the_simulated_design_does() -> None:
    kept(stepwise(25))


def test_efficiencies_of_cut_times_hold_where_their_test_does_not() -> None:
    found = {rate.name: rate for rate in kept(efficiencies(200, 10))}
    before = [rate.share for name, rate in found.items() if "by their test, collapsing" in name]
    assert min(before) < 0.7


def test_claims_about_one_group_say_what_they_rest_on() -> None:
    kept(means_of_skewed_seeds(60, 5))

"""Each method at its best level of a factor: which seeds choose, which judge, and what the report says of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from analysis.data import cells
from analysis.data.cells import Unchosen, Values
from analysis.spec.precheck import findable
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from tests.analysis.conftest import MakeSweep, refusal, studied
from tests.analysis.test_reports import ASKED, SECTIONS, built
from tests.wording import Worded

RATES = (0.1, 0.2, 0.3)


def test_the_first_half_of_the_seeds_chooses_for_all_groups() -> None:
    seeds = {"a": {4, 2, 0, 1, 3}, "b": {0, 1, 2, 3, 4}}
    assert cells.choosing(seeds, paired=True) == {"a": (0, 1), "b": (0, 1)}
    assert cells.choosing({"a": range(6), "b": range(2, 6)}, paired=True) == {"a": (2, 3), "b": (2, 3)}
    assert cells.choosing({"a": range(6), "b": range(6, 10)}, paired=True) == {"a": (0, 1, 2), "b": (6, 7)}
    assert cells.choosing({"a": range(6), "b": range(2, 6)}, paired=False) == {"a": (0, 1, 2), "b": (2, 3)}
    assert cells.choosing({"a": {7}}, paired=True) == {"a": ()}


def values_of(at: Mapping[float, list[float | None]], task: tuple[str, ...] = ("x",)) -> Values:
    return {
        (seed, (("lr", lr), ("task", name))): number
        for lr, of in at.items()
        for seed, number in enumerate(of)
        for name in task
    }


LOW, HIGH = (("lr", 0.1),), (("lr", 0.2),)


def test_a_group_is_judged_on_seeds_that_did_not_choose() -> None:
    values = values_of({0.1: [5, 5, 1, 2], 0.2: [4, 4, 9, 9]})
    found, lowest = (cells.best(values, ("lr",), (0, 1), sign) for sign in (1.0, -1.0))
    assert (found.choice.level, lowest.choice.level) == (LOW, HIGH)
    task = (("task", "x"),)
    assert found.kept.seeds == {2: {task: 1}, 3: {task: 2}} and set(found.kept.lost) == {0, 1}
    assert found.used == {(2, LOW + task), (3, LOW + task)}


def test_the_judging_seeds_have_no_say_in_the_choice() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        first = {lr: random.standard_normal(4).tolist() for lr in RATES}
        other = {lr: [*own[:2], *random.standard_normal(2).tolist()] for lr, own in first.items()}
        levels = [cells.best(values_of(at), ("lr",), (0, 1), 1.0).choice for at in (first, other)]
        assert levels[0] == levels[1] and levels[0] is not None and levels[0].level is not None


def test_levels_are_compared_in_the_cells_that_each_has_and_factors_of_a_zip_are_chosen_together() -> None:
    planned = [(lr, wd) for lr in (1, 2, 3) for wd in (0, 1) if (lr, wd) != (3, 1)]  # excluded
    height = {(1, 0): 5, (2, 0): 6, (3, 0): 7, (1, 1): 99, (2, 1): 1}
    values = {(seed, (("lr", lr), ("wd", wd))): float(height[lr, wd]) for seed in range(4) for lr, wd in planned}
    found = cells.best(values, ("lr",), (0, 1), 1.0)
    assert found.choice.level == (("lr", 3),) and not found.choice.lacking
    assert found.kept.seeds == {seed: {(("wd", 0),): 7.0} for seed in (2, 3)}
    gone = {place: None if place[1] == (("lr", 3), ("wd", 0)) else value for place, value in values.items()}
    found = cells.best(gone, ("lr",), (0, 1), 1.0)
    assert (found.choice.level, found.choice.lacking) == ((("lr", 2),), ((("lr", 3),),))
    zipped = {(seed, (("bs", bs), ("lr", lr), ("task", task))): lr % 3 * 1.0
              for seed in range(4) for lr, bs in ((1, 32), (2, 32), (3, 64)) for task in "xy"}  # fmt: skip
    found = cells.best(zipped, ("lr",), (0, 1), 1.0)
    assert found.choice.level == (("bs", 32), ("lr", 2)) and {*found.kept.cells} == {(("task", "x"),), (("task", "y"),)}


@pytest.mark.parametrize(
    ("at", "seeds", "sign", "reason"),
    [({0.1: [1, 2], 0.2: [3, 4]}, (0,), None, Unchosen.NO_DIRECTION),
     ({0.1: [1], 0.2: [3]}, (), 1.0, Unchosen.ONE_SEED),
     ({0.1: [None, 2], 0.2: [None, 4]}, (0,), 1.0, Unchosen.NO_LEVEL)],
)  # fmt: skip
def test_without_a_choice_the_group_stays_averaged_for_a_reason(
    at: Mapping[float, list[float | None]], seeds: tuple[int, ...], sign: float | None, reason: Unchosen
) -> None:
    found = cells.best(values_of(at), ("lr",), seeds, sign)
    assert (found.choice.level, found.choice.reason) == (None, reason)
    assert {seed: set(own) for seed, own in found.kept.seeds.items()} == {
        seed: {(("lr", lr), ("task", "x")) for lr in at} for seed in range(len(at[0.1])) if at[0.1][seed] is not None
    }


def test_a_level_with_gaps_in_the_choosing_seeds_is_not_chosen() -> None:
    found = cells.best(values_of({0.1: [9, None, 1, 1], 0.2: [2, 2, 3, 3]}), ("lr",), (0, 1), 1.0)
    assert (found.choice.level, found.choice.lacking) == (HIGH, (LOW,))


def test_the_choice_averages_the_other_factors() -> None:
    values = {
        (seed, (("lr", lr), ("task", task))): number
        for seed in range(4)
        for (lr, task), number in {(0.1, "x"): 9.0, (0.1, "y"): 0.0, (0.2, "x"): 5.0, (0.2, "y"): 5.0}.items()
    }
    found = cells.best(values, ("lr",), (0, 1), 1.0)
    assert found.choice.level == HIGH
    assert found.kept.seeds[3] == {(("task", "x"),): 5.0, (("task", "y"),): 5.0}


@pytest.mark.parametrize("select", [{"lrs": "best"}, {"lr": "worst"}])
def test_a_choice_that_is_not_possible_is_refused_with_the_fix(
    make_sweep: MakeSweep, select: Mapping[str, str], worded: Worded
) -> None:
    folder = built(make_sweep, SECTIONS["the best level"])
    worded(refusal(BadPlan, lambda: studied(folder, select=select)))


@pytest.mark.parametrize("pairing", ["seed", "none"])
def test_the_plan_counts_the_seeds_that_judge(pairing: str) -> None:
    seeds = {"a": range(11), "b": range(11)}
    for select, n in (({}, 11), ({"lr": "best"}, 6)):
        found = findable(settings({**ASKED, "pairing": pairing, "select": select}), seeds, "a")
        assert found is not None and found.seeds == n

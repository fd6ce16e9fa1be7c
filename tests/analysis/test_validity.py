"""The short form of benchmarks/validity.py: false positives and coverage, counted on seeded experiments."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from analysis.findings.study import study
from analysis.findings.verdicts import judge
from analysis.spec.settings import settings
from benchmarks import validity
from benchmarks.validity import CLAIMS, DOWN, POOLS, PROFILES, RIVALS, TIMES, UP, Rate, sweep_of

#: A function of benchmarks/validity.py with its arguments, of which the first is the number of experiments.
KEPT: list[tuple[Any, ...]] = [
    *(("single", 600, n, luck) for n in (3, 5) for luck in ("normal", "skewed")),
    ("verdicts", 70, 5, "normal", "paired_t", "holm", 1),
    ("verdicts", 30, 6, "skewed", "signflip", "max_t", 3),
    ("verdicts", 70, 6, "normal", "signflip", "holm", 1),
    ("joints", 14, 5, "normal"),
    *(("intervals", 120, n) for n in (3, 5)),
    ("intervals", 60, 3, "collapses in 10%"),
    ("intervals", 60, 2, "real", 25.0),
    ("all_pairs", 30, 3, "paired_t", "holm"),
    ("all_pairs", 20, 7, "signflip", "max_t"),
    ("deciding_tests", 60, 4),
    *(("wordings", 30, n, test) for n, test in ((3, "paired_t"), (6, "signflip"), (5, "relabel"))),
    ("equivalences", 60, 6),
    ("winners", 80, 5),
    ("added_intervals", 200),
    ("stepwise", 25),
    ("means_of_skewed_seeds", 60, 5),
]
#: Simulations of which an earlier method, or looking without a design, breaks the promise: the shares of the rates with
#: these words in their names. So the simulation would see the fault.
CAUGHT: list[tuple[tuple[Any, ...], int | None, str, float, float]] = [
    *((("times", 200, n), len(TIMES), "", 0.0, 0.6) for n in (3, 10)),
    *((("mean_bands", 60, n), len(POOLS), "", 0.0, 0.6) for n in (3, 10)),
    *((("profiles", 40, n), 2 * len(PROFILES), "point of a profile, bootstrap", 0.0, 0.9) for n in (3, 10)),
    *((("best_levels", 300, n, "normal", validity.normal, 0), None, "on the same seeds", 0.06, 1.0) for n in (5, 10)),
    (("added_seeds", 50, (1, 4)), None, "looked at after every seed", 0.12, 1.0),
    (("added_seeds", 50, (1, 4)), None, "futility ignored", 0.02, 1.0),
    (("efficiencies", 200, 10), None, "by their test, collapsing", 0.0, 0.7),
    (("noisy_maxima", 60, 10), None, "", 0.5, 1.0),
    (("beside_rliable", 80, 3, 150), 1, "rliable's", 0.7, 0.93),
]


@cache
def simulated(function: str, *given: Any) -> list[Rate]:
    found = list(getattr(validity, function)(*given))
    assert [rate for rate in found if not rate.kept] == []
    return found


@pytest.mark.simulation
@pytest.mark.parametrize("case", KEPT, ids=lambda case: " ".join(map(str, case)))
def test_a_promise_is_kept(case: tuple[Any, ...]) -> None:
    found = simulated(*case)
    assert case[0] != "single" or sum(rate.hits for rate in found) > 0  # and the tests are not dead
    assert case[0] != "equivalences" or found[1].hits > 0  # the verdict is given, with its assumption


@pytest.mark.simulation
@pytest.mark.parametrize(("case", "count", "words", "least", "most"), CAUGHT, ids=lambda value: str(value)[:40])
def test_a_promise_is_kept_that_an_earlier_method_breaks(
    case: tuple[Any, ...], count: int | None, words: str, least: float, most: float
) -> None:
    found = simulated(*case)
    assert count is None or sum(not rate.before for rate in found) == count
    earlier = [rate.share for rate in found if (rate.before or words) and words in rate.name]
    assert any(least <= share < most for share in earlier)


def test_a_verdict_rests_on_what_the_study_has_compared_as_on_its_own_comparisons() -> None:
    random, groups = np.random.default_rng(0), ("A", *RIVALS)
    asked = {name: {"claim": "It is so.", **claim} for name, claim in CLAIMS.items()}
    asked["any"] = {"claim": "So is one of them.", "kind": "any", "of": list(CLAIMS)}
    options = settings({"primary": {"metric": UP}, "hypotheses": asked}, groups=groups, baseline="A")
    scores = {metric: {group: 5 + random.standard_normal((6, 1)) for group in groups} for metric in (UP, DOWN)}
    found = study(sweep_of(scores), options)
    for hypothesis in options.hypotheses:
        assert judge(hypothesis, found) == judge(hypothesis, replace(found, blocks=())), hypothesis.id


def test_the_table_has_a_line_for_each_interval_and_a_column_for_each_number_of_seeds() -> None:
    found = simulated("intervals", 120, 3)
    lines = list(validity.table([*found, Rate("something else, n = 3", 1, 2)]))
    assert len(lines) == len(found)
    (line,) = (line for line in lines if line.endswith("IQM: normal"))
    assert line.split()[:4] == ["-", f"{next(rate.share for rate in found if 'IQM' in rate.name):.3f}", "-", "-"]


@pytest.mark.simulation
def test_looks_save_seeds_and_cost_little_power() -> None:
    found = {rate.name: rate for rate in simulated("added_power", 80)}
    assert found["seeds of 10 that were needed, 1.5 standard deviations, 1 methods"].most == 0.7
    assert found["better with 4 to 10 seeds, 1.5 standard deviations, 1 methods"].least is not None

"""The first lines of a report: what they say of which runs, and of what was not compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.findings.outcomes import Outcome, Reason
from analysis.findings.verdicts import judge
from analysis.report.headline import Answer, answer
from analysis.stats import power, t_test
from analysis.tables.comparison import main as main_table
from analysis.tables.comparison import missing
from launcher import files
from tests.analysis.conftest import Lines, MakeSweep, block_of, logging, studied, without
from tests.wording import Worded

UP = "a/up"
ASKED = {"primary": {"metric": UP, "direction": "higher"}}


def level(heights: Mapping[str, Mapping[int, float]]) -> Any:
    """Lines of runs that stand at heights[group][seed] at each of 20 steps."""

    lines = logging(lambda group, seed, cell, step: heights[group][seed])

    return lines


def said(folder: Path) -> Answer:
    return answer(studied(folder))


def test_a_run_without_a_value_of_the_question_is_missing_above_all_tables(make_sweep: MakeSweep) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        steps = 12 if (group, seed) == ("B", 0) else 20
        made: Lines = [{"step": step, "attempt": 1, UP: 1.0 + seed} for step in range(1, steps + 1)]
        if (group, seed) == ("C", 2):
            made[4][UP] = math.inf
        return made if group != "D" else [{"step": step, "attempt": 1, "a/other": 0.0} for step in range(1, 21)]

    found = studied(make_sweep(("A", "B", "C", "D"), steps=20, analysis=ASKED, lines=lines))
    gaps = answer(found).gaps
    assert [gap.split(" (runs/")[0] for gap in gaps] == [
        "B, seed 0: a/up ends at step 12 of 20",
        "C, seed 2: infinite at 5",
    ]  # D does not record it at all, which is no gap
    table = missing(found)
    assert table is not None and [row[1:] for row in table.rows] == [
        ("done", "done", "done"),
        ("no value", "done", "done"),
        ("done", "done", "no value"),
        ("done", "done", "done"),
    ]


TWO = {"A": [2.0, 2.1], "B": [1.0, 1.2]}
THREE = {**TWO, "C": [9.0, 9.1]}
ALIKE = {group: [2.0, 2.1] for group in "ABC"}
LUCK = np.linspace(0.0, 0.1, 6)
RISING = {"A": LUCK, "B": 1 + LUCK**2, "C": 1.1 - LUCK**3}
UNDECIDED = {"A": [0.0] * 6, "B": [0.4, *(0.3 * (-1) ** seed for seed in range(1, 6))], "C": [0.1, -0.1] * 3}
#: By name: the heights of each group by seed, what else is asked, the runs that are gone, and other keys of the plan.
ANSWERS: dict[str, tuple[Mapping[str, Any], dict[str, Any], list[str], dict[str, Any]]] = {
    "a pair is missing": ({"A": [1.0, 50.0, 3.0], "B": [1.5, 0.0, 3.5]}, {}, ["B-1"], {}),
    "the best of two is not decided": (THREE, {}, [], {}),
    "a method has no run": (THREE, {}, ["C-0", "C-1"], {}),
    "decided": (TWO, {}, [], {}),
    "no baseline": (TWO, {}, [], {"baseline": None}),
    "the baseline has no run": (ALIKE, {}, ["A-0", "A-1"], {}),
    "one run": ({"A": [2.0]}, {}, [], {}),
    "p is 1": (UNDECIDED, {}, [], {}),
    "max_t, signflip": (RISING, {"family": "max_t", "test": "signflip"}, [], {}),
    "holm, paired_t": (RISING, {"family": "holm", "test": "paired_t"}, [], {}),
    "holm, signflip": (RISING, {"family": "holm", "test": "signflip"}, [], {}),
    "no direction": (TWO, {"primary": {"metric": UP}}, [], {}),
    "less is better": (TWO, {"primary": {"metric": UP, "direction": "lower"}}, [], {}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_says_what_is_compared_how_sure_it_is_and_what_is_not(
    make_sweep: MakeSweep, name: str, worded: Worded
) -> None:
    by_group, more, gone, plan = ANSWERS[name]
    heights = {group: dict(enumerate(map(float, values))) for group, values in by_group.items()}
    asked = {**ASKED, **more}
    folder = make_sweep(tuple(heights), range(len(heights["A"])), steps=20, analysis=asked, lines=level(heights))
    for run in gone:
        without(folder, run)
    files.write_json(folder / "plan.json", {**json.loads((folder / "plan.json").read_text()), **plan})
    found = said(folder)
    worded([found.question, found.result, found.certainty, *found.limits, found.cost])


def test_reached_counts_the_runs_that_the_mean_is_of(make_sweep: MakeSweep) -> None:
    lines = logging(lambda group, seed, cell, step: step * cell["pace"])

    cells = [{"pace": 0.1}, {"pace": 1.0}, {"pace": 2.0}]
    asked = {"primary": {**ASKED["primary"], "summary": "time_to"}, "time_to": [{"metric": UP, "at": 5.0}], "window": 1}
    folder = make_sweep(("A", "B"), steps=20, analysis=asked, lines=lines, cells={"A": cells, "B": cells})
    without(folder, "B-1-0")  # the slow cell, of which B then has two runs
    found = studied(folder)
    assert [estimate.reached for estimate in found.primary.estimates] == [(6, 9), (6, 8)]
    assert [estimate.mean for estimate in found.primary.estimates] == pytest.approx([27.5 / 3, 27.5 / 3])
    (comparison,) = found.primary.comparisons  # on the runs whose seed and cell both have
    assert comparison.reached == ((6, 8), (6, 8)) and comparison.times_cut == (2, 2)
    assert "B 9.17 (reached 6 of 8), A 9.17 (reached 6 of 8)." in answer(found).result


@pytest.mark.parametrize("seeds", [20, 21])
def test_flips_that_are_drawn_are_said_to_be_so(make_sweep: MakeSweep, seeds: int) -> None:
    heights = {"A": dict.fromkeys(range(seeds), 0.0), "B": {seed: 1.0 + seed for seed in range(seeds)}}
    asked = {**ASKED, "test": "signflip"}
    found = studied(make_sweep(("A", "B"), range(seeds), steps=20, analysis=asked, lines=level(heights)))
    assert any("100000 sign patterns are drawn" in note for note in main_table(found).notes) == (seeds > 20)


@pytest.mark.parametrize(
    ("n", "test", "few", "disagrees"),
    [(2, "paired_t", True, True), (3, "paired_t", True, True), (3, "welch", True, True), (4, "paired_t", False, True),
     (5, "paired_t", False, True), (6, "paired_t", False, False), (4, "welch", False, False),
     (6, "signflip", False, False)],
)  # fmt: skip
def test_a_decision_of_few_seeds_says_on_what_it_rests(
    make_sweep: MakeSweep, n: int, test: str, few: bool, disagrees: bool
) -> None:
    heights = {"A": {s: 1 + 0.001 * s * s for s in range(n)}, "B": {s: 2 + 0.002 * s for s in range(n)}}
    claims = {
        "ratio": {"claim": "x", "kind": "ratio", "group": "B", "metric": UP, "at_least": 1.0},
        "greater": {"claim": "x", "kind": "greater", "group": "B", "metric": UP},
        "extreme": {"claim": "x", "kind": "extreme", "group": "A", "metric": UP, "which": "least"},
        "all": {"claim": "x", "kind": "all", "of": ["ratio", "greater"]},
    }
    asked = {**ASKED, "test": test, "pairing": "none" if test == "welch" else "seed", "hypotheses": claims}
    found = studied(make_sweep(("A", "B"), range(n), steps=20, analysis=asked, lines=level(heights)))
    first, why = answer(found).result.partition(": ")[0], answer(found).certainty
    if_normal = f", if the {'values' if test == 'welch' else 'differences'} of {n} seeds are normal"
    assert first == f"B is better than A in the final value of a/up{if_normal if few else ''}"
    assert ("The two tests disagree" in why) == disagrees and why.startswith("This holds at alpha = 0.05 by ")
    assert main_table(found).rows[1][-1] == f"better than A{if_normal if few else ''}"
    for verdict in (judge(hypothesis, found) for hypothesis in found.settings.hypotheses):
        assert verdict.verdict == "supported"
        assert (Reason.FEW_SEEDS in {ground.reason for ground in verdict.grounds}) == few


@pytest.mark.parametrize("direction", ["higher", "lower"])
@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("rising", [True, False])
def test_a_best_value_is_never_worse_than_the_final_one(
    make_sweep: MakeSweep, rising: bool, every: int, direction: str
) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        return [{"step": step, UP: float(step if rising else -step)} for step in range(every, 31, every)]

    asked = {"primary": {"metric": UP, "direction": direction}}
    found = studied(make_sweep(("A", "B"), steps=30, analysis=asked, lines=lines))
    best, final = (block_of(found, UP, summary).estimate("A").mean for summary in ("best", "final"))
    assert best is not None and final is not None
    assert best >= final if direction == "higher" else best <= final


@pytest.mark.parametrize("decided", [True, False])
def test_the_best_method_is_named_only_when_the_test_has_decided(make_sweep: MakeSweep, decided: bool) -> None:
    luck = np.array([0.1, -0.2, 0.3, -0.1, 0.2, 0.4])
    heights = {"A": dict(enumerate(0 * luck)), "B": dict(enumerate(luck)), "C": dict(enumerate(luck[::-1] / 2))}
    heights["C"] = {seed: value + decided for seed, value in heights["C"].items()}
    found = studied(make_sweep(("A", "B", "C"), range(6), steps=20, analysis=ASKED, lines=level(heights)))
    result = answer(found).result
    leader = "C" if decided else "B"
    assert result.startswith(
        "C is better than A in the final value of a/up, with the largest difference among 2: +"
        if decided
        else "The largest difference in the final value of a/up, chosen among 2, is that of B, and it is not decided: +"
    )
    comparison = found.primary.comparison(leader)
    assert comparison is not None and (comparison.outcome is Outcome.HIGHER) == decided
    assert comparison.level == 0.025  # the first of two that Holm's method asks
    low, high = t_test.t_interval(np.subtract(comparison.a, comparison.b), 0.025) or (0.0, 0.0)
    shown = result.split("+")[1].split("]")[0].split(" [")[1].split(", ")
    assert (float(shown[0]), float(shown[1])) == (pytest.approx(low, abs=0.01), pytest.approx(high, abs=0.01))
    assert "Bonferroni" not in result  # which is the same level


@pytest.mark.parametrize("family", ["holm", "bh", "max_t"])
def test_the_power_is_at_the_level_at_which_the_family_asks(make_sweep: MakeSweep, family: str) -> None:
    """Of four methods one is better. Holm's and Benjamini and Hochberg's least level is alpha / 4 then."""
    random = np.random.default_rng(4)
    heights = {group: dict(enumerate(random.standard_normal(10))) for group in "ABCDE"}
    heights["C"] = {seed: value + 4 for seed, value in heights["C"].items()}
    asked = {**ASKED, "family": family}
    found = studied(make_sweep(tuple("ABCDE"), range(10), steps=20, analysis=asked, lines=level(heights)))
    leader = found.primary.comparison("C")
    assert leader is not None and leader.outcome is Outcome.HIGHER
    least = min(comparison.level for comparison in found.primary.comparisons)
    assert least == 0.0125 if family != "max_t" else 0.005 < least < 0.05
    effect = power.detectable(leader.contrast.test, 10, least)
    (line,) = [line for line in answer(found).limits if line.startswith("10 pairs of seeds: ")]
    assert f"with 80% power a true difference of {effect:.2g} standard deviations" in line
    assert f"at the level {least:.2g} " in line
    assert effect is not None and effect > (power.detectable(leader.contrast.test, 10, 0.05) or 9)

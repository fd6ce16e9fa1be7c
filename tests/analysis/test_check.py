"""Hypotheses before there are results: what a plan is told of them, and whether they were declared before."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from analysis.data.sweep import read_sweep
from analysis.findings.study import Outcome, study
from analysis.findings.verdicts import judge
from analysis.spec.declaration import Declaration, registration
from analysis.spec.precheck import findable, findable_hypotheses, undecidable, undecidable_primary
from analysis.spec.settings import settings
from analysis.stats import boundary, detectable, dispersion, looks
from analysis.stats.resolution import smallest_p
from tests.analysis.conftest import MakeSweep, logging

METRIC = "a/up"
FAR = {"A": 0.0, "B": 100.0, "C": 200.0}
NOISE = np.array([0.0, 0.3, -0.2, 0.5, -0.4, 0.1, 0.2])


def height(group: str, seed: int, cell: Any, step: int) -> float:
    return (FAR[group] + NOISE[seed] * (1 if group == "B" else 2)) * min(1.0, (step + seed) / 30)


@pytest.mark.parametrize("seeds", [1, 2, 5, 6, 7])
def test_what_is_undecidable_stays_undecided_however_large_the_difference(make_sweep: MakeSweep, seeds: int) -> None:
    about = {"group": "B", "metric": METRIC}
    hypotheses = {
        "more": {"claim": "x", "kind": "greater", **about},
        "earlier": {"claim": "x", "kind": "less", "summary": "time_to", "at": 50, **about},
        "within": {"claim": "x", "kind": "range", "low": 90, "high": 110, **about},
        "both": {"claim": "x", "kind": "all", "of": ["more", "within"]},
    }
    sweep = read_sweep(make_sweep(("A", "B", "C"), seeds=tuple(range(seeds)), steps=60, lines=logging(height, 60)))
    for family, test in product(("max_t", "holm", "bh"), ("paired_t", "signflip", "wilcoxon")):
        asked = {"primary": {"metric": METRIC}, "test": test, "family": family, "hypotheses": hypotheses}
        found = study(sweep, settings(asked, groups=sweep.groups, baseline=sweep.baseline))
        foreseen = {one.id: one for one in undecidable(found.settings, {group: list(range(seeds)) for group in FAR})}
        assert "both" not in foreseen
        for hypothesis in found.settings.hypotheses[:3]:
            verdict, one = judge(hypothesis, found), foreseen.get(hypothesis.id)
            if one is None:
                expected = "not judged" if hypothesis.id == "within" else "supported"
                assert verdict.verdict == expected, (family, test, verdict)
            else:
                assert verdict.verdict in ("inconclusive", "not evaluable") and one.seeds == seeds
                grounds = [*verdict.grounds, *(c.ground for c in verdict.comparisons if c.ground)]
                assert one.needed in [ground.needed for ground in grounds] or seeds == 1, (family, test, verdict)


@pytest.mark.parametrize("alpha", [0.05, 0.18, 0.19])
def test_a_spread_of_too_few_seeds_stays_undecided(alpha: float) -> None:
    claim = {"claim": "x", "kind": "spread", "group": "B", "metric": METRIC, "at_most": 1.0}
    asked = settings({"alpha": alpha, "hypotheses": {"H": claim}}, groups=("A", "B"), baseline="A")
    for n, far in ((2, [1, 2]), (3, [1, 2, 3]), (4, [0, 0, 1.01, 1])):
        foreseen = undecidable(asked, {"A": range(n), "B": range(n)})
        found = dispersion.against(1000 + np.array(far) / 10, 1000 + 1e-9 * np.roll(far, 1), 1.0, alpha).interval
        assert bool(foreseen) == (found is None or found[0] < 0 < found[1]), n
        assert all(one.needed == (3 if alpha > 0.185 else 4) for one in foreseen)


def test_only_seeds_that_both_groups_have_count() -> None:
    claim = {"claim": "x", "kind": "greater", "group": "B", "metric": METRIC}
    asked = {"test": "paired_t", "family": "holm", "hypotheses": {"H": claim}}
    found = settings(asked, groups=("A", "B"), baseline="A")
    (one,) = undecidable(found, {"A": [0, 1, 2], "B": [2, 3, 4]})
    assert (one.seeds, one.needed) == (1, 2)
    assert not undecidable(found, {"A": [0, 1, 2], "B": [1, 2, 3]})


@pytest.mark.parametrize("summary", ["final", "time_to"])
@pytest.mark.parametrize("seeds", [1, 2, 5, 6, 7])
def test_the_primary_question_is_foreseen_as_its_report_will_find_it(
    make_sweep: MakeSweep, seeds: int, summary: str
) -> None:
    # no two groups have differences that are equal in all seeds, which no t test can judge
    scattered = logging(lambda group, seed, *at: height(group, seed, *at) + NOISE[seed] * (group == "C"), 60)
    sweep = read_sweep(make_sweep(("A", "B", "C"), seeds=tuple(range(seeds)), steps=60, lines=scattered))
    primary = {"metric": METRIC, "summary": summary, "direction": "higher"}
    for family, test in product(("max_t", "holm", "bh"), ("paired_t", "signflip", "wilcoxon")):
        asked = {"primary": primary, "time_to": [{"at": 50}], "window": 1, "test": test, "family": family}
        block = study(sweep, settings(asked, groups=sweep.groups, baseline=sweep.baseline)).primary
        own = {group: list(range(seeds)) for group in FAR}
        foreseen = undecidable_primary(settings(asked, groups=sweep.groups, baseline=sweep.baseline), own, "A")
        open_ones = {c.group for c in block.comparisons if c.outcome in (Outcome.INCONCLUSIVE, Outcome.NOT_EVALUABLE)}
        assert open_ones == set(foreseen.groups if foreseen else ()), (family, test)
        if foreseen and foreseen.smallest_p is not None and seeds > 1:
            assert foreseen.smallest_p == min(c.adjusted for c in block.comparisons if c.adjusted is not None)


def test_without_a_baseline_there_is_no_question_of_seeds() -> None:
    assert undecidable_primary(settings({}, groups=("A", "B")), {"A": [0], "B": [0]}, None) is None


@pytest.mark.parametrize(
    ("section", "seeds", "design"),
    [({}, {group: range(5) for group in FAR}, ("paired_t", True, 5, 0.025, 2, 2)),
     ({"test": "signflip"}, {group: range(5) for group in FAR}, ("signflip", True, 5, 0.025, 2, 7)),
     ({"pairing": "none"}, {"A": range(6), "B": range(10, 15)}, ("welch", False, 5, 0.05, 1, 2))],
)  # fmt: skip
def test_what_the_seeds_can_find_is_what_the_test_that_decides_can(section: Any, seeds: Any, design: Any) -> None:
    test, paired, n, level, comparisons, needed = design
    about = {"claim": "x", "group": "B", "against": "A", "metric": METRIC}
    claims = {
        "more": {**about, "kind": "greater"}, "fast": {**about, "kind": "ratio", "summary": "efficiency", "at": 0.5,
                                                       "at_least": 2}, "near": {**about, "kind": "spread", "at_most": 2}
    }  # fmt: skip
    asked = settings({**section, "hypotheses": claims}, groups=list(seeds), baseline="A")
    primary, of_claims = findable(asked, seeds, "A"), findable_hypotheses(asked, seeds)
    assert primary is not None and primary == of_claims["more"] and list(of_claims) == ["more", "fast"]
    assert (primary.test, primary.paired, primary.seeds) == (test, paired, n)
    assert (primary.level, primary.comparisons, primary.needed) == (level, comparisons, needed)
    assert primary.effect == detectable(test, n, level)
    assert of_claims["fast"].test == ("signflip" if paired else "relabel")


ONE, OTHER = {"claim": "It is so.", "low": 1}, {"claim": "It is so.", "low": 2}


@pytest.mark.parametrize(
    ("declarations", "found"),
    [
        # what stands in the first declaration was declared before
        ([({"H1": ONE, "H2": ONE}, []), ({"H1": ONE, "H2": OTHER, "H3": ONE}, ["a", "b", "c"])],
         {"H1": (0, 4), "H2": (3, 4), "H3": (3, 4), "H4": (4, 4)}),
        ([({"H1": ONE}, ["a"])], {"H1": (1, 4)}),  # beside results: not before
        ([({"H1": ONE}, []), ({"H1": OTHER}, []), ({"H1": ONE}, ["a"])], {"H1": (1, 4)}),  # the last before results
    ],
)  # fmt: skip
def test_a_hypothesis_was_declared_with_as_many_runs_done_as_stand_beside_it(declarations: Any, found: Any) -> None:
    said = [{"hash": "h", "time": 0, "planned": 4, "done": done, "hypotheses": given} for given, done in declarations]
    hypotheses = {name: OTHER if name == "H2" else ONE for name in found}
    record = registration(said, {"command": "", "analysis": {"hypotheses": hypotheses}}, Declaration(4, 4))
    assert record is not None and record.plan is record.declared is None
    assert {name: record.declaration_of(name) for name in found} == found


def test_without_a_declaration_nothing_is_recorded() -> None:
    assert registration([], {"command": "", "analysis": {}}, Declaration(0, 4)) is None


@pytest.mark.parametrize(
    ("rule", "test", "groups", "needed"),
    [
        ((4, 2, 6), "signflip", 2, 8), ((4, 1, 7), "wilcoxon", 2, 8), ((4, 2, 8), "signflip", 2, None),
        ((6, 1, 7), "signflip", 2, None),  # its first look can decide, its last cannot
        ((4, 2, 8), "signflip", 3, None), ((4, 2, 8), "signflip", 9, 10), ((4, 1, 5), "paired_t", 9, None),
        ((3, 1, 4), "relabel", 2, 5),
    ],
)  # fmt: skip
def test_a_rule_can_decide_if_some_look_can(rule: Any, test: str, groups: int, needed: int | None) -> None:
    start, batch, most = rule
    claim = {"claim": "x", "group": "1", "metric": METRIC}
    claims = {
        "more": {**claim, "kind": "greater", "against": "0"},
        "best": {**claim, "kind": "extreme", "which": "least"},
    }
    asked = {"test": test, "pairing": "none" if test == "relabel" else "seed", "hypotheses": claims}
    asked["sequential"] = {"start": start, "batch": batch, "max": most, "until": "decided"}
    seeds = {str(group): range(start) for group in range(groups)}
    found = settings(asked, groups=[*seeds], baseline="0")
    primary = undecidable_primary(found, seeds, "0")
    levels = boundary(test, looks(*rule), 0.05 / (groups - 1))
    assert any(smallest_p(test, n) <= at for n, at in zip(looks(*rule), levels, strict=True)) == (needed is None)
    assert (primary and primary.needed) == needed
    assert [one.needed for one in undecidable(found, seeds) if one.id == "more"] == ([needed] if needed else [])

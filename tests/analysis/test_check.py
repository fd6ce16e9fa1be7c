"""What a plan is told of its hypotheses before anything runs is what its report will say of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from analysis.data.sweep import read_sweep
from analysis.findings.outcomes import Outcome
from analysis.findings.study import study
from analysis.findings.verdicts import judge
from analysis.spec.precheck import undecidable, undecidable_primary
from analysis.spec.settings import settings
from analysis.stats import dispersion
from tests.analysis.conftest import Lines, MakeSweep

METRIC = "a/up"
FAR = {"A": 0.0, "B": 100.0, "C": 200.0}
NOISE = np.array([0.0, 0.3, -0.2, 0.5, -0.4, 0.1, 0.2])


def lines(group: str, seed: int, cell: Any) -> Lines:
    top = FAR[group] + NOISE[seed] * (1 if group == "B" else 2)
    return [{"step": step, "attempt": 1, METRIC: top * min(1.0, (step + seed) / 30)} for step in range(1, 61)]


@pytest.mark.parametrize("seeds", [1, 2, 5, 6, 7])
def test_what_is_undecidable_stays_undecided_however_large_the_difference(make_sweep: MakeSweep, seeds: int) -> None:
    about = {"group": "B", "metric": METRIC}
    hypotheses = {
        "more": {"claim": "x", "kind": "greater", **about},
        "earlier": {"claim": "x", "kind": "less", "summary": "time_to", "at": 50, **about},
        "within": {"claim": "x", "kind": "range", "low": 90, "high": 110, **about},
        "both": {"claim": "x", "kind": "all", "of": ["more", "within"]},
    }
    sweep = read_sweep(make_sweep(("A", "B", "C"), seeds=tuple(range(seeds)), steps=60, lines=lines))
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
    asked = {"test": "paired_t", "family": "holm"}
    claim = {"claim": "x", "kind": "greater", "group": "B", "metric": METRIC}
    found = settings({**asked, "hypotheses": {"H": claim}}, groups=("A", "B"), baseline="A")
    (one,) = undecidable(found, {"A": [0, 1, 2], "B": [2, 3, 4]})
    assert (one.seeds, one.needed) == (1, 2)
    assert not undecidable(found, {"A": [0, 1, 2], "B": [1, 2, 3]})


@pytest.mark.parametrize("summary", ["final", "time_to"])
@pytest.mark.parametrize("seeds", [1, 2, 5, 6, 7])
def test_the_primary_question_is_foreseen_as_its_report_will_find_it(
    make_sweep: MakeSweep, seeds: int, summary: str
) -> None:
    def scattered(group: str, seed: int, cell: Any) -> Lines:
        """As `lines`, but no two groups have differences that are equal in all seeds, which no t test can judge."""
        extra = NOISE[seed] if group == "C" else 0.0
        return [{**line, METRIC: line[METRIC] + extra} for line in lines(group, seed, cell)]

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

"""Comparisons that are looked at while seeds are added: which seeds a look has, and where each comparison stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.findings.interim import Status
from analysis.findings.outcomes import Outcome, Reason
from analysis.findings.study import Comparison, Study, study
from analysis.findings.verdicts import judge
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from analysis.stats import Contrast, Look, boundary, paired, spending
from analysis.tables import wording
from benchmarks.validity import UP, sweep_of
from tests.analysis.conftest import ANALYSIS, MakeSweep, refusal
from tests.analysis.test_reports import luck
from tests.wording import Worded

RULE = {"start": 4, "batch": 2, "max": 10, "until": "decided"}
SIZES = (4, 6, 8, 10)
ALPHA = 0.05


def studied(
    values: Mapping[str, Sequence[float]], states: Mapping[tuple[str, int], str] | None = None, **section: Any
) -> Study:
    """An experiment with one value for each seed of a group, the baseline first. states: of runs without a value."""
    most = max(map(len, values.values()))
    own = {group: np.array([*given, *[0.0] * (most - len(given))])[:, None] for group, given in values.items()}
    whole = sweep_of({UP: own})
    runs = [run for run in whole.runs if run.seed < len(values[run.group])]
    for place, run in enumerate(runs):
        if state := (states or {}).get((run.group, run.seed)):
            runs[place] = replace(run, state=state, problem=state, curves=replace(run.curves, values={}))
    asked = {"primary": {"metric": UP, "direction": "higher"}, "sequential": RULE, **section}
    sweep = replace(whole, runs=tuple(runs), plan={**whole.plan, "analysis": asked})
    return study(sweep, settings(asked, groups=sweep.groups, baseline=sweep.baseline))


def compared(found: Study, group: str = "B") -> Comparison:
    comparison = found.primary.comparison(group)
    assert comparison is not None
    return comparison


def lawful(found: Study) -> None:
    """The interval excludes zero exactly where the adjusted p is at most alpha, and the outcome says so."""
    for block in found.blocks:
        for comparison in block.comparisons:
            if comparison.adjusted is None or comparison.interval is None:
                continue
            low, high = comparison.interval
            decided = comparison.outcome in (Outcome.HIGHER, Outcome.LOWER)
            assert (low > 0 or high < 0) == decided == (comparison.adjusted <= ALPHA)


def test_a_comparison_is_asked_at_the_level_of_its_look() -> None:
    a, b = luck(1, 6), [x + 1.0 + y for x, y in zip(luck(1, 6), luck(2, 6, 0.4), strict=True)]
    comparison = compared(studied({"A": a, "B": b}))
    usual, level = paired(b, a), boundary("paired_t", SIZES)[1]
    assert usual.p_t is not None and usual.p_t < level
    look = Look("paired_t", ((4, 4), (6, 6)), spending(SIZES)[:2])
    assert comparison.p == look.p(usual.p_t) > usual.p_t
    assert comparison.interval == Contrast("paired_t", np.array(b), np.array(a)).interval(level)
    assert comparison.standing is not None
    assert comparison.standing.look == 2 and comparison.standing.seeds == 6
    assert comparison.standing.level == pytest.approx(level)
    assert comparison.outcome is Outcome.HIGHER and comparison.standing.status is Status.DECIDED


def test_what_is_decided_at_a_look_is_not_undone_by_seeds_that_come_after_it() -> None:
    a = luck(3, 10, 0.1)
    b = [x + 2 for x in luck(4, 6, 0.1)] + [-5.0, -6.0, -4.0, -7.0]
    comparison = compared(studied({"A": a, "B": b}))
    assert comparison.outcome is Outcome.HIGHER and comparison.n == 4
    assert comparison.standing is not None and comparison.standing.look == 1
    # another measure does not end with the primary one: it has all seeds, at the level of its look
    found = studied({"A": a, "B": b})
    area = next(block for block in found.blocks if block.measure.summary == "auc").comparison("B")
    assert area is not None and area.n == 10 and area.outcome is Outcome.INCONCLUSIVE


def test_a_method_that_cannot_win_is_not_supported_and_never_worse() -> None:
    a, b = luck(9, 4), [x - 1.5 for x in luck(10, 4)]
    claim = {"claim": "B is above A.", "kind": "greater", "group": "B", "metric": UP, "against": "A"}
    found = studied({"A": a, "B": b}, hypotheses={"H": claim})
    comparison = compared(found)
    assert comparison.outcome is Outcome.INCONCLUSIVE
    assert comparison.standing is not None and comparison.standing.status is Status.FUTILE
    assert comparison.standing.chance is not None and comparison.standing.chance < 0.05
    assert comparison.ground is not None and comparison.ground.reason is Reason.FUTILE
    assert wording.outcome(comparison, found.primary.measure, found.sweep, ALPHA).startswith(
        "not supported: futile at 4 of at most 10 seeds"
    )
    verdict = judge(found.settings.hypotheses[0], found)
    assert verdict.verdict is Outcome.INCONCLUSIVE and verdict.grounds == ()
    # futility binds nothing: with its further seeds, a futile comparison may be decided
    more = compared(studied({"A": a + luck(11, 6, 0.1), "B": b + [x + 9 for x in luck(12, 6, 0.1)]}))
    assert more.outcome is Outcome.HIGHER


def test_a_dropped_method_keeps_its_last_look_while_others_go_on() -> None:
    values = {"A": luck(13, 8), "B": luck(14, 4), "C": [x + 0.8 for x in luck(15, 8)]}
    found = studied(values)
    dropped, going = compared(found), compared(found, "C")
    assert dropped.standing is not None and going.standing is not None
    assert (dropped.standing.look, going.standing.look) == (1, 3)
    alone = compared(studied({"A": values["A"][:4], "B": values["B"], "C": values["C"][:4]}))
    assert (dropped.p, dropped.n) == (alone.p, 4)
    lawful(found)


@pytest.mark.parametrize("test", ["paired_t", "signflip", "wilcoxon", "welch", "relabel"])
def test_interval_and_verdict_never_disagree(test: str) -> None:
    pairing = "none" if test in ("welch", "relabel") else "seed"
    outcomes = set()
    for seed in range(24):
        n = SIZES[seed % 4]
        values = {"A": luck(seed, n), "B": [x + 3 * (seed % 3) for x in luck(100 + seed, n)], "C": luck(200 + seed, n)}
        found = studied(values, test=test, pairing=pairing)
        lawful(found)
        outcomes.add(compared(found).outcome)
    assert outcomes == {Outcome.HIGHER, Outcome.INCONCLUSIVE}


def test_of_a_folder_the_standings_are_those_of_its_report(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_sweep(
        ("C0", "C1"), seeds=range(6), steps=8, analysis={**ANALYSIS, "sequential": {**RULE, "start": 5}}
    )
    assert main(["looks", str(folder), "--json"]) == 0
    (standing,) = json.loads(capsys.readouterr().out)
    assert [standing[key] for key in ("group", "baseline", "look", "seeds")] == ["C1", "C0", 1, 5]


@pytest.mark.parametrize(
    "section",
    [
        {"sequential": {"start": 4, "max": 3, "until": "decided"}},
        {"sequential": {"start": 1, "max": 8, "until": "decided"}},
        {"sequential": {"start": 4, "max": 8, "until": "tired"}},
        {"sequential": {"start": 4, "max": 8}},
        {"sequential": RULE, "family": "max_t"},
        {"sequential": RULE, "select": {"lr": "best"}},
    ],
)
def test_what_has_no_levels_is_refused(section: Mapping[str, Any], worded: Worded) -> None:
    worded(refusal(BadPlan, lambda: settings(section, groups=("A", "B"), baseline="A")))

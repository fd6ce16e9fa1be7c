"""Hypotheses on hypotheses, on derived metrics, and on the worst step: what decides, and at which level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data.sweep import read_sweep
from analysis.findings.outcomes import Ground, Outcome, Reason
from analysis.findings.study import study
from analysis.findings.verdicts import Verdict, judge
from analysis.spec.metric_catalog import describe
from analysis.spec.settings import settings
from analysis.stats import t_test
from tests.analysis.conftest import Lines, MakeSweep, ground_of, reasons
from tests.analysis.test_verdicts import DOWN, SPREAD, UP, judged, sweep_of

# Of the values 1 + SPREAD, whose interval is [0.9752, 1.0248]: true, false, open, and open only at a stricter level.
HELD = {"at_least": 0.9}
BROKEN = {"at_least": 1.1}
OPEN = {"at_least": 1.0}
BARELY = {"at_least": 0.972}
BARELY_BROKEN = {"at_most": 0.972}


def joint(folder: Path, members: Mapping[str, Mapping[str, Any]], **more: Any) -> dict[str, Verdict]:
    """The verdicts by id: on claims about the ratio of B to A, on joint ones, and on J, of all or of `more`."""
    sweep = read_sweep(folder)
    about = {"kind": "ratio", "group": "B", "against": "A", "metric": UP}
    given = {
        name: {"claim": "So.", **(one if {"of", "kind"} & {*one} else {**about, **one})}
        for name, one in members.items()
    }
    given["J"] = {"claim": "All in all.", "of": list(members), **more}
    found = study(sweep, settings({"primary": {"metric": UP}, "hypotheses": given}, groups=sweep.groups, baseline=None))
    return {hypothesis.id: judge(hypothesis, found) for hypothesis in found.settings.hypotheses}


@pytest.fixture
def folder(make_sweep: MakeSweep) -> Path:
    return sweep_of(make_sweep, {UP: {"A": [1.0] * 3, "B": 1 + SPREAD}})


@pytest.mark.parametrize(
    ("more", "members", "verdict"),
    [({"kind": "all"}, (HELD, HELD), "supported"), ({"kind": "all"}, (HELD, OPEN), "inconclusive"),
     ({"kind": "all"}, (BROKEN, OPEN), "contradicted"), ({"kind": "any"}, (HELD, BROKEN), "supported"),
     ({"kind": "any"}, (OPEN, BROKEN), "inconclusive"), ({"kind": "any"}, (BROKEN, BROKEN), "contradicted"),
     ({"kind": "count", "at_least": 2}, (HELD, BROKEN, HELD), "supported"),
     ({"kind": "count", "at_least": 2}, (HELD, BROKEN, OPEN), "inconclusive"),
     ({"kind": "count", "at_least": 2}, (HELD, BROKEN, BROKEN), "contradicted")],
)  # fmt: skip
def test_all_any_and_a_count(folder: Path, more: Any, members: Any, verdict: str) -> None:
    found = joint(folder, {f"H{place}": one for place, one in enumerate(members)}, **more)
    assert found["J"].verdict == verdict
    held = members.count(HELD)
    assert found["J"].estimate == held
    outcomes = [ground.outcome for ground in found["J"].grounds if ground.reason is Reason.MEMBER]
    assert outcomes == [found[f"H{place}"].verdict for place in range(len(members))]


def test_what_one_member_settles_is_asked_of_each_at_a_stricter_level(folder: Path) -> None:
    values = 1 + SPREAD
    at_one, at_two, at_three = (t_test.t_interval(values, 0.05 / looks) for looks in (1, 2, 3))
    assert at_one and at_two and at_three and at_two[0] < BARELY["at_least"] < at_one[0]
    one = {"H": BARELY, "K": BROKEN}
    all_, any_ = (joint(folder, of, kind=kind)["J"] for of, kind in (({"H": BARELY}, "all"), (one, "any")))
    assert all_.verdict == "supported"  # every one must hold: the level stays as it is
    assert any_.verdict == "inconclusive"
    assert any_.grounds[-1] == Ground(
        Reason.MEMBERS_AT_LEVEL, members=("H",), outcome=Outcome.SUPPORTED, n=2, level=0.025
    )
    found = joint(folder, {"H": BARELY_BROKEN, "K": HELD, "L": HELD}, kind="all")
    assert (found["H"].verdict, found["J"].verdict) == ("contradicted", "inconclusive")
    assert found["J"].grounds[-1] == Ground(
        Reason.MEMBERS_AT_LEVEL, members=("H",), outcome=Outcome.CONTRADICTED, n=3, level=0.05 / 3
    )
    assert joint(folder, {"H": BARELY_BROKEN}, kind="any")["J"].verdict == "contradicted"


def test_a_joint_hypothesis_may_be_a_member(folder: Path) -> None:
    either = {"kind": "any", "of": ["H", "K"]}
    found = joint(folder, {"H": HELD, "K": BROKEN, "either": either}, kind="all", of=["H", "either"])
    assert (found["either"].verdict, found["J"].verdict) == ("supported", "supported")
    found = joint(folder, {"H": OPEN, "K": BROKEN, "either": either}, kind="count", of=["K", "either"], at_least=1)
    assert (found["either"].verdict, found["J"].verdict) == ("inconclusive", "inconclusive")


def test_nothing_is_said_of_members_that_cannot_be_judged(make_sweep: MakeSweep) -> None:
    one = sweep_of(make_sweep, {UP: {"A": [1.0], "B": [1.0]}}, seeds=(0,))
    assert joint(one, {"H": HELD, "K": HELD}, kind="any")["J"].verdict == "not evaluable"


@pytest.mark.parametrize(
    ("more", "members", "verdict"),
    [({"kind": "all"}, "HI", "not judged"), ({"kind": "any"}, "HI", "supported"),
     ({"kind": "all"}, "BI", "contradicted"),
     ({"kind": "any"}, "IV", "not judged"), ({"kind": "count", "at_least": 2}, "HIV", "not judged"),
     ({"kind": "count", "at_least": 2}, "HHI", "supported"), ({"kind": "all"}, "HM", "not judged")],
)  # fmt: skip
def test_what_is_only_described_never_supports_a_joint_hypothesis(
    folder: Path, more: Any, members: str, verdict: str
) -> None:
    alone = {"group": "B", "metric": UP}
    claims = {
        "H": HELD, "B": BROKEN, "I": {"kind": "range", "low": 0.5, **alone},
        "V": {"kind": "variation", "at_most": 0.5, **alone}, "M": {**HELD, "summary": "best"},
    }  # fmt: skip
    given = {f"{name}{place}": claims[name] for place, name in enumerate(members)}
    assert joint(folder, given, **more)["J"].verdict == verdict


# ---------------------------------------------------------------- derived metrics


@pytest.mark.parametrize(
    ("metric", "estimate"),
    [
        (f"|{UP}|", 2.0),
        (f"|{UP} - 1|", 3.0),
        (f"|{UP} - 0.5|", 2.5),
        (f"{UP} - {DOWN}", -2.5),
        (f"{UP} + {DOWN}", -1.5),
        (UP, -2.0),
    ],
)
def test_a_metric_may_be_derived(make_sweep: MakeSweep, metric: str, estimate: float) -> None:
    folder = sweep_of(make_sweep, {UP: {"A": -2 + SPREAD}, DOWN: {"A": 0.5 + 0.1 * SPREAD}})
    found = judged(folder, kind="range", group="A", metric=metric, summary="mean", low=estimate - 1)
    assert found.estimate == pytest.approx(estimate) and found.verdict == "not judged"


def test_a_derived_metric_needs_what_it_is_made_of(make_sweep: MakeSweep) -> None:
    folder = sweep_of(make_sweep, {UP: {"A": SPREAD, "B": SPREAD}, DOWN: {"A": SPREAD}})
    found = judged(folder, kind="greater", group="B", metric=f"{UP} - {DOWN}")
    (comparison,) = found.comparisons
    assert found.verdict == "not evaluable" and comparison.ground == Ground(Reason.NOT_RECORDED, ("B",))


def test_a_derived_metric_is_named_by_what_it_is_made_of() -> None:
    spread = describe("analysis/covariance_p90 - analysis/covariance_p50")
    assert (spread.label, spread.unit) == ("(covariance, 90% token - covariance, median token)", "nats")
    assert describe("|qstar/ess_ratio - 1|").label == "distance from 1 of ESS for the policy over ESS for the target"
    assert describe("|analysis/correlation|").label.startswith("magnitude of correlation of")


# ---------------------------------------------------------------- trends and the worst step


def curves(shape: Any) -> Any:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        return [{"step": s, "attempt": 1, UP: float(shape(s, seed))} for s in range(1, 101)]

    return lines


def of_curves(make_sweep: MakeSweep, shape: Any, seeds: Any = range(5), **given: Any) -> Verdict:
    folder = make_sweep(("A",), steps=100, seeds=seeds, lines=curves(shape), analysis={"primary": {"metric": UP}})
    return judged(folder, kind="range", group="A", metric=UP, **given)


def test_a_trend_is_kendalls_correlation_with_the_step(make_sweep: MakeSweep) -> None:
    def falls(step: int, seed: int) -> float:
        return -step if step > 10 + seed else step  # rises for a while

    found = of_curves(make_sweep, falls, summary="trend", high=0.0)
    assert reasons(found)[0] is Reason.INTERVAL_INSIDE and found.estimate is not None
    pairs = 100 * 99 / 2
    up = [(10 + seed) * (9 + seed) / 2 for seed in range(5)]
    assert found.estimate == pytest.approx(np.mean([(2 * one - pairs) / pairs for one in up]))


def test_one_run_that_collapsed_is_not_lost_in_the_mean(make_sweep: MakeSweep) -> None:
    def shape(step: int, seed: int) -> float:
        return 1.0 if step == 1 else (0.05 if seed == 7 and step > 50 else 0.6 + 0.01 * seed)

    found = of_curves(make_sweep, shape, range(10), summary="lowest_relative", low=0.1)
    assert found.interval is not None and found.interval[0] > 0.1  # of the mean
    assert found.verdict == "not judged" and reasons(found) == [
        Reason.INTERVAL_INSIDE,
        Reason.SEEDS_OUTSIDE,
        Reason.NORMAL_SEEDS,
        Reason.SEEDS_APART,
    ]
    assert ground_of(found, Reason.SEEDS_OUTSIDE).seeds == (7,)
    assert found.estimate == pytest.approx(np.mean([0.6 + 0.01 * s if s != 7 else 0.05 for s in range(10)]))


def test_smoothness_is_judged_over_the_window(make_sweep: MakeSweep) -> None:
    found = of_curves(make_sweep, lambda step, seed: step + seed, summary="largest_change", high=0.5)
    assert reasons(found)[0] is Reason.INTERVAL_INSIDE
    assert found.estimate == pytest.approx(np.mean([20 / (100 + seed) for seed in range(5)]))

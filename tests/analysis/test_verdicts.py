"""Hypotheses: what seeds support, refute and leave open, alone and joined, and where a reader sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data.sweep import read_sweep
from analysis.findings.study import Bound, Ground, Outcome, Reason, study
from analysis.findings.verdicts import Verdict, judge
from analysis.spec.hypothesis import Hypothesis
from analysis.spec.metric_catalog import describe
from analysis.spec.settings import settings
from analysis.stats import compare, power, t_test
from tests.analysis import qstar
from tests.analysis.conftest import UP, MakeSweep, ground_of, logging, reasons, replan, reported, studied, without

DOWN = "a/down"
GROUPS = ("A", "B", "C", "D")
SPREAD = np.array([-0.01, 0.0, 0.01])
LUCK = np.array([-1.5, -0.9, -0.5, -0.2, 0.1, 0.3, 0.8, 1.2, 1.7, -2.0])


def sweep_of(
    make_sweep: MakeSweep, table: Mapping[str, Mapping[str, Any]], asked: Mapping[str, Any] | None = None, **more: Any
) -> Path:
    """A sweep in which group g has the value table[metric][g], a list by seed, at every step."""
    lines = logging(
        lambda group, seed, *_: {
            "other/x": 0.0,
            **{metric: float(by_group[group][seed]) for metric, by_group in table.items() if group in by_group},
        }
    )
    groups = [group for group in GROUPS if any(group in by_group for by_group in table.values())]
    seeds = range(len(next(iter(table[UP].values()))))
    section = {"primary": {"metric": UP}, **(asked or {})}
    return make_sweep(groups, seeds, 20, section, lines=lines, **more)


def judged(folder: Path, asked: Mapping[str, Any] | None = None, **given: Any) -> Verdict:
    return verdicts_of(folder, {"H": given}, **(asked or {}))["H"]


def verdicts_of(folder: Path, claims: Mapping[str, Mapping[str, Any]], **section: Any) -> dict[str, Verdict]:
    """By id: verdicts on claims about UP, if they do not name other metrics."""
    sweep = read_sweep(folder)
    given = {
        name: {"claim": "It is so.", **({} if {"of", "metrics"} & {*claim} else {"metric": UP}), **claim}
        for name, claim in claims.items()
    }
    asked = settings({**section, "primary": {"metric": UP}, "hypotheses": given}, "", sweep.groups, sweep.baseline)
    found = study(sweep, asked)
    return {hypothesis.id: judge(hypothesis, found) for hypothesis in found.settings.hypotheses}


def around(*centres: float) -> dict[str, Any]:
    """Values of groups A, B, ... with a spread that the groups do not share."""
    return {group: c + SPREAD * (1 + 0.3 * i) for i, (group, c) in enumerate(zip(GROUPS, centres, strict=False))}


# ---------------------------------------------------------------- one claim

WAYS = {"kind": "pareto", "metrics": [UP, DOWN], "directions": ["higher", "lower"]}
SIX = 0.01 * np.array([-1.0, 0.5, 0.2, -0.3, 0.8, -0.1])
RISE = np.linspace(-0.1, 0.1, 6)
DECIDED = {UP: {"A": 1 + RISE, "B": 1.5 + RISE**2, "C": 2.5 + RISE}}
OPEN_GAP = [0.3, -0.2, 0.4, 0.1, 0.2, -0.1]
ALIKE = {"A": SPREAD, "B": 1 + SPREAD, "C": 2 + SPREAD}
NO, DESCRIBED, OPEN = "not evaluable", "not judged", "inconclusive"
YES, FALSE, SAME = "supported", "contradicted", "equivalent"
#: By name: values by metric and group, the claim, and of its verdict the word, reasons that it has, and other fields.
CLAIMS: dict[str, tuple[Mapping[str, Any], dict[str, Any], str, list[Reason], dict[str, Any]]] = {
    **{
        f"range {low} to {high}": (
            {UP: around(1.0)}, {"kind": "range", "group": "A", **({"low": low} if low else {}),
                                **({"high": high} if high else {})},
            DESCRIBED, [where, Reason.NORMAL_SEEDS], {"n": 3, "estimate": 1.0},
        )
        for low, high, where in (
            (0.9, 1.1, Reason.INTERVAL_INSIDE), (1.1, 1.2, Reason.INTERVAL_OUTSIDE), (1.0, 1.1, Reason.INTERVAL_ACROSS),
            (0.5, None, Reason.INTERVAL_INSIDE), (None, 0.9, Reason.INTERVAL_OUTSIDE),
        )
    },
    "range, one seed": (
        {UP: {"A": [1.0]}}, {"kind": "range", "group": "A", "low": 0.0}, NO, [Reason.NEEDS_TWO_SEEDS], {"n": 1},
    ),
    "range, equal seeds": (
        {UP: {"A": [1.0] * 3}}, {"kind": "range", "group": "A", "low": 0.0}, NO, [Reason.NO_SPREAD], {},
    ),
    **{
        f"ratio {bound}": ({UP: around(1.0, 2.0)}, {"kind": "ratio", "group": "B", **bound}, verdict, [], {})
        for bound, verdict in (
            ({"at_least": 1.9}, YES), ({"at_least": 2.2}, FALSE), ({"at_most": 2.2}, YES), ({"at_least": 2.0}, OPEN),
        )
    },
    "ratio of numbers around zero": (
        {UP: around(0.0, 2.0)}, {"kind": "ratio", "group": "B", "at_least": 1}, NO, [Reason.NOT_POSITIVE], {},
    ),
    **{
        f"extreme, {group} {which}": (
            {UP: around(1.0, 2.0, 3.0), DOWN: {"D": SPREAD}}, {"kind": "extreme", "group": group, "which": which},
            FALSE if past else YES, [Reason.RIVALS_PAST if past else Reason.LEADS_EVERY_RIVAL, Reason.LEFT_OUT],
            {"groups": past} if past else {},
        )
        for group, which, past in (
            ("A", "least", ()), ("C", "greatest", ()), ("C", "least", ("A", "B")), ("A", "greatest", ("B", "C")),
        )
    },
    "extreme that one rival leaves open": (
        {UP: around(1.0, 1.001, 3.0)}, {"kind": "extreme", "group": "A", "which": "least"}, OPEN,
        [Reason.NOT_TOLD_FROM, Reason.WOULD_DECIDE], {"groups": ("B",), "needed": 73},
    ),
    **{
        f"between {centres}": (
            {UP: around(*centres)}, {"kind": "between", "group": "A", "groups": ["B", "C"]}, verdict, [],
            {"estimate": centres[0]},
        )
        for centres, verdict in (((2.0, 1.0, 3.0), YES), ((4.0, 1.0, 3.0), FALSE), ((1.0, 1.0, 3.0), OPEN))
    },
    **{
        f"pareto {up} {down}": ({UP: around(*up), DOWN: around(*down)}, {**WAYS, "group": "A"}, verdict, why, {"n": 3})
        for up, down, verdict, why in (
            ((2.0, 3.0, 1.0), (2.0, 3.0, 1.0), YES, [Reason.AHEAD_BY_ONE, Reason.FRONT_BY_MEANS, Reason.FEW_SEEDS]),
            ((2.0, 3.0, 1.0), (2.0, 1.0, 1.0), FALSE,
             [Reason.BETTER_BY_BOTH, Reason.BEHIND_BY_MEANS, Reason.FEW_SEEDS]),
            ((2.0, 2.001, 1.0), (2.0, 1.0, 1.0), OPEN,
             [Reason.NOT_AHEAD, Reason.BEHIND_BY_MEANS, Reason.WOULD_DECIDE]),
        )
    },
    "greater, six seeds": (DECIDED, {"kind": "greater", "group": "C", "against": "B"}, YES, [], {"n": 6}),
    "greater, not decided": (
        {UP: {"A": [0.0] * 6, "B": OPEN_GAP}}, {"kind": "greater", "group": "B"}, OPEN, [Reason.WOULD_DECIDE],
        {"needed": power.seeds_to_find("paired_t", np.mean(OPEN_GAP) / np.std(OPEN_GAP, ddof=1))},
    ),
    "less, six seeds": (DECIDED, {"kind": "less", "group": "C", "against": "B"}, FALSE, [], {}),
    "greater than the baseline": (DECIDED, {"kind": "greater", "group": "B"}, YES, [], {"against": ("A",)}),
    "equal differences, extreme": (
        {UP: ALIKE}, {"kind": "extreme", "which": "greatest", "group": "B"}, NO, [Reason.NO_SPREAD], {},
    ),
    "equal differences, between": (
        {UP: ALIKE}, {"kind": "between", "groups": ["A", "C"], "group": "B"}, NO, [Reason.NO_SPREAD], {},
    ),
    "equal differences, pareto": ({UP: ALIKE, DOWN: ALIKE}, {**WAYS, "group": "B"}, NO, [Reason.NO_SPREAD], {}),
    **{
        f"margin {margin} of {gap}, {n} seeds": (
            {UP: {"A": SIX[:n], "B": gap + SIX[:n][::-1]}}, {"kind": "greater", "group": "B", "margin": margin},
            verdict, [Reason.SMALLER_THAN_MARGIN, Reason.UNSEEN_COLLAPSE] if verdict == SAME else [],
            {"value": margin} if verdict == SAME else {},
        )
        for gap, margin, n, verdict in (
            (0.0, 0.05, 6, SAME), (0.0, 0.05, 5, OPEN), (0.0, 0.001, 6, OPEN), (1.0, 0.05, 6, YES), (1.0, 1.5, 6, YES),
        )
    },
    **{
        f"spread {factor}": (
            {UP: {"A": 2 + LUCK, "B": 9 + factor * LUCK[::-1]}}, {"kind": "spread", "group": "B", "at_most": 1.5},
            verdict, [Reason.EXCESS_SPREAD, *([Reason.WOULD_DECIDE] if verdict == OPEN else [])],
            {"n": 10, "estimate": factor},
        )
        for factor, verdict in ((0.2, YES), (1.4, OPEN), (8.0, FALSE))
    },
    "spread, three seeds": (
        {UP: {"A": [1.0, 5.0, 9.0], "B": [2.0, 2.001, 1.999]}}, {"kind": "spread", "group": "B", "at_most": 1.5}, OPEN,
        [], {"estimate": 0.00025},
    ),
    "spread of nothing": (
        {UP: {"A": [1.0] * 3, "B": [1.0] * 3}}, {"kind": "spread", "group": "B", "at_most": 1.5}, NO,
        [Reason.NO_SPREAD_OF_DISTANCES], {},
    ),
    **{
        f"variation of {values}": (
            {UP: {"A": values}}, {"kind": "variation", "group": "A", "at_most": 0.05}, verdict, why,
            {"estimate": np.std(values, ddof=1) / np.mean(values)} if verdict == DESCRIBED else {},
        )
        for values, verdict, why in (
            ([1.0, 1.001, 1.002], DESCRIBED, [Reason.INTERVAL_INSIDE, Reason.NORMAL_SEEDS]),
            ([1.0, 1.02, 1.04], DESCRIBED, [Reason.INTERVAL_ACROSS, Reason.NORMAL_SEEDS]),
            ([0.5, 1.0, 1.5], DESCRIBED, [Reason.INTERVAL_OUTSIDE, Reason.NORMAL_SEEDS]),
            ([-1.0, 1.0, 1.5], NO, [Reason.BOTH_SIGNS]), ([1.0, 1.0, 1.0], NO, [Reason.NO_SPREAD]),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_has_its_verdict_and_grounds(make_sweep: MakeSweep, name: str) -> None:
    values, claim, verdict, why, more = CLAIMS[name]
    found = judged(sweep_of(make_sweep, values), **claim)
    assert found.verdict == verdict and (not why or {*why} <= {*reasons(found)})
    for key, value in more.items():
        if key in ("n", "estimate", "against"):
            assert getattr(found, key) == (pytest.approx(value) if key == "estimate" else value)
        else:
            assert value in [getattr(ground, key) for ground in found.grounds if ground.reason in why]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"kind": "most"}, "kind = 'most'; must be one of range"), ({"group": "C9"}, "'C9'; must be one of")],
)
def test_a_hypothesis_of_nothing_there_is_refused(make_sweep: MakeSweep, wrong: dict[str, str], said: str) -> None:
    sweep = read_sweep(make_sweep())
    asked = settings(sweep.plan["analysis"], "plan.json", sweep.groups, sweep.baseline)
    made = Hypothesis("H", "it is so", **{"kind": "range", "group": "C1", "metrics": ("a/b",), "low": 0.0, **wrong})
    with pytest.raises(ValueError, match=said):
        judge(made, study(sweep, asked))


def test_intervals_are_what_the_test_does_not_reject(make_sweep: MakeSweep) -> None:
    table = around(1.0, 2.0)
    folder = sweep_of(make_sweep, {UP: table})
    assert judged(folder, kind="range", group="A", low=0).interval == pytest.approx(t_test.t_interval(1 + SPREAD))
    ratio = judged(folder, kind="ratio", group="B", at_least=2)
    assert ratio.estimate == pytest.approx(table["B"].mean() / table["A"].mean()) and ratio.interval is not None
    for end in ratio.interval:
        assert compare.paired(table["B"], end * table["A"]).p_t == pytest.approx(0.05, rel=1e-6)


def test_one_rival_among_many_refutes_at_a_stricter_level(make_sweep: MakeSweep) -> None:
    """Three looks for a better group are three chances to be fooled."""
    difference = np.array([-1.3, -1.0, -0.7])
    at_one, at_three = (compare.paired(difference, np.zeros(3), 0.05 / looks).interval for looks in (1, 3))
    assert at_one is not None and at_three is not None and at_one[1] < 0 < at_three[1]
    table = {"A": SPREAD, "B": SPREAD + difference, "C": 5 + SPREAD, "D": 7 + SPREAD}
    found = judged(sweep_of(make_sweep, {UP: table}), kind="extreme", group="A", which="least")
    # to contradict: as the means stand, no number would support it
    needed = power.seeds_to_find("paired_t", 1.0 / 0.3, 0.05 / 3)
    assert found.verdict == "inconclusive" and ground_of(found, Reason.NOT_TOLD_FROM).groups == ("B", "C", "D")
    stricter = ground_of(found, Reason.NOT_PAST_AT_LEVEL)
    assert (stricter.groups, stricter.n, stricter.level) == (("B",), 3, pytest.approx(0.05 / 3))
    assert ground_of(found, Reason.WOULD_DECIDE).needed == needed


NEAR, FAR = np.array([0.02, -0.01, 0.05]), np.array([0.3, 0.1, 0.5])


@pytest.mark.parametrize(
    ("up", "down", "by_means"),
    [({"B": -FAR, "C": -NEAR}, {"B": NEAR, "C": -FAR}, Reason.FRONT_BY_MEANS),  # A leads B by both, C by one of them
     ({"B": NEAR, "C": -FAR}, {"B": -FAR, "C": -FAR}, Reason.BEHIND_BY_MEANS)],  # of B, which must be told by both
)  # fmt: skip
def test_pareto_says_how_many_seeds_would_decide(make_sweep: MakeSweep, up: Any, down: Any, by_means: Reason) -> None:
    folder = sweep_of(make_sweep, {UP: {"A": np.zeros(3), **up}, DOWN: {"A": np.zeros(3), **down}})
    found = judged(folder, group="A", **WAYS)
    needed = power.seeds_to_find("paired_t", NEAR.mean() / NEAR.std(ddof=1), 0.025)  # one of two metrics, or rivals
    assert found.verdict == "inconclusive" and ground_of(found, Reason.WOULD_DECIDE).needed == needed
    assert ground_of(found, by_means).groups == (("B",) if by_means is Reason.BEHIND_BY_MEANS else ())


def test_greater_goes_by_the_test_that_three_seeds_cannot_bring_down(make_sweep: MakeSweep) -> None:
    found = judged(sweep_of(make_sweep, {UP: around(1.0, 3.0)}), {"test": "signflip"}, kind="greater", group="B")
    assert found.verdict == "inconclusive" and found.interval is None  # six differences would bound it
    (comparison,) = found.comparisons
    assert comparison.ground == Ground(Reason.TOO_FEW_SEEDS, n=3, needed=6) and comparison.adjusted == 0.25


def test_missing_runs_and_missing_metrics_decide_nothing(make_sweep: MakeSweep) -> None:
    folder = sweep_of(make_sweep, {UP: around(1.0, 2.0), DOWN: {"A": SPREAD}})
    for metric in (DOWN, f"{UP} - {DOWN}"):
        for kind, more in (("ratio", {"at_least": 1}), ("greater", {}), ("extreme", {"which": "least"})):
            found = judged(folder, kind=kind, group="B", metric=metric, **more)
            grounds = [*found.grounds, *(comparison.ground for comparison in found.comparisons)]
            assert found.verdict == "not evaluable" and Ground(Reason.NOT_RECORDED, ("B",)) in grounds, kind
    without(folder, "B-0", "B-1")
    found = judged(folder, kind="range", group="B", low=0)
    assert found.verdict == "not evaluable" and found.n == 1
    for asked in ({"kind": "extreme", "which": "least"}, WAYS):
        assert judged(folder, group="A", **asked).verdict == "not evaluable", asked


@pytest.mark.parametrize(
    ("size", "steps", "why"),
    [(1.0, 20, "first tenth: three are needed"), (1e300, 40, "changes too large to square")],
)
def test_what_has_no_value_says_why(make_sweep: MakeSweep, size: float, steps: int, why: str) -> None:
    lines = logging(lambda group, seed, cell, step: size * (step % 3) + seed, steps)
    folder = make_sweep(("A", "B"), steps=steps, lines=lines, analysis={"primary": {"metric": UP}})
    found = judged(folder, kind="ratio", group="B", summary="early_variance", at_most=1.5)
    assert found.verdict == "not evaluable"
    assert reasons(found) == [Reason.NO_PAIR, Reason.NO_VALUE, Reason.NO_VALUE]
    assert [(ground.groups, why in ground.detail) for ground in found.grounds[1:]] == [(("A",), True), (("B",), True)]


# ---------------------------------------------------------------- summaries of curves


def of_curves(make_sweep: MakeSweep, shape: Any, seeds: Any = range(5), steps: int = 100, **given: Any) -> Verdict:
    lines = logging(lambda group, seed, cell, step: shape(step, seed), steps)
    folder = make_sweep(("A",), steps=steps, seeds=seeds, lines=lines, analysis={"primary": {"metric": UP}})
    return judged(folder, kind="range", group="A", **given)


@pytest.mark.parametrize(
    ("summary", "where", "estimate"),
    [("slope", Reason.INTERVAL_INSIDE, -0.004), ("early", Reason.INTERVAL_OUTSIDE, 0.074),
     ("early_variance", Reason.INTERVAL_OUTSIDE, 0.0003)],
)  # fmt: skip
def test_early_phase_and_slope_are_over_seeds(
    make_sweep: MakeSweep, summary: str, where: Reason, estimate: float
) -> None:
    noise = 0.001 * np.random.default_rng(0).standard_normal((3, 201))

    def shape(step: int, seed: int) -> float:
        return 0.1 - 0.004 * (1 + 0.01 * seed) * step + float(noise[seed, step]) + (0.08 if step < 5 else 0)

    found = of_curves(make_sweep, shape, range(3), 200, summary=summary, high=0.0)
    assert reasons(found)[0] is where and found.n == 3
    assert found.estimate == pytest.approx(estimate, rel=0.2)


def test_a_trend_is_kendalls_correlation_with_the_step(make_sweep: MakeSweep) -> None:
    found = of_curves(make_sweep, lambda step, seed: -step if step > 10 + seed else step, summary="trend", high=0.0)
    assert reasons(found)[0] is Reason.INTERVAL_INSIDE and found.estimate is not None
    pairs = 100 * 99 / 2
    up = [(10 + seed) * (9 + seed) / 2 for seed in range(5)]
    assert found.estimate == pytest.approx(np.mean([(2 * one - pairs) / pairs for one in up]))


def test_one_run_that_collapsed_is_not_lost_in_the_mean(make_sweep: MakeSweep) -> None:
    def shape(step: int, seed: int) -> float:
        return 1.0 if step == 1 else (0.05 if seed == 7 and step > 50 else 0.6 + 0.01 * seed)

    found = of_curves(make_sweep, shape, range(10), summary="lowest_relative", low=0.1)
    assert found.interval is not None and found.interval[0] > 0.1  # of the mean
    expected = [Reason.INTERVAL_INSIDE, Reason.SEEDS_OUTSIDE, Reason.NORMAL_SEEDS]
    assert found.verdict == "not judged" and reasons(found) == expected
    assert ground_of(found, Reason.SEEDS_OUTSIDE).seeds == (7,)
    assert found.estimate == pytest.approx(np.mean([0.6 + 0.01 * s if s != 7 else 0.05 for s in range(10)]))


@pytest.mark.parametrize(
    ("metric", "estimate"),
    [(f"|{UP}|", 2.0), (f"|{UP} - 1|", 3.0), (f"|{UP} - 0.5|", 2.5), (f"{UP} - {DOWN}", -2.5),
     (f"{UP} + {DOWN}", -1.5), (UP, -2.0)],
)  # fmt: skip
def test_a_metric_may_be_derived(make_sweep: MakeSweep, metric: str, estimate: float) -> None:
    folder = sweep_of(make_sweep, {UP: {"A": -2 + SPREAD}, DOWN: {"A": 0.5 + 0.1 * SPREAD}})
    found = judged(folder, kind="range", group="A", metric=metric, summary="mean", low=estimate - 1)
    assert found.estimate == pytest.approx(estimate) and found.verdict == "not judged"


def test_a_derived_metric_is_named_by_what_it_is_made_of() -> None:
    spread = describe("analysis/covariance_p90 - analysis/covariance_p50")
    assert (spread.label, spread.unit) == ("(covariance, 90% token - covariance, median token)", "nats")
    assert describe("|qstar/ess_ratio - 1|").label == "distance from 1 of ESS for the policy over ESS for the target"
    assert describe("|analysis/correlation|").label.startswith("magnitude of correlation of")


# ---------------------------------------------------------------- times


def racing(make_sweep: MakeSweep, speeds: Mapping[str, float], seeds: int, late: float = 0.01) -> Path:
    """Rewards that rise by a speed a step up to 1, more or less by seed; with the speed 0 they never reach anything."""

    def rate(group: str, seed: int) -> float:
        return speeds[group] * (1 + late * (seed - (seeds // 6)) * (1 if group == "A" else 2))

    lines = logging(lambda group, seed, cell, step: min(1.0, rate(group, seed) * step), 100)
    return make_sweep(tuple(speeds), range(seeds), 100, {"primary": {"metric": UP}}, lines=lines)


FIRST = {"kind": "extreme", "summary": "time_to", "at": 0.5, "which": "least"}


def test_the_first_of_all_is_the_one_whose_time_is_below_every_other(make_sweep: MakeSweep) -> None:
    """The exact test of times decides, and a rival that never reaches the threshold counts with the whole budget. To
    contradict, one of two rivals is asked at half the level, which takes seven seeds."""
    folder = racing(make_sweep, {"A": 0.01, "B": 0.02, "C": 0.0}, seeds=7)
    first, *others = (judged(folder, {"window": 1}, **FIRST, group=group) for group in "BAC")
    assert [(found.verdict, found.n) for found in (first, *others)] == [(YES, 7), (FALSE, 7), (FALSE, 7)]
    assert ground_of(first, Reason.LEADS_EVERY_RIVAL).n == 2 and first.against == ("A",)
    times = [[0.5 / (speed * (1 + 0.01 * (s - 1) * k)) for s in range(7)] for speed, k in ((0.02, 2), (0.01, 1))]
    assert first.estimate == pytest.approx(np.subtract(*times).mean(), abs=0.6)


def test_five_seeds_cannot_say_who_is_first(make_sweep: MakeSweep) -> None:
    found = judged(racing(make_sweep, {"A": 0.01, "B": 0.02}, seeds=5), **FIRST, group="B")
    assert found.verdict == "inconclusive" and ground_of(found, Reason.NOT_TOLD_FROM).groups == ("A",)


@pytest.mark.parametrize(
    ("rates", "at_least", "verdict", "bound"),
    [({"A": 1.0, "B": 2.0}, 1.5, "supported", None), ({"A": 1.0, "B": 1.1}, 1.5, "contradicted", None),
     ({"A": 0.4, "B": 1.0}, 0.8, "supported", "at least"), ({"A": 0.4, "B": 1.0}, 1.5, "inconclusive", "at least"),
     ({"A": 1.0, "B": 0.4}, 1.5, "contradicted", "at most"), ({"A": 0.4, "B": 0.3}, 1.5, "not evaluable", None)],
)  # fmt: skip
def test_efficiency_is_a_bound_where_times_are_cut(
    make_sweep: MakeSweep, rates: Any, at_least: float, verdict: str, bound: str | None
) -> None:
    folder = racing(make_sweep, {group: rate / 50 for group, rate in rates.items()}, 6, late=0.02)
    asked = {"group": "B", "kind": "ratio", "at": 0.9}
    found = judged(folder, **asked, summary="efficiency", at_least=at_least)
    assert (found.verdict, found.bound) == (verdict, bound)
    assert (Reason.TIMES_CUT in reasons(found)) == (bound is not None)
    assert (Reason.ALL_TIMES_CUT in reasons(found)) == (verdict == "not evaluable")
    if found.bound is Bound.AT_LEAST:
        assert found.interval is not None and found.interval[1] == np.inf
    inverse = judged(folder, **asked, summary="time_to", at_most=1 / at_least)
    assert inverse.verdict == verdict  # a share of the time instead


# ---------------------------------------------------------------- joint claims

#: Of the values 1 + SPREAD, whose interval is [0.9752, 1.0248]: true, false, open, and decided only at a laxer level.
MEMBERS: dict[str, dict[str, Any]] = {
    "held": {"at_least": 0.9}, "broken": {"at_least": 1.1}, "open": {"at_least": 1.0}, "barely": {"at_least": 0.972},
    "barely broken": {"at_most": 0.972}, "best": {"at_least": 0.9, "summary": "best"},
    "range": {"kind": "range", "low": 0.5}, "variation": {"kind": "variation", "at_most": 0.5},
}  # fmt: skip


def joint(folder: Path, members: str, more: Mapping[str, Any], kinds: Mapping[str, Any] | None = None) -> Any:
    """The verdicts by id: on claims about the ratio of B to A, named by MEMBERS and H0, H1, ..., and J on all."""
    given: dict[str, Any] = {}
    for place, name in enumerate(members.split(", ")):
        claim = {"kind": "ratio", "group": "B", "against": "A", **MEMBERS[name]}
        given[f"H{place}"] = {key: claim[key] for key in claim if key != "against" or claim["kind"] == "ratio"}
    given |= kinds or {}
    return verdicts_of(folder, {**given, "J": {"of": list(given), **more}})


@pytest.fixture
def folder(make_sweep: MakeSweep) -> Path:
    return sweep_of(make_sweep, {UP: {"A": [1.0] * 3, "B": 1 + SPREAD}})


ALL, ANY, TWO = {"kind": "all"}, {"kind": "any"}, {"kind": "count", "at_least": 2}


@pytest.mark.parametrize(
    ("more", "members", "verdict"),
    [(ALL, "held, held", YES), (ALL, "held, open", OPEN), (ALL, "broken, open", FALSE), (ANY, "held, broken", YES),
     (ANY, "open, broken", OPEN), (ANY, "broken, broken", FALSE), (TWO, "held, broken, held", YES),
     (TWO, "held, broken, open", OPEN), (TWO, "held, broken, broken", FALSE),
     # what is only described never supports a joint hypothesis
     (ALL, "held, range", DESCRIBED), (ANY, "held, range", YES), (ALL, "broken, range", FALSE),
     (ANY, "range, variation", DESCRIBED), (TWO, "held, range, variation", DESCRIBED), (TWO, "held, held, range", YES),
     (ALL, "held, best", DESCRIBED)],
)  # fmt: skip
def test_all_any_and_a_count(folder: Path, more: Any, members: str, verdict: str) -> None:
    found = joint(folder, members, more)
    assert found["J"].verdict == verdict
    assert found["J"].estimate == members.split(", ").count("held")
    outcomes = [ground.outcome for ground in found["J"].grounds if ground.reason is Reason.MEMBER]
    assert outcomes == [found[f"H{place}"].verdict for place in range(len(outcomes))] and len(outcomes) > 1


@pytest.mark.parametrize(
    ("members", "kind", "verdict", "settled", "n"),
    [("barely", "all", YES, None, 1), ("barely, broken", "any", OPEN, Outcome.SUPPORTED, 2),
     ("barely broken, held, held", "all", OPEN, Outcome.CONTRADICTED, 3), ("barely broken", "any", FALSE, None, 1)],
)  # fmt: skip
def test_what_one_member_settles_is_asked_of_each_at_a_stricter_level(
    folder: Path, members: str, kind: str, verdict: str, settled: Outcome | None, n: int
) -> None:
    intervals = [t_test.t_interval(1 + SPREAD, 0.05 / looks) for looks in (1, 2)]
    assert intervals[0] and intervals[1] and intervals[1][0] < MEMBERS["barely"]["at_least"] < intervals[0][0]
    found = joint(folder, members, {"kind": kind})["J"]
    assert found.verdict == verdict
    if settled:
        stricter = Ground(Reason.MEMBERS_AT_LEVEL, members=("H0",), outcome=settled, n=n, level=0.05 / n)
        assert found.grounds[-1] == stricter


def test_a_joint_hypothesis_may_be_a_member(folder: Path) -> None:
    either = {"either": {"kind": "any", "of": ["H0", "H1"]}}
    found = joint(folder, "held, broken", {"kind": "all", "of": ["H0", "either"]}, either)
    assert (found["either"].verdict, found["J"].verdict) == ("supported", "supported")
    found = joint(folder, "open, broken", {"kind": "count", "of": ["H1", "either"], "at_least": 1}, either)
    assert (found["either"].verdict, found["J"].verdict) == ("inconclusive", "inconclusive")


def test_nothing_is_said_of_members_that_cannot_be_judged(make_sweep: MakeSweep) -> None:
    one = sweep_of(make_sweep, {UP: {"A": [1.0], "B": [1.0]}})
    assert joint(one, "held, held", {"kind": "any"})["J"].verdict == "not evaluable"


# ---------------------------------------------------------------- the report


def test_report_shows_the_verdicts_whichever_way_they_fall(make_sweep: MakeSweep, unrendered: None) -> None:
    folder = qstar.make(make_sweep)
    known = {name: stated for name, stated in qstar.HYPOTHESES.items() if name != "H2"}
    kept = [{"planned": 24, "done": [], "hypotheses": known}]
    kept.append({"planned": 24, "done": ["a"], "hypotheses": qstar.HYPOTHESES})
    (folder / "hypotheses.json").write_text(json.dumps({"format": 1, "declarations": kept}))
    found = reported(folder)
    assert "H3 contradicted: It has the least gradient variance of the eight." in found.printed
    expected = dict.fromkeys(("H4", "H5"), "supported") | dict.fromkeys(("H2", "success"), "inconclusive")
    expected |= {"H1": "not judged", "H3": "contradicted"}
    assert {one["id"]: one["verdict"] for one in found.document["hypotheses"]} == expected
    rows = {row["hypothesis"]: row for row in found.rows("tables/hypotheses")}
    assert 0.9 < float(rows["H1"]["low"]) < 1 < float(rows["H1"]["high"]) < 1.1 and rows["H1"]["seeds"] == "3"
    assert [rows[name]["declared"] for name in ("H1", "H2")] == ["before any run was done", "with 1 of 24 runs done"]
    assert rows["success"]["decided_by"].startswith("H1 not judged; H2 inconclusive; H3 contradicted")
    for name in ("index.html", "tables/hypotheses.md", "tables/hypotheses.tex"):
        assert "The two effective sample sizes balance." in (found.report / name).read_text()
    assert r"{lp{0.2\linewidth}lp{0.2" in (found.report / "tables" / "hypotheses.tex").read_text()
    after = reported(replan(folder, lambda plan: plan.update(analysis={"primary": qstar.ANALYSIS["primary"]})))
    assert not list(after.report.glob("tables/hypotheses.*")) and 'id="hypotheses"' not in after.page


def test_count_of_supported(make_sweep: MakeSweep) -> None:
    given = dict(qstar.HYPOTHESES)
    for least in (3, 4, 5):
        given[f"least {least}"] = {**given["success"], "at_least": least}
    found = studied(qstar.make(make_sweep), hypotheses=given)
    for hypothesis, verdict, stricter in zip(
        found.settings.hypotheses[-3:], (OPEN, OPEN, DESCRIBED),
        ([(0.05 / 3, "supported")], [], [(0.01, "contradicted")]), strict=True,
    ):  # fmt: skip
        count = judge(hypothesis, found)
        assert (count.verdict, count.estimate) == (verdict, 2)
        members = [(*ground.members, ground.outcome) for ground in count.grounds if ground.reason is Reason.MEMBER]
        assert ("H3", "contradicted") in members and len(members) == 5
        at = [(ground.level, ground.outcome) for ground in count.grounds if ground.reason is Reason.MEMBERS_AT_LEVEL]
        assert {*stricter} <= {*at}

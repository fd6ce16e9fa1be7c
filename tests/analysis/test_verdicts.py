"""Hypotheses: what a plan may not say, what seeds support, refute and leave open, and where a reader sees it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.data.sweep import read_sweep
from analysis.findings.outcomes import Bound, Ground, Reason
from analysis.findings.study import Study, study
from analysis.findings.verdicts import Verdict, judge
from analysis.spec.hypothesis import Hypothesis
from analysis.spec.settings import settings
from analysis.stats import compare, power, t_test
from launcher.run.folder import run_folder
from tests.analysis import qstar
from tests.analysis.conftest import Lines, MakeSweep, ground_of, reasons

UP, DOWN = "a/up", "a/down"
GROUPS = ("A", "B", "C", "D")
SPREAD = np.array([-0.01, 0.0, 0.01])


def sweep_of(
    make_sweep: MakeSweep, table: Mapping[str, Mapping[str, Any]], asked: Mapping[str, Any] | None = None, **more: Any
) -> Path:
    """A sweep in which group g has the value table[metric][g], a list by seed, at every step."""

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        values = {metric: float(by_group[group][seed]) for metric, by_group in table.items() if group in by_group}
        return [{"step": step, "attempt": 1, "other/x": 0.0, **values} for step in range(1, 21)]

    groups = [group for group in GROUPS if any(group in by_group for by_group in table.values())]
    return make_sweep(groups, steps=20, lines=lines, analysis={"primary": {"metric": UP}, **(asked or {})}, **more)


def judged(folder: Path, asked: Mapping[str, Any] | None = None, **given: Any) -> Verdict:
    sweep = read_sweep(folder)
    section = {**(asked or {}), "primary": {"metric": UP}, "hypotheses": {"H": {"claim": "It is so.", **given}}}
    found: Study = study(sweep, settings(section, groups=sweep.groups, baseline=sweep.baseline))
    return judge(found.settings.hypotheses[0], found)


def around(*centres: float) -> dict[str, Any]:
    """Values of groups A, B, ... with a spread that the groups do not share."""
    return {group: c + SPREAD * (1 + 0.3 * i) for i, (group, c) in enumerate(zip(GROUPS, centres, strict=False))}


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [(0.9, 1.1, Reason.INTERVAL_INSIDE), (1.1, 1.2, Reason.INTERVAL_OUTSIDE), (1.0, 1.1, Reason.INTERVAL_ACROSS),
     (0.5, None, Reason.INTERVAL_INSIDE), (None, 0.9, Reason.INTERVAL_OUTSIDE)],
)  # fmt: skip
def test_a_range_is_described_and_not_judged(make_sweep: MakeSweep, low: Any, high: Any, where: Reason) -> None:
    bounds = {key: value for key, value in (("low", low), ("high", high)) if value is not None}
    found = judged(sweep_of(make_sweep, {UP: around(1.0)}), kind="range", group="A", metric=UP, **bounds)
    assert found.verdict == "not judged" and found.n == 3 and found.estimate == pytest.approx(1.0)
    assert reasons(found) == [where, Reason.NORMAL_SEEDS]
    assert found.interval == pytest.approx(t_test.t_interval(1 + SPREAD))


@pytest.mark.parametrize(
    ("wrong", "said"), [({"kind": "most"}, "kind = 'most'; range"), ({"group": "C9"}, "'C9'; the")]
)
def test_a_hypothesis_of_nothing_there_is_refused(make_sweep: MakeSweep, wrong: dict[str, str], said: str) -> None:
    sweep = read_sweep(make_sweep())
    asked = settings(sweep.plan["analysis"], "plan.json", sweep.groups, sweep.baseline)
    made = Hypothesis("H", "it is so", **{"kind": "range", "group": "C1", "metrics": ("a/b",), "low": 0.0, **wrong})
    with pytest.raises(ValueError, match=said):
        judge(made, study(sweep, asked))


def test_one_seed_and_equal_seeds_decide_nothing(make_sweep: MakeSweep) -> None:
    asked = {"kind": "range", "group": "A", "metric": UP, "low": 0.0}
    one = judged(sweep_of(make_sweep, {UP: around(1.0)}, seeds=(0,), name="one"), **asked)
    assert (one.verdict, one.n, reasons(one)) == ("not evaluable", 1, [Reason.NEEDS_TWO_SEEDS])


def test_equal_seeds_have_no_interval(make_sweep: MakeSweep) -> None:
    same = sweep_of(make_sweep, {UP: {"A": [1.0] * 3}})
    found = judged(same, kind="range", group="A", metric=UP, low=0.0)
    assert found.verdict == "not evaluable" and ground_of(found, Reason.NO_SPREAD).n == 3


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [({"at_least": 1.9}, "supported"), ({"at_least": 2.2}, "contradicted"), ({"at_most": 2.2}, "supported"),
     ({"at_least": 2.0}, "inconclusive")],
)  # fmt: skip
def test_a_ratio_of_means_has_the_factors_that_the_test_does_not_reject(
    make_sweep: MakeSweep, bound: Any, verdict: str
) -> None:
    table = around(1.0, 2.0)
    found = judged(sweep_of(make_sweep, {UP: table}), kind="ratio", group="B", metric=UP, **bound)
    assert found.estimate == pytest.approx(table["B"].mean() / table["A"].mean()) and found.verdict == verdict
    assert found.interval is not None
    for end in found.interval:
        assert compare.paired(table["B"], end * table["A"]).p_t == pytest.approx(0.05, rel=1e-6)


def test_ratio_of_numbers_around_zero_has_no_meaning(make_sweep: MakeSweep) -> None:
    found = judged(sweep_of(make_sweep, {UP: around(0.0, 2.0)}), kind="ratio", group="B", metric=UP, at_least=1)
    assert (found.verdict, reasons(found)) == ("not evaluable", [Reason.NOT_POSITIVE])


@pytest.mark.parametrize(
    ("group", "which", "verdict", "past"),
    [("A", "least", "supported", ()), ("C", "greatest", "supported", ()),
     ("C", "least", "contradicted", ("A", "B")), ("A", "greatest", "contradicted", ("B", "C"))],
)  # fmt: skip
def test_extreme_asks_every_other_group(
    make_sweep: MakeSweep, group: str, which: str, verdict: str, past: tuple[str, ...]
) -> None:
    folder = sweep_of(make_sweep, {UP: around(1.0, 2.0, 3.0), DOWN: {"D": SPREAD}})
    found = judged(folder, kind="extreme", group=group, metric=UP, which=which)
    decided = ground_of(found, Reason.RIVALS_PAST if past else Reason.LEADS_EVERY_RIVAL)
    assert (found.verdict, decided.groups, decided.n) == (verdict, past, 0 if past else 2)
    assert ground_of(found, Reason.LEFT_OUT).groups == ("D",)  # not recorded: no gap, and no rival


def racing(make_sweep: MakeSweep, speeds: Mapping[str, float], seeds: int) -> Path:
    """Rewards that rise by a speed a step, more or less by seed; a group with the speed 0 never reaches anything."""

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        rate = speeds[group] * (1 + 0.01 * seed)
        return [{"step": step, "attempt": 1, UP: rate * step} for step in range(1, 101)]

    return make_sweep(tuple(speeds), tuple(range(seeds)), 100, {"primary": {"metric": UP}}, lines=lines)


FIRST = {"kind": "extreme", "metric": UP, "summary": "time_to", "at": 0.5, "which": "least"}


@pytest.mark.parametrize(("group", "verdict"), [("B", "supported"), ("A", "contradicted"), ("C", "contradicted")])
def test_the_first_of_all_is_the_one_whose_time_is_below_every_other(
    make_sweep: MakeSweep, group: str, verdict: str
) -> None:
    """The exact test of times decides, and a rival that never reaches the threshold counts with the whole budget. To
    contradict, one of two rivals is asked at half the level, which takes seven seeds."""
    found = judged(racing(make_sweep, {"A": 0.01, "B": 0.02, "C": 0.0}, seeds=7), {"window": 1}, **FIRST, group=group)
    assert (found.verdict, found.n) == (verdict, 7)
    if group == "B":
        assert ground_of(found, Reason.LEADS_EVERY_RIVAL).n == 2 and found.against == ("A",)
        assert found.estimate is not None and found.estimate == pytest.approx(-24.3, abs=0.6)


def test_five_seeds_cannot_say_who_is_first(make_sweep: MakeSweep) -> None:
    found = judged(racing(make_sweep, {"A": 0.01, "B": 0.02}, seeds=5), **FIRST, group="B")
    assert found.verdict == "inconclusive" and ground_of(found, Reason.NOT_TOLD_FROM).groups == ("A",)


def test_extreme_that_one_rival_leaves_open(make_sweep: MakeSweep) -> None:
    found = judged(sweep_of(make_sweep, {UP: around(1.0, 1.001, 3.0)}), kind="extreme", group="A", metric=UP,
                   which="least")  # fmt: skip
    assert found.verdict == "inconclusive" and ground_of(found, Reason.NOT_TOLD_FROM).groups == ("B",)
    assert ground_of(found, Reason.WOULD_DECIDE).needed == 73


def test_one_rival_among_many_refutes_at_a_stricter_level(make_sweep: MakeSweep) -> None:
    """Three looks for a better group are three chances to be fooled."""
    difference = np.array([-1.3, -1.0, -0.7])
    at_one, at_three = (compare.paired(difference, np.zeros(3), 0.05 / looks).interval for looks in (1, 3))
    assert at_one is not None and at_three is not None and at_one[1] < 0 < at_three[1]
    table = {"A": SPREAD, "B": SPREAD + difference, "C": 5 + SPREAD, "D": 7 + SPREAD}
    asked = {"kind": "extreme", "group": "A", "metric": UP, "which": "least"}
    found = judged(sweep_of(make_sweep, {UP: table}, name="four"), **asked)
    needed = power.seeds_to_find(
        "paired_t", 1.0 / 0.3, 0.05 / 3
    )  # to contradict: as the means stand, no number would support it
    assert found.verdict == "inconclusive" and ground_of(found, Reason.NOT_TOLD_FROM).groups == ("B", "C", "D")
    stricter = ground_of(found, Reason.NOT_PAST_AT_LEVEL)
    assert (stricter.groups, stricter.n, stricter.level) == (("B",), 3, pytest.approx(0.05 / 3))
    assert ground_of(found, Reason.WOULD_DECIDE).needed == needed


@pytest.mark.parametrize(
    ("centres", "verdict"),
    [((2.0, 1.0, 3.0), "supported"), ((4.0, 1.0, 3.0), "contradicted"), ((1.0, 1.0, 3.0), "inconclusive")],
)
def test_between_two_groups(make_sweep: MakeSweep, centres: Any, verdict: str) -> None:
    found = judged(
        sweep_of(make_sweep, {UP: around(*centres)}), kind="between", group="A", metric=UP, groups=["B", "C"]
    )
    assert found.verdict == verdict and found.estimate == pytest.approx(centres[0])
    assert [comparison.group for comparison in found.comparisons] == ["B", "C"]


@pytest.mark.parametrize(
    ("up", "down", "verdict", "why"),
    [((2.0, 3.0, 1.0), (2.0, 3.0, 1.0), "supported",
      [Reason.AHEAD_BY_ONE, Reason.FRONT_BY_MEANS, Reason.FEW_SEEDS]),
     ((2.0, 3.0, 1.0), (2.0, 1.0, 1.0), "contradicted",
      [Reason.BETTER_BY_BOTH, Reason.BEHIND_BY_MEANS, Reason.FEW_SEEDS]),
     ((2.0, 2.001, 1.0), (2.0, 1.0, 1.0), "inconclusive",
      [Reason.NOT_AHEAD, Reason.BEHIND_BY_MEANS, Reason.WOULD_DECIDE])],
)  # fmt: skip
def test_pareto(make_sweep: MakeSweep, up: Any, down: Any, verdict: str, why: list[Reason]) -> None:
    folder = sweep_of(make_sweep, {UP: around(*up), DOWN: around(*down)})
    found = judged(folder, kind="pareto", group="A", metrics=[UP, DOWN], directions=["higher", "lower"])
    assert (found.verdict, reasons(found), found.n) == (verdict, why, 3)
    assert [ground.groups for ground in found.grounds if ground.groups] == [("B",)] * (
        0 if verdict == "supported" else 2
    )


NEAR, FAR = np.array([0.02, -0.01, 0.05]), np.array([0.3, 0.1, 0.5])


@pytest.mark.parametrize(
    ("up", "down", "by_means"),
    [({"B": -FAR, "C": -NEAR}, {"B": NEAR, "C": -FAR}, Reason.FRONT_BY_MEANS),  # A leads B by both, C by one of them
     ({"B": NEAR, "C": -FAR}, {"B": -FAR, "C": -FAR}, Reason.BEHIND_BY_MEANS)],  # of B, which must be told by both
)  # fmt: skip
def test_pareto_says_how_many_seeds_would_decide(make_sweep: MakeSweep, up: Any, down: Any, by_means: Reason) -> None:
    folder = sweep_of(make_sweep, {UP: {"A": np.zeros(3), **up}, DOWN: {"A": np.zeros(3), **down}})
    found = judged(folder, kind="pareto", group="A", metrics=[UP, DOWN], directions=["higher", "lower"])
    needed = power.seeds_to_find(
        "paired_t", NEAR.mean() / NEAR.std(ddof=1), 0.025
    )  # one of two metrics, or of two rivals
    assert found.verdict == "inconclusive" and ground_of(found, Reason.WOULD_DECIDE).needed == needed
    assert ground_of(found, by_means).groups == (("B",) if by_means is Reason.BEHIND_BY_MEANS else ())


def test_greater_goes_by_the_test_that_three_seeds_cannot_bring_down(make_sweep: MakeSweep) -> None:
    folder = sweep_of(make_sweep, {UP: around(1.0, 3.0)})
    found = judged(folder, {"test": "signflip"}, kind="greater", group="B", metric=UP)
    assert found.verdict == "inconclusive" and found.interval is None  # six differences would bound it
    (comparison,) = found.comparisons
    assert comparison.ground == Ground(Reason.TOO_FEW_SEEDS, n=3, needed=6) and comparison.adjusted == 0.25


@pytest.mark.parametrize(("kind", "verdict"), [("greater", "supported"), ("less", "contradicted")])
def test_six_seeds_decide_a_difference(make_sweep: MakeSweep, kind: str, verdict: str) -> None:
    luck = np.linspace(-0.1, 0.1, 6)
    table = {"A": 1 + luck, "B": 1.5 + luck**2, "C": 2.5 + luck}
    folder = sweep_of(make_sweep, {UP: table}, seeds=range(6))
    assert judged(folder, kind=kind, group="C", metric=UP, against="B").verdict == verdict
    assert judged(folder, kind=kind, group="B", metric=UP).against == ("A",)


def test_missing_runs_and_missing_metrics_decide_nothing(make_sweep: MakeSweep) -> None:
    folder = sweep_of(make_sweep, {UP: around(1.0, 2.0), DOWN: {"A": SPREAD}})
    for kind, more in (("ratio", {"at_least": 1}), ("greater", {}), ("extreme", {"which": "least"})):
        found = judged(folder, kind=kind, group="B", metric=DOWN, **more)
        without = [*found.grounds, *(comparison.ground for comparison in found.comparisons)]
        assert found.verdict == "not evaluable" and Ground(Reason.NOT_RECORDED, ("B",)) in without, kind
    for seed in (0, 1):
        shutil.rmtree(run_folder(folder.parent, f"B-{seed}"))
    found = judged(folder, kind="range", group="B", metric=UP, low=0)
    assert found.verdict == "not evaluable" and found.n == 1
    for asked in ({"kind": "extreme", "which": "least", "metric": UP}, {"kind": "pareto", "metrics": [UP, DOWN]}):
        way = {"directions": ["higher", "lower"]} if asked["kind"] == "pareto" else {}
        found = judged(folder, group="A", **asked, **way)
        assert found.verdict == "not evaluable", asked


def test_equal_differences_have_no_interval_and_decide_nothing(make_sweep: MakeSweep) -> None:
    table = {"A": SPREAD, "B": 1 + SPREAD, "C": 2 + SPREAD}
    folder = sweep_of(make_sweep, {UP: table, DOWN: table})
    for asked in (
        {"kind": "extreme", "which": "greatest", "metric": UP},
        {"kind": "between", "groups": ["A", "C"], "metric": UP},
        {"kind": "pareto", "metrics": [UP, DOWN], "directions": ["higher", "lower"]},
    ):
        found = judged(folder, group="B", **asked)
        assert found.verdict == "not evaluable" and found.grounds[0].reason is Reason.NO_SPREAD, asked
        assert (found.grounds[0].n, len(found.grounds[0].groups)) == (3, 2), asked


@pytest.mark.parametrize(
    ("size", "why"),
    [(1.0, "first tenth: three are needed"), (1e300, "changes too large to square")],
)
def test_what_has_no_value_says_why(make_sweep: MakeSweep, size: float, why: str) -> None:
    steps = 40 if size > 1 else 20  # of which a tenth is four, or two

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        return [{"step": step, "attempt": 1, UP: size * (step % 3) + seed} for step in range(1, steps + 1)]

    folder = make_sweep(("A", "B"), steps=steps, lines=lines, analysis={"primary": {"metric": UP}})
    found = judged(folder, kind="ratio", group="B", metric=UP, summary="early_variance", at_most=1.5)
    assert found.verdict == "not evaluable"
    assert reasons(found) == [Reason.NO_PAIR, Reason.NO_VALUE, Reason.NO_VALUE]
    assert [(ground.groups, why in ground.detail) for ground in found.grounds[1:]] == [(("A",), True), (("B",), True)]


@pytest.mark.parametrize(
    ("gap", "margin", "verdict"),
    [(0.0, 0.05, "equivalent"), (0.0, 0.001, "inconclusive"), (1.0, 0.05, "supported"), (1.0, 1.5, "supported")],
)
def test_a_difference_below_the_margin_is_equivalent(
    make_sweep: MakeSweep, gap: float, margin: float, verdict: str
) -> None:
    spread = 0.01 * np.array([-1.0, 0.5, 0.2, -0.3, 0.8, -0.1])
    folder = sweep_of(make_sweep, {UP: {"A": spread, "B": gap + spread[::-1]}}, seeds=range(6))
    found = judged(folder, kind="greater", group="B", metric=UP, margin=margin)
    smaller = margin > gap + 0.02
    assert found.verdict == verdict and (Reason.SMALLER_THAN_MARGIN in reasons(found)) == smaller
    if smaller:
        assert ground_of(found, Reason.SMALLER_THAN_MARGIN).value == margin
        assert ground_of(found, Reason.UNSEEN_COLLAPSE).value == pytest.approx(1 - 0.05 ** (1 / 6))


@pytest.mark.parametrize(("n", "verdict"), [(5, "inconclusive"), (6, "equivalent")])
def test_a_few_seeds_that_agree_are_not_equivalent(make_sweep: MakeSweep, n: int, verdict: str) -> None:
    spread = 0.01 * np.array([-1.0, 0.5, 0.2, -0.3, 0.8, -0.1])[:n]
    folder = sweep_of(make_sweep, {UP: {"A": spread, "B": spread[::-1]}}, seeds=range(n))
    assert judged(folder, kind="greater", group="B", metric=UP, margin=0.05).verdict == verdict


def test_inconclusive_says_how_many_seeds_would_decide(make_sweep: MakeSweep) -> None:
    table = {"A": np.zeros(6), "B": np.array([0.3, -0.2, 0.4, 0.1, 0.2, -0.1])}
    found = judged(sweep_of(make_sweep, {UP: table}, seeds=range(6)), kind="greater", group="B", metric=UP)
    needed = power.seeds_to_find("paired_t", table["B"].mean() / table["B"].std(ddof=1))
    assert found.verdict == "inconclusive" and needed is not None and needed > 6
    assert ground_of(found, Reason.WOULD_DECIDE).needed == needed
    assert (power.detectable("paired_t", needed) or 9) <= table["B"].mean() / table["B"].std(ddof=1)


@pytest.mark.parametrize(
    ("summary", "where", "estimate"),
    [
        ("slope", Reason.INTERVAL_INSIDE, -0.004),
        ("early", Reason.INTERVAL_OUTSIDE, 0.074),
        ("early_variance", Reason.INTERVAL_OUTSIDE, 0.0003),
    ],
)
def test_early_phase_and_slope_are_over_seeds(
    make_sweep: MakeSweep, summary: str, where: Reason, estimate: float
) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        random = np.random.default_rng(seed)
        return [{"step": s, "attempt": 1, UP: 0.1 - 0.004 * (1 + 0.01 * seed) * s + 0.001 * float(random.normal())
                 + (0.08 if s < 5 else 0)} for s in range(1, 201)]  # fmt: skip

    folder = make_sweep(("A",), steps=200, lines=lines, analysis={"primary": {"metric": UP}})
    found = judged(folder, kind="range", group="A", metric=UP, summary=summary, high=0.0)
    assert reasons(found)[0] is where and found.n == 3
    assert found.estimate == pytest.approx(estimate, rel=0.2)


# ---------------------------------------------------------------- times


def rising(rates: Mapping[str, float]) -> Any:
    """A curve that reaches 1 at step 50 / rate, a little sooner or later by seed."""

    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        rate = rates[group] * (1 + 0.02 * (seed - 1) * (1 if group == "A" else 2))
        return [{"step": s, "attempt": 1, UP: min(1.0, rate * s / 50)} for s in range(1, 101)]

    return lines


@pytest.mark.parametrize(
    ("rates", "at_least", "verdict", "bound"),
    [({"A": 1.0, "B": 2.0}, 1.5, "supported", None), ({"A": 1.0, "B": 1.1}, 1.5, "contradicted", None),
     ({"A": 0.4, "B": 1.0}, 0.8, "supported", "at least"), ({"A": 0.4, "B": 1.0}, 1.5, "inconclusive", "at least"),
     ({"A": 1.0, "B": 0.4}, 1.5, "contradicted", "at most"), ({"A": 0.4, "B": 0.3}, 1.5, "not evaluable", None)],
)  # fmt: skip
def test_efficiency_is_a_bound_where_times_are_cut(
    make_sweep: MakeSweep, rates: Any, at_least: float, verdict: str, bound: str | None
) -> None:
    folder = make_sweep(("A", "B"), range(6), 100, lines=rising(rates), analysis={"primary": {"metric": UP}})
    asked = {"group": "B", "metric": UP, "kind": "ratio", "at": 0.9}
    found = judged(folder, **asked, summary="efficiency", at_least=at_least)
    assert (found.verdict, found.bound) == (verdict, bound)
    assert (Reason.TIMES_CUT in reasons(found)) == (bound is not None)
    assert (Reason.ALL_TIMES_CUT in reasons(found)) == (verdict == "not evaluable")
    if found.bound is Bound.AT_LEAST:
        assert found.interval is not None and found.interval[1] == np.inf
    inverse = judged(folder, **asked, summary="time_to", at_most=1 / at_least)
    assert inverse.verdict == verdict  # a share of the time instead


# ---------------------------------------------------------------- the report


@pytest.mark.parametrize("given", [{"kind": "range", "low": 0, "high": 9}, {"kind": "variation", "at_most": 1}])
def test_a_report_calls_no_claim_about_the_seeds_of_one_group_supported(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str], given: dict[str, Any]
) -> None:
    claims = {"H": {"claim": "It is so.", "group": "A", "metric": UP, **given}}
    claims["J"] = {"claim": "All is so.", "kind": "all", "of": ["H"]}
    folder = sweep_of(make_sweep, {UP: around(1.0, 2.0)}, {"hypotheses": claims})
    assert main(["report", str(folder)]) == 0
    found = json.loads((folder / "report/report.json").read_text())["hypotheses"]
    assert [hypothesis["verdict"] for hypothesis in found] == ["not judged", "not judged"]
    assert "H not judged: It is so.\nJ not judged: All is so.\n" in capsys.readouterr().out


def test_report_shows_the_verdicts_whichever_way_they_fall(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = qstar.make(make_sweep)
    known = {name: stated for name, stated in qstar.HYPOTHESES.items() if name != "H2"}
    kept = [
        {"planned": 24, "done": [], "hypotheses": known},
        {"planned": 24, "done": ["a"], "hypotheses": qstar.HYPOTHESES},
    ]
    (folder / "hypotheses.json").write_text(json.dumps({"format": 1, "declarations": kept}))
    assert main(["report", str(folder)]) == 0
    report = folder / "report"
    assert "H3 contradicted: It has the least gradient variance of the eight." in capsys.readouterr().out
    document = json.loads((report / "report.json").read_text())
    verdicts = {found["id"]: found["verdict"] for found in document["hypotheses"]}
    expected = dict.fromkeys(("H4", "H5"), "supported") | dict.fromkeys(("H2", "success"), "inconclusive")
    expected |= {"H1": "not judged", "H3": "contradicted"}
    assert verdicts == expected
    with open(report / "tables" / "hypotheses.csv", newline="") as file:
        rows = {row["hypothesis"]: row for row in csv.DictReader(file)}
    assert 0.9 < float(rows["H1"]["low"]) < 1 < float(rows["H1"]["high"]) < 1.1 and rows["H1"]["seeds"] == "3"
    assert [rows[name]["declared"] for name in ("H1", "H2")] == ["before any run was done", "with 1 of 24 runs done"]
    assert rows["success"]["decided_by"].startswith("H1 not judged; H2 inconclusive; H3 contradicted")
    for name in ("index.html", "tables/hypotheses.md", "tables/hypotheses.tex"):
        assert "The two effective sample sizes balance." in (report / name).read_text()
    assert r"{lp{0.2\linewidth}lp{0.2" in (report / "tables" / "hypotheses.tex").read_text()
    plan = json.loads((folder / "plan.json").read_text())
    del plan["analysis"]["hypotheses"]
    (folder / "plan.json").write_text(json.dumps(plan))
    main(["report", str(folder)])
    assert not list(report.glob("tables/hypotheses.*")) and 'id="hypotheses"' not in (report / "index.html").read_text()


@pytest.mark.parametrize(
    ("least", "verdict", "level", "lost"),
    [
        (3, "inconclusive", 0.05 / 3, "supported"),
        (4, "inconclusive", None, None),
        (5, "not judged", 0.01, "contradicted"),
    ],
)
def test_count_of_supported(
    make_sweep: MakeSweep, least: int, verdict: str, level: float | None, lost: str | None
) -> None:
    sweep = read_sweep(qstar.make(make_sweep))
    given = {**qstar.HYPOTHESES, "success": {**qstar.HYPOTHESES["success"], "at_least": least}}
    found = study(sweep, settings({**qstar.ANALYSIS, "hypotheses": given}, groups=sweep.groups, baseline="ppo"))
    count = judge(found.settings.hypotheses[-1], found)
    assert (count.verdict, count.estimate) == (verdict, 2)
    members = [(*ground.members, ground.outcome) for ground in count.grounds if ground.reason is Reason.MEMBER]
    assert ("H3", "contradicted") in members and len(members) == 5
    stricter = {(ground.level, ground.outcome) for ground in count.grounds if ground.reason is Reason.MEMBERS_AT_LEVEL}
    assert level is None or (level, lost) in stricter

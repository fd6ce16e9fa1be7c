"""Comparisons looked at while seeds are added: levels, p values, futility, and where each comparison stands."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from analysis.__main__ import main
from analysis.data.sweep import read_sweep
from analysis.findings.interim import Status
from analysis.findings.study import Comparison, Outcome, Reason, Study, as_declared, study
from analysis.findings.verdicts import judge
from analysis.report.headline import answer
from analysis.spec.declaration import Declaration, Registration, added_runs
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from analysis.stats import Contrast, Look, boundary, chance, looks, paired, spending
from analysis.stats.numbers import format_level
from analysis.stats.resolution import PAIRED, UNPAIRED
from analysis.tables import wording
from analysis.tables.comparison import brief
from benchmarks.validity import UP, sweep_of
from tests.analysis.conftest import ANALYSIS, MakeSweep, block_of, logging, refusal
from tests.analysis.test_reports import luck
from tests.wording import Worded

TESTS = (*PAIRED, *UNPAIRED)
ALPHA = 0.05
EXPERIMENTS = 30_000


def t_of(a: np.ndarray, b: np.ndarray, test: str) -> tuple[np.ndarray, np.ndarray]:
    """t and its degrees of freedom, of experiments (e, n)."""
    n = a.shape[1]
    if test == "paired_t":
        d = a - b
        return d.mean(axis=1) / d.std(axis=1, ddof=1) * math.sqrt(n), np.full(len(a), n - 1.0)
    va, vb = a.var(axis=1, ddof=1) / n, b.var(axis=1, ddof=1) / n
    return (a.mean(axis=1) - b.mean(axis=1)) / np.sqrt(va + vb), (va + vb) ** 2 / (va**2 + vb**2) * (n - 1)


def found(seeds: tuple[int, ...], levels: tuple[float, ...], test: str, spread: float = 1.0) -> np.ndarray:
    """By each look, the share of experiments without a difference that some look has found one in."""
    random, experiments = np.random.default_rng(1), EXPERIMENTS
    a, b = random.standard_normal((experiments, seeds[-1])), spread * random.standard_normal((experiments, seeds[-1]))
    hit, shares = np.zeros(experiments, dtype=bool), []
    for n, level in zip(seeds, levels, strict=True):
        t, df = t_of(a[:, :n], b[:, :n], test)
        hit |= 2 * stats.t.sf(np.abs(t), df) <= level
        shares.append(hit.mean())
    return np.array(shares)


def test_looks_are_at_declared_numbers_of_seeds_and_end_at_the_most():
    assert looks(4, 2, 12) == (4, 6, 8, 10, 12)
    assert looks(4, 3, 12) == (4, 7, 10, 12)
    assert looks(5, 2, 5) == (5,)
    for wrong in ((1, 2, 12), (6, 2, 4), (4, 0, 12)):
        with pytest.raises(ValueError, match="are needed"):
            looks(*wrong)


@pytest.mark.parametrize("seeds", [(4, 6, 8, 10, 12), (2, 5), (3, 4, 5, 6, 7, 8, 9, 10)])
def test_paired_t_spends_exactly_what_each_look_may(seeds):
    shares, spent = found(seeds, boundary("paired_t", seeds), "paired_t"), ALPHA * np.array(spending(seeds))
    assert (np.abs(shares - spent) <= 4 * np.sqrt(spent / EXPERIMENTS)).all()


@pytest.mark.parametrize("spread", [1.0, 3.0, 100.0])
def test_welch_spends_no_more_than_each_look_may(spread):
    """At 1:3, Welch's approximation itself, of four values, finds 1.3 times its level; a fixed number has this, too."""
    seeds = (4, 6, 8, 10, 12)
    spent = ALPHA * np.array(spending(seeds)) * (1.0 if spread != 3 else np.array([1.3, 1.2, 1.12, 1.06, 1.04]))
    shares = found(seeds, boundary("welch", seeds), "welch", spread)
    assert (shares <= spent + 4 * np.sqrt(spent / EXPERIMENTS)).all()
    assert shares[-1] > 0.8 * ALPHA  # and the bound is not idle


def test_with_many_seeds_the_levels_are_those_of_the_normal_distribution():
    spent, seeds = (0.3, 1.0), (1000, 2000)
    z = stats.norm.isf(ALPHA * 0.3 / 2)
    both = stats.multivariate_normal([0, 0], [[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])

    def inside(y: float) -> float:
        return float(both.cdf([z, y], lower_limit=[-z, -y]))

    y = optimize.brentq(lambda y: 1 - inside(y) - ALPHA, 1.5, 4)
    sizes = tuple((n, n) for n in seeds)
    first, second = (Look("paired_t", sizes[:k], spent[:k]).level(ALPHA) for k in (1, 2))
    assert first == pytest.approx(0.3 * ALPHA, rel=1e-3)
    assert second == pytest.approx(2 * stats.norm.sf(y), rel=3e-3)


@given(
    test=st.sampled_from(TESTS), start=st.integers(2, 5), batch=st.integers(1, 4), more=st.integers(0, 4),
    alpha=st.floats(1e-9, 0.99),
)  # fmt: skip
@hypothesis.settings(max_examples=15)
def test_p_is_the_inverse_of_the_level(test, start, batch, more, alpha):
    seeds = looks(start, batch, start + more)
    look = Look(test, tuple((n, n) for n in seeds), spending(seeds))
    assert look.p(look.level(alpha)) == pytest.approx(alpha, rel=1e-9)
    assert look.level(0.9 * alpha) < look.level(alpha) <= alpha * (1 + 1e-9) + 5e-3
    assert look.level(0.0) == 0.0 and look.p(1.0) == 1.0


def test_one_look_is_the_test_itself_and_other_tests_are_asked_at_the_share_of_their_look():
    for test in TESTS:
        assert boundary(test, (6,)) == pytest.approx((ALPHA,), rel=1e-3)
    assert boundary("signflip", (4, 6, 8)) == pytest.approx([ALPHA * x for x in (0.25, 0.3125, 0.4375)])


def test_a_seed_that_fails_changes_no_earlier_look_and_a_look_without_new_values_adds_its_share():
    spent = spending((4, 6, 8))
    whole, failed = ((4, 4), (6, 6), (8, 8)), ((4, 4), (4, 4), (7, 7))
    first = Look("paired_t", whole[:1], spent[:1]).level(ALPHA)
    assert Look("paired_t", failed[:1], spent[:1]).level(ALPHA) == first
    assert Look("paired_t", failed[:2], spent[:2]).level(ALPHA) == pytest.approx(ALPHA * spent[1], rel=1e-3)
    last = Look("paired_t", failed, spent).level(ALPHA)
    assert last == pytest.approx(Look("paired_t", ((4, 4), (7, 7)), (spent[1], 1.0)).level(ALPHA))
    # one seed has no t: nothing is spent, and the next look has it all
    assert Look("paired_t", ((1, 1),), (0.25,)).level(ALPHA) == 0.0
    assert Look("paired_t", ((1, 1),), (0.25,)).p(0.001) == 1.0
    assert Look("paired_t", ((1, 1), (6, 6)), (0.25, 0.6)).level(ALPHA) == pytest.approx(0.6 * ALPHA, rel=1e-3)


def test_looks_that_fall_are_refused():
    for sizes, spent in (
        (((4, 4),), (0.5, 1.0)), ((), ()), (((4, 4), (3, 3)), (0.5, 1.0)), (((4, 4), (6, 6)), (0.5, 0.4)),
        (((4, 4),), (1.5,)),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            Look("paired_t", sizes, spent)


@pytest.mark.parametrize(
    ("test", "t", "n", "last"), [("paired_t", 1.0, 4, 10), ("paired_t", 3.0, 6, 7), ("welch", 0.5, 4, 9)]
)
def test_chance_is_what_new_seeds_show(test, t, n, last):
    """Against seeds drawn from what the first ones leave open: a spread, then means, then values."""
    random, draws, level = np.random.default_rng(5), 40_000, 0.04
    groups = 1 if test == "paired_t" else 2
    df = groups * (n - 1)
    spread = np.sqrt(df / random.chisquare(df, draws))[:, None]
    first = np.zeros((groups, n))
    first[:, 0::2], first[:, 1::2] = 1, -1  # any values with mean zero
    first *= math.sqrt((n - 1) / (first[0] ** 2).sum())
    first[0] += t * math.sqrt(groups / n)
    samples = []
    for values in first:
        mean = values.mean() + spread * random.standard_normal((draws, 1)) / math.sqrt(n)
        new = mean + spread * random.standard_normal((draws, last - n))
        samples.append(np.concatenate([np.broadcast_to(values, (draws, n)), new], axis=1))
    a, b = samples if groups == 2 else (samples[0], np.zeros_like(samples[0]))
    hits = t_of(a, b, test)[0] >= stats.t.isf(level / 2, groups * (last - 1))
    assert chance(test, t, (n, n), (last, last), level) == pytest.approx(hits.mean(), abs=0.006)


def test_chance_needs_more_values_and_a_level():
    assert chance("signflip", 2.0, (4, 4), (8, 8), 0.0) == 0.0
    assert chance("paired_t", 50.0, (4, 4), (8, 8), 0.05) > 0.99
    for now, last in (((4, 4), (4, 4)), ((1, 1), (8, 8))):
        with pytest.raises(ValueError, match="more of them"):
            chance("paired_t", 1.0, now, last, 0.05)


RULE = {"start": 4, "batch": 2, "max": 10, "until": "decided"}
SIZES = (4, 6, 8, 10)


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
    return found.primary.comparison(group)


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
    standing = comparison.standing
    assert (standing.look, standing.seeds, standing.level) == (2, 6, pytest.approx(level))
    assert comparison.outcome is Outcome.HIGHER and standing.status is Status.DECIDED


def test_the_levels_of_brackets_are_those_of_their_looks() -> None:
    """In the answer that of the means, and in the table of a paper that of the differences, too."""
    a, b = luck(1, 6), [x + 1.0 + y for x, y in zip(luck(1, 6), luck(2, 6, 0.4), strict=True)]
    found = studied({"A": a, "B": b, "C": luck(5, 6)})
    mean, least = boundary("paired_t", SIZES)[1], min(c.contrast.level(c.level) for c in found.primary.comparisons)
    brackets = next(line for line in answer(found).limits if line.startswith("The brackets hold"))
    assert f"its {format_level(mean)} t interval" in brackets and least < mean
    shown = f"{format_level(mean)} to {format_level(least)}".replace("% to", " to")
    assert f"with {shown} intervals" in brief(found).notes[0]


def test_what_is_decided_at_a_look_is_not_undone_by_seeds_that_come_after_it() -> None:
    a = luck(3, 10, 0.1)
    b = [x + 2 for x in luck(4, 6, 0.1)] + [-5.0, -6.0, -4.0, -7.0]
    found = studied({"A": a, "B": b})
    comparison = compared(found)
    assert (comparison.outcome, comparison.n, comparison.standing.look) == (Outcome.HIGHER, 4, 1)
    # another measure does not end with the primary one: it has all seeds, at the level of its look
    area = block_of(found, UP, "auc").comparison("B")
    assert area.n == 10 and area.outcome is Outcome.INCONCLUSIVE


def test_a_method_that_cannot_win_is_not_supported_and_never_worse() -> None:
    a, b = luck(9, 4), [x - 1.5 for x in luck(10, 4)]
    claim = {"claim": "B is above A.", "kind": "greater", "group": "B", "metric": UP, "against": "A"}
    found = studied({"A": a, "B": b}, hypotheses={"H": claim})
    comparison = compared(found)
    assert (comparison.outcome, comparison.ground.reason) == (Outcome.INCONCLUSIVE, Reason.FUTILE)
    assert comparison.standing.status is Status.FUTILE and comparison.standing.chance < 0.05
    said = wording.outcome(comparison, found.primary.measure, found.sweep, ALPHA)
    assert said.startswith("not supported: futile at 4 of at most 10 seeds")
    verdict = judge(found.settings.hypotheses[0], found)
    assert verdict.verdict is Outcome.INCONCLUSIVE and verdict.grounds == ()
    # what a hypothesis claims is hoped for, too
    below = {"claim": "B is below A.", "kind": "less", "group": "B", "metric": UP, "against": "A"}
    for side in (below, {**claim, "group": "A", "against": "B"}):
        hopeful = studied({"A": a, "B": b}, hypotheses={"H": side})
        assert compared(hopeful).standing.status is not Status.FUTILE
        assert Reason.WOULD_DECIDE not in {
            ground.reason for ground in judge(hopeful.settings.hypotheses[0], hopeful).grounds
        }
    # futility binds nothing: with its further seeds, a futile comparison may be decided
    more = compared(studied({"A": a + luck(11, 6, 0.1), "B": b + [x + 9 for x in luck(12, 6, 0.1)]}))
    assert more.outcome is Outcome.HIGHER


@pytest.mark.parametrize("test", TESTS)
def test_interval_and_verdict_never_disagree(test: str) -> None:
    pairing = "none" if test in UNPAIRED else "seed"
    outcomes = set()
    for seed in range(12):
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
    [*({"sequential": {"start": start, "max": most, "until": until}}
       for start, most, until in ((4, 3, "decided"), (1, 8, "decided"), (4, 8, "tired"))),
     {"sequential": {"start": 4, "max": 8}}, {"sequential": RULE, "family": "max_t"},
     {"sequential": RULE, "select": {"lr": "best"}}],
)  # fmt: skip
def test_what_has_no_levels_is_refused(section: Mapping[str, Any], worded: Worded) -> None:
    worded(refusal(BadPlan, lambda: settings(section, groups=("A", "B"), baseline="A")))


def test_what_was_declared_is_judged_with_the_seeds_that_its_rule_has_added(make_sweep: MakeSweep) -> None:
    """Those of the declared groups and of runs that are as they were, up to its most seeds."""
    asked = {"primary": {"metric": UP, "direction": "higher"}, "sequential": {**RULE, "start": 2, "max": 6}}
    cells = {"C": [{"lr": 1}, {"lr": 2}]}
    noise = luck(3, 8, 0.3)

    lines = logging(lambda group, seed, *_: (1.0 + noise[seed]) * (group != "A") + noise[-seed], 8)
    folder = make_sweep(("A", "B", "C", "D"), range(8), 8, {**asked, "window": 3}, cells, lines=lines)
    now = json.loads((folder / "plan.json").read_text())
    runs = [run for run in now["runs"] if run["seed"] < 2 and run["group"] != "D"]
    runs = [{**run, "id": "other"} if run["factors"] == {"lr": 2} else run for run in runs]
    before = {**now, "analysis": asked, "seeds": [0, 1], "runs": runs}
    added = added_runs(before, now["runs"])
    assert {(run["group"], *run["factors"].values(), run["seed"]) for run in added} == {
        (*of, seed) for of in (("A",), ("B",), ("C", 1)) for seed in range(2, 6)
    }
    fixed = {**before, "analysis": {**asked, "sequential": None}}
    assert added_runs(fixed, now["runs"]) == []
    before["groups"].pop("D")
    found = Registration({**before, "runs": [run for run in runs if run["group"] in "AB"]}, None, Declaration(0, 6), ())
    sweep = read_sweep(folder)
    declared = as_declared(study(sweep, sweep.asked()), found)
    assert declared is not None and declared.settings.window == 20 and declared.primary.comparison("D") is None
    comparison = compared(declared)
    assert (comparison.outcome, comparison.standing.most) == (Outcome.HIGHER, 6) and comparison.n > 2


@pytest.mark.parametrize(("rule", "n", "status"), [((4, 2, 6), 4, "futile"), ((4, 2, 8), 4, "continue"),
                                                   ((6, 1, 7), 6, "futile")])  # fmt: skip
def test_no_seed_is_added_for_looks_that_cannot_decide(rule: tuple[int, int, int], n: int, status: str) -> None:
    start, batch, most = rule
    asked = {"start": start, "batch": batch, "max": most, "until": "decided"}
    a, b = luck(1, n), [2.0, 3.0, 2.5, 3.5, 4.0, -0.01][-n:]
    values = {"A": a, "B": [x + y for x, y in zip(a, b, strict=True)]}
    standing = compared(studied(values, sequential=asked, test="signflip")).standing
    assert (standing.look, standing.status) == (1, status) and (status == "continue" or standing.chance == 0.0)

"""Benchmarks of which seeds lack tasks: what is estimated, what is tested, and what the report says."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as laws
from hypothesis import strategies as st

from analysis.data.normalized import normalized
from analysis.data.sweep import read_sweep
from analysis.findings.ratios import of_comparison
from analysis.findings.study import collapse
from analysis.findings.verdicts import judge
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from analysis.stats import exact, strata
from tests.analysis.conftest import UP, MakeSweep, block_of, logging, refusal, studied, without
from tests.analysis.test_reports import ASKED, GAPS9, SECTIONS, TASKS9, built, scored
from tests.wording import Worded

SEEDS = range(6)


def value(group: str, seed: int, task: str) -> float:
    return scored(group, seed, {"task": task}, 0)


def lead(seed: int, place: int) -> float:
    return value("B", seed, TASKS9[place]) - value("A", seed, TASKS9[place])


#: Three tasks lack a seed of one group, and B has no run of t8.
TORN = SECTIONS["tasks that some seeds lack"]


def runs_of(group: str, place: int) -> list[int]:
    return [seed for seed in SEEDS if f"{group}-{seed}-{place}" not in GAPS9]


def test_no_task_is_left_out_because_a_seed_lacks_it(make_sweep: MakeSweep) -> None:
    found = studied(built(make_sweep, TORN))
    (comparison,) = found.primary.comparisons
    both = {place: sorted({*runs_of("A", place)} & {*runs_of("B", place)}) for place in range(8)}
    by_task = [np.mean([lead(seed, place) for seed in seeds]) for place, seeds in both.items()]
    assert comparison.seeds == tuple(SEEDS) and comparison.difference == pytest.approx(np.mean(by_task))
    flipped = [6 / 8 * sum(lead(seed, p) / len(both[p]) for p in both if seed in both[p]) for seed in SEEDS]
    assert exact.signflip(np.subtract(comparison.contrast.a, comparison.contrast.b)) == exact.signflip(flipped)
    assert np.subtract(comparison.contrast.a, comparison.contrast.b) == pytest.approx(flipped)
    for estimate, group in zip(found.primary.estimates, ("A", "B"), strict=True):
        tasks = [place for place in range(9) if runs_of(group, place)]
        own = [np.mean([value(group, seed, TASKS9[place]) for seed in runs_of(group, place)]) for place in tasks]
        assert estimate.mean == pytest.approx(np.mean(own)) and estimate.seeds == tuple(SEEDS)
        assert estimate.interval is not None and estimate.interval[1] - estimate.interval[0] < 2  # tasks are 10 apart


@pytest.mark.parametrize("pairing", ["seed", "none"])
@pytest.mark.parametrize("gone", [("B", 5), ("A", 0)])
def test_completed_times_outside_of_the_budget_have_an_efficiency(
    make_sweep: MakeSweep, gone: tuple[str, int], pairing: str
) -> None:
    """A run is missing, so the times of its seed are completed, beyond 40 steps in one group or the other."""

    def rises(group: str, seed: int, cell: Any, step: int) -> float:
        return min({"A": 0.55, "B": 0.9}[group] + 0.02 * seed, step / (40 if cell["task"] == "x" else 48))

    fast = {"claim": "B is as fast", "kind": "ratio", "summary": "efficiency", "group": "B", "metric": UP, "at": 0.6}
    asked = {**ASKED, "time_to": [{"at": 0.6}], "window": 1, "pairing": pairing}
    cells = {name: [{"task": "x"}, {"task": "y"}] for name in "AB"}
    folder = make_sweep(("A", "B"), SEEDS, 40, asked, cells, lines=logging(rises, 40))
    found = studied(without(folder, f"{gone[0]}-{gone[1]}-1"), hypotheses={"H": {**fast, "at_least": 0.5}})
    (comparison,) = block_of(found, UP, "time_to").comparisons
    ratio = of_comparison(comparison, 40, inverse=True)
    group, baseline = comparison.contrast.a, comparison.contrast.b
    assert pairing == "none" or not 0 <= min(*group, *baseline) <= max(*group, *baseline) <= 40
    assert ratio.bound == "at least" and ratio.value == pytest.approx(baseline.mean() / group.mean())
    assert ratio.interval and 0.5 < ratio.interval[0] < ratio.value and ratio.interval[1] == math.inf
    assert judge(found.settings.hypotheses[0], found).verdict == "supported"


# ---------------------------------------------------------------- reference scores


def test_scores_are_normalised_before_anything_is_computed(make_sweep: MakeSweep) -> None:
    ends = {task: [10 * place - 1, 10 * place + 4] for place, task in enumerate(TASKS9)}
    claim = {"claim": "x", "kind": "range", "group": "A", "metric": UP, "low": 0}
    found = studied(built(make_sweep, TORN), normalize=ends, time_to=[{"at": 0.1}], window=1, hypotheses={"H": claim})
    run = next(run for run in found.sweep.runs if (run.group, run.seed, dict(run.cell)["task"]) == ("B", 1, "t6"))
    expected = (value("B", 1, "t6") - 59) / 5
    for summary in ("final", "auc", "best"):
        assert block_of(found, UP, summary).values[run.id].value == pytest.approx(expected)
    assert block_of(found, UP, "time_to").values[run.id].reached is (expected >= 0.1)
    assert found.primary.estimate("A").mean == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize("ends", [{"t_0": [0, 1]}, {task: [0, 1] for task in TASKS9[1:]}, {"t0": [1, 1]}, {"t0": [1]}])
def test_references_that_do_not_fit_are_refused_with_the_fix(make_sweep: MakeSweep, ends: Any, worded: Worded) -> None:
    folder = built(make_sweep, TORN)
    worded(refusal(BadPlan, lambda: studied(folder, normalize=ends)))


def test_a_run_collapses_by_its_reward_as_recorded(make_sweep: MakeSweep) -> None:
    reward = "analysis/reward_sum_mean"
    asked = {"primary": {"metric": reward}, "normalize": {"x": [-1, 1]}}
    cells = {"C0": [{"task": "x"}]}
    sweep = read_sweep(make_sweep(("C0",), (0,), 10, asked, cells, lines=logging(lambda *_: 0.0, 10, reward)))
    after = normalized(settings(asked), sweep)
    assert after.runs[0].curves.values[reward].tolist() == [0.5] * 10
    assert collapse(after.runs[0]) == collapse(sweep.runs[0]) != ()


def test_the_factor_is_the_one_that_has_the_names(make_sweep: MakeSweep) -> None:
    cells = {"C0": [{"lr": lr, "game": game} for lr in (0.1, 0.2) for game in ("Pong", "Qbert")]}
    folder = make_sweep(("C0",), (0,), 10, ASKED, cells, lines=logging(lambda *_: 4.0, 1))
    after = normalized(settings({**ASKED, "normalize": {"Pong": [0, 8], "Qbert": [0, 2]}}), read_sweep(folder))
    shown = {dict(run.cell)["game"]: float(run.curves.values[UP][0]) for run in after.runs}
    assert shown == {"Pong": 0.5, "Qbert": 2.0}
    assert json.loads((folder / "plan.json").read_text())["factors"] == {}


# ---------------------------------------------------------------- the statistics

GAPS = st.tuples(st.integers(2, 6), st.integers(1, 7), st.integers(0, 10**6))


def torn(shape: tuple[int, int, int]) -> np.ndarray:
    """Values of seeds and strata, each of which has one."""
    n, count, seed = shape
    random = np.random.default_rng(seed)
    values = random.standard_normal((n, count)) + 3 * random.standard_normal(count)
    missing = random.random((n, count)) < 0.4
    missing[np.arange(n), random.integers(count, size=n)] = False
    missing[random.integers(n, size=count), np.arange(count)] = False
    values[missing] = np.nan
    return values


@laws(max_examples=80)
@given(GAPS)
def test_each_stratum_counts_the_same(shape: tuple[int, int, int]) -> None:
    values = torn(shape)
    expected = np.nanmean(values, axis=0)
    assert strata.contributions(values).mean() == pytest.approx(expected.mean())
    assert strata.completed(values).mean(axis=0) == pytest.approx(expected)
    assert strata.contributions(-values) == pytest.approx(-strata.contributions(values))
    weights = np.arange(1.0, shape[1] + 1) / np.arange(1.0, shape[1] + 1).sum()
    assert strata.contributions(values, weights).mean() == pytest.approx((weights * expected).sum())
    with pytest.raises(ValueError, match="one for each of"):
        strata.contributions(values, [1.0] * (shape[1] + 1))
    assert np.isnan(values).any() or strata.contributions(values) == pytest.approx(values.mean(axis=1))
    curves = np.stack([values, 2 * values], axis=-1)
    assert strata.completed(curves)[..., 1] == pytest.approx(2 * strata.completed(values))


@pytest.mark.parametrize("shared", [False, True])
def test_the_variance_of_completed_values_is_not_too_small(shared: bool) -> None:
    """Where strata are independent, and where they share the luck of a seed."""
    random = np.random.default_rng(1)
    present = ~np.isnan(torn((5, 6, 8)))
    means, variances = [], []
    for _ in range(1000):
        luck = random.standard_normal((5, 1)) * np.ones(6) if shared else random.standard_normal((5, 6))
        numbers = strata.completed(np.where(present, luck, np.nan)).mean(axis=1)
        means.append(numbers.mean())
        variances.append(numbers.var(ddof=1) / 5)
    ratio = np.mean(variances) / np.var(means)
    assert 1 < ratio * present.mean() < 1.5  # and the share of values that is missing makes it larger


@pytest.mark.parametrize("values", [[1.0, 2.0], [[1.0, np.nan], [2.0, np.nan]], [[1.0, 2.0], [np.nan, np.nan]]])
def test_a_seed_or_stratum_without_a_value_is_refused(values: Any) -> None:
    for function in (strata.contributions, strata.completed):
        with pytest.raises(ValueError, match=r"has no value|have shape"):
            function(values)

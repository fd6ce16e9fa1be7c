"""Benchmarks of which seeds lack tasks: what is estimated, what is tested, and what the report says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as laws
from hypothesis import strategies as st

from analysis.data.normalized import normalized
from analysis.data.sweep import read_sweep
from analysis.findings.outcomes import collapse
from analysis.spec.settings import settings
from analysis.spec.validation import BadPlan
from analysis.stats import exact, strata
from analysis.tables.comparison import main
from tests.analysis.conftest import Lines, MakeSweep, block_of, refusal, studied, without
from tests.wording import Worded

SCORE = "eval/score"
ASKED: dict[str, Any] = {"primary": {"metric": SCORE, "direction": "higher"}}
TASKS = [f"t{number}" for number in range(9)]
SEEDS = tuple(range(6))
#: (group, seed, place of the task) without a run: three tasks lack a seed of one group, and b has no run of t8.
GONE = [("a", 0, 1), ("b", 3, 1), ("b", 5, 2), ("a", 2, 3), *[("b", seed, 8) for seed in SEEDS]]


def value(group: str, seed: int, task: str) -> float:
    place = int(task[1:])
    luck = np.random.default_rng([seed, place, group == "b"]).standard_normal()
    return float(10.0 * place + (group == "b") * (1 + place % 3) + 0.3 * luck)


def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
    return [{"step": step, SCORE: value(group, seed, cell["task"])} for step in range(1, 11)]


def benchmark(make_sweep: MakeSweep, gone: Any = GONE) -> Path:
    cells = {group: [{"task": task} for task in TASKS] for group in ("a", "b")}
    folder = make_sweep(("a", "b"), SEEDS, 10, ASKED, cells, lines=lines)
    for group, seed, place in gone:
        without(folder, f"{group}-{seed}-{place}")
    return folder


def runs_of(group: str, place: int) -> list[int]:
    return [seed for seed in SEEDS if (group, seed, place) not in GONE]


# ---------------------------------------------------------------- the report


def test_no_task_is_left_out_because_a_seed_lacks_it(make_sweep: MakeSweep) -> None:
    found = studied(benchmark(make_sweep))
    (comparison,) = found.primary.comparisons
    both = {place: sorted({*runs_of("a", place)} & {*runs_of("b", place)}) for place in range(8)}
    by_task = [
        np.mean([value("b", seed, TASKS[place]) - value("a", seed, TASKS[place]) for seed in seeds])
        for place, seeds in both.items()
    ]
    assert comparison.seeds == SEEDS and comparison.difference == pytest.approx(np.mean(by_task))
    flipped = [
        6
        / 8
        * sum((value("b", seed, TASKS[p]) - value("a", seed, TASKS[p])) / len(both[p]) for p in both if seed in both[p])
        for seed in SEEDS
    ]
    assert comparison.result.p_signflip == exact.signflip(flipped)
    assert np.subtract(comparison.a, comparison.b) == pytest.approx(flipped)
    for estimate, group in zip(found.primary.estimates, ("a", "b"), strict=True):
        tasks = [place for place in range(9) if runs_of(group, place)]
        own = [np.mean([value(group, seed, TASKS[place]) for seed in runs_of(group, place)]) for place in tasks]
        assert estimate.mean == pytest.approx(np.mean(own)) and estimate.seeds == SEEDS
        assert estimate.interval is not None and estimate.interval[1] - estimate.interval[0] < 2  # tasks are 10 apart


def test_a_whole_benchmark_says_none_of_this(make_sweep: MakeSweep) -> None:
    notes = " ".join(main(studied(benchmark(make_sweep, gone=()))).notes)
    assert not any(word in notes for word in ("unbalanced", "left out", "different levels", "makes up"))


# ---------------------------------------------------------------- reference scores


def test_scores_are_normalised_before_anything_is_computed(make_sweep: MakeSweep) -> None:
    ends = {task: [10 * place - 1, 10 * place + 4] for place, task in enumerate(TASKS)}
    claim = {"claim": "x", "kind": "range", "group": "a", "metric": SCORE, "low": 0}
    found = studied(benchmark(make_sweep), normalize=ends, time_to=[{"at": 0.1}], window=1, hypotheses={"H": claim})
    run = next(run for run in found.sweep.runs if (run.group, run.seed, dict(run.cell)["task"]) == ("b", 1, "t6"))
    expected = (value("b", 1, "t6") - 59) / 5
    for summary in ("final", "auc", "best"):
        assert block_of(found, SCORE, summary).values[run.id].value == pytest.approx(expected)
    assert block_of(found, SCORE, "time_to").values[run.id].reached is (expected >= 0.1)
    assert found.primary.estimate("a").mean == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize("ends", [{"t_0": [0, 1]}, {task: [0, 1] for task in TASKS[1:]}, {"t0": [1, 1]}, {"t0": [1]}])
def test_references_that_do_not_fit_are_refused_with_the_fix(make_sweep: MakeSweep, ends: Any, worded: Worded) -> None:
    folder = benchmark(make_sweep)
    worded(refusal(BadPlan, lambda: studied(folder, normalize=ends)))


def test_a_run_collapses_by_its_reward_as_recorded(make_sweep: MakeSweep) -> None:
    reward = "analysis/reward_sum_mean"
    asked = {"primary": {"metric": reward}, "normalize": {"x": [-1, 1]}}
    cells = {"C0": [{"task": "x"}]}
    folder = make_sweep(
        ("C0",), (0,), 10, asked, cells, lines=lambda *_: [{"step": s, reward: 0.0} for s in range(1, 11)]
    )
    sweep = read_sweep(folder)
    after = normalized(settings(asked), sweep)
    assert after.runs[0].curves.values[reward].tolist() == [0.5] * 10
    assert collapse(after.runs[0]) == collapse(sweep.runs[0]) != ()


def test_the_factor_is_the_one_that_has_the_names(make_sweep: MakeSweep) -> None:
    cells = {"C0": [{"lr": lr, "game": game} for lr in (0.1, 0.2) for game in ("Pong", "Qbert")]}
    folder = make_sweep(("C0",), (0,), 10, ASKED, cells, lines=lambda *_: [{"step": 1, SCORE: 4.0}])
    after = normalized(settings({**ASKED, "normalize": {"Pong": [0, 8], "Qbert": [0, 2]}}), read_sweep(folder))
    shown = {dict(run.cell)["game"]: float(run.curves.values[SCORE][0]) for run in after.runs}
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
    assert np.isnan(values).any() or strata.contributions(values) == pytest.approx(values.mean(axis=1))
    curves = np.stack([values, 2 * values], axis=-1)
    assert strata.completed(curves)[..., 1] == pytest.approx(2 * strata.completed(values))


@pytest.mark.parametrize("shared", [False, True])
def test_the_variance_of_completed_values_is_not_too_small(shared: bool) -> None:
    """Where strata are independent, and where they share the luck of a seed."""
    random = np.random.default_rng(1)
    present = ~np.isnan(torn((5, 6, 8)))
    means, variances = [], []
    for _ in range(4000):
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

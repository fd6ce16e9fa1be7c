"""Excluded runs: how far they could move a difference, and whether a verdict depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.data.metric_log import Curves
from analysis.findings.study import Study, study
from analysis.findings.worst_case import worst_cases
from analysis.spec.settings import settings
from analysis.tables.comparison import main
from benchmarks.validity import STEPS, UP, sweep_of

A = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.2]


def lacking(b: Sequence[float], failed: Mapping[str, Sequence[int]], a: Sequence[float] = A, **more: object) -> Study:
    """Two methods of which some seeds failed without a log."""
    whole = sweep_of({UP: {"A": np.array(a)[:, None], "B": np.array(b)[:, None]}})
    runs = tuple(
        replace(run, state="failed", problem="failed", curves=Curves(STEPS[:0], {}))
        if run.seed in failed.get(run.group, ())
        else run
        for run in whole.runs
    )
    asked = settings({"primary": {"metric": UP, "direction": "higher"}, **more}, groups=("A", "B"), baseline="A")
    return study(replace(whole, runs=runs), asked)


def test_bounds_are_the_differences_with_the_extremes_in_place_of_the_excluded_runs() -> None:
    found = lacking([value + 1 for value in A], {"B": [6], "A": [0]})
    case = worst_cases(found, found.primary)["B"]
    assert (case.excluded, case.lowest, case.highest) == (2, 0.9, 2.1)
    worst = [2.0 - 2.1, 1, 1, 1, 1, 1, 0.9 - 1.2]  # A's run at the highest value, B's at the lowest
    best = [2.0 - 0.9, 1, 1, 1, 1, 1, 2.1 - 1.2]
    assert case.bounds == pytest.approx((np.mean(worst), np.mean(best)))
    assert case.low.result.n == 7
    assert main(found).notes[-1] == (
        "If the excluded runs had ended at 0.900 or 2.10 (the extremes that any run recorded), the difference in the "
        "final value of a/up would be between +0.657 and +1.00 for B (2 runs)."
    )


def test_without_excluded_runs_there_are_no_bounds_and_a_time_lies_below_the_budget() -> None:
    whole = lacking([value + 1 for value in A], {})
    assert worst_cases(whole, whole.primary) == {}
    assert all(record["excluded_runs"] == 0 for record in main(whole).records)
    timed = lacking([value + 1 for value in A], {"B": [6]}, time_to=[{"at": 1.5}], window=1)
    block = next(block for block in timed.blocks if block.measure.summary == "time_to")
    case = worst_cases(timed, block)["B"]
    assert (case.lowest, case.highest) == (STEPS[0], STEPS[-1])
    assert case.high.reached == ((6, 7), (0, 7)) and case.low.reached == ((7, 7), (0, 7))


@given(
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
    st.sets(st.integers(0, 6), min_size=1, max_size=2),
)
def test_the_difference_without_failures_is_within_the_bounds(a: list[int], b: list[int], failed: set[int]) -> None:
    ends = [0.0, 9.0]  # recorded by both methods, so that no failed run is beyond what was seen
    a_all, b_all = [*ends, *map(float, a)], [*reversed(ends), *map(float, b)]
    lost = [2 + seed for seed in failed if seed < 5]
    found = lacking(b_all, {"B": lost}, a=a_all)
    cases = worst_cases(found, found.primary)
    if lost:
        low, high = cases["B"].bounds
        assert low - 1e-9 <= np.mean(b_all) - np.mean(a_all) <= high + 1e-9

"""How much seeds scatter: by hand, and as hypotheses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.findings.outcomes import Reason
from analysis.stats import dispersion
from tests.analysis.conftest import MakeSweep, ground_of, reasons
from tests.analysis.test_verdicts import UP, judged, sweep_of

LUCK = np.array([-1.5, -0.9, -0.5, -0.2, 0.1, 0.3, 0.8, 1.2, 1.7, -2.0])


def test_spread_against_is_browns_and_forsythes_test_in_pairs() -> None:
    a, b = 5 + 3 * LUCK, 2 + LUCK[::-1]
    found = dispersion.against(a, b, 2.0, 0.05)
    distances = np.abs(a - np.median(a)), 2 * np.abs(b - np.median(b))
    expected = stats.ttest_rel(*distances).confidence_interval(0.95)
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert found.ratio == pytest.approx(3.0)


def test_spread_against_what_does_not_scatter() -> None:
    found = dispersion.against([1.0, 2.0, 4.0], [3.0, 3.0, 3.0], 1.5, 0.05)
    assert found.ratio is None and (found.contrast.a - found.contrast.b) == pytest.approx([1, 0, 2])


def test_coefficient_of_variation_has_the_chi_square_interval() -> None:
    values = np.array([9.8, 10.1, 10.4, 9.9])
    found = dispersion.variation(values, 0.05)
    assert found is not None
    cv, (low, high) = found
    assert cv == pytest.approx(values.std(ddof=1) / values.mean())
    assert low == pytest.approx(cv * np.sqrt(3 / stats.chi2.ppf(0.975, 3)))
    assert high == pytest.approx(cv * np.sqrt(3 / stats.chi2.ppf(0.025, 3)))
    assert dispersion.variation(1e300 * values, 0.05) == (pytest.approx(cv), (pytest.approx(low), pytest.approx(high)))
    for none in ([1.0], [2.0, 2.0], [-1.0, 1.0], [0.0, 1.0]):
        assert dispersion.variation(none, 0.05) is None


@pytest.mark.parametrize(("factor", "verdict"), [(0.2, "supported"), (1.4, "inconclusive"), (8.0, "contradicted")])
def test_spread_as_a_hypothesis(make_sweep: MakeSweep, factor: float, verdict: str) -> None:
    table = {"A": 2 + LUCK, "B": 9 + factor * LUCK[::-1]}  # where the two lie does not matter
    folder = sweep_of(make_sweep, {UP: table}, seeds=range(10))
    found = judged(folder, kind="spread", group="B", metric=UP, at_most=1.5)
    assert (found.verdict, found.n) == (verdict, 10) and found.estimate == pytest.approx(factor)
    assert ground_of(found, Reason.EXCESS_SPREAD).groups == ("B", "A")
    assert (Reason.WOULD_DECIDE in reasons(found)) == (verdict == "inconclusive")


def test_three_seeds_never_decide_a_spread(make_sweep: MakeSweep) -> None:
    table = {"A": [1.0, 5.0, 9.0], "B": [2.0, 2.001, 1.999]}
    found = judged(sweep_of(make_sweep, {UP: table}), kind="spread", group="B", metric=UP, at_most=1.5)
    assert found.verdict == "inconclusive" and found.estimate == pytest.approx(0.00025)


def test_no_spread_at_all_says_nothing(make_sweep: MakeSweep) -> None:
    table = {"A": [1.0, 1.0, 1.0], "B": [1.0, 1.0, 1.0]}
    found = judged(sweep_of(make_sweep, {UP: table}), kind="spread", group="B", metric=UP, at_most=1.5)
    assert found.verdict == "not evaluable" and found.estimate is None
    assert reasons(found) == [Reason.NO_SPREAD_OF_DISTANCES]


@pytest.mark.parametrize(
    ("values", "verdict", "why"),
    [([1.0, 1.001, 1.002], "not judged", [Reason.INTERVAL_INSIDE, Reason.NORMAL_SEEDS]),
     ([1.0, 1.02, 1.04], "not judged", [Reason.INTERVAL_ACROSS, Reason.NORMAL_SEEDS]),
     ([0.5, 1.0, 1.5], "not judged", [Reason.INTERVAL_OUTSIDE, Reason.NORMAL_SEEDS]),
     ([-1.0, 1.0, 1.5], "not evaluable", [Reason.BOTH_SIGNS]), ([1.0, 1.0, 1.0], "not evaluable", [Reason.NO_SPREAD])],
)  # fmt: skip
def test_variation_as_a_hypothesis(make_sweep: MakeSweep, values: Any, verdict: str, why: list[Reason]) -> None:
    found = judged(sweep_of(make_sweep, {UP: {"A": values}}), kind="variation", group="A", metric=UP, at_most=0.05)
    assert (found.verdict, reasons(found)) == (verdict, why)
    if verdict != "not evaluable":
        assert found.estimate == pytest.approx(np.std(values, ddof=1) / np.mean(values))

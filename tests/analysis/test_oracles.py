"""Other libraries and textbooks: where they are right ours agree, and where one is wrong the case is named here.

These libraries are for tests alone: nothing that a report prints comes from them.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pymannkendall
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time
from numpy.random import RandomState
from rliable import metrics
from scipy import special, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from analysis.compat import rliable as rly
from analysis.stats import exact, power, resample
from analysis.stats.compare import equivalence, paired, superiority
from analysis.stats.contrast import Contrast
from analysis.stats.curve_summaries import NotEvaluable, restricted_mean, survival
from analysis.stats.multiplicity import benjamini_hochberg, holm
from analysis.stats.resample import iqm, mean, median, optimality_gap, probability_of_improvement
from analysis.stats.trend import mann_kendall, theil_sen
from benchmarks.analysis import rliable

# Student 1908: hours of sleep gained with two drugs, the same ten patients.
SLEEP = (
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
)
# Freireich et al. 1963: weeks of remission, and whether it ended.
SIX_MP = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
ENDED = [mark == "+" for mark in "+++-+-+--++---++-----"]
A, B = [3.1, 2.2, 4.5, 3.3, 2.9], [2.0, 2.4, 3.1, 3.0, 1.1]
SAMPLES = st.lists(st.integers(0, 6), min_size=2, max_size=5)

# ---------------------------------------------------------------- textbooks


def test_students_sleep() -> None:
    one = paired(*SLEEP)
    assert one.p_t == pytest.approx(0.002833, abs=5e-7)
    assert one.interval == pytest.approx((0.7001142, 2.4598858), abs=5e-8)
    two = Contrast("welch", *SLEEP)
    assert two.p() == pytest.approx(0.07939414, abs=5e-9)
    assert two.interval(0.05) == pytest.approx((-0.2054832, 3.3654832), abs=5e-8)


@pytest.mark.parametrize("budget", [10, 23, 30, 35])
def test_restricted_mean_is_lifelines(budget: int) -> None:
    curve = KaplanMeierFitter().fit(SIX_MP, ENDED)
    assert restricted_mean(SIX_MP, ENDED, budget) == pytest.approx(restricted_mean_survival_time(curve, budget))


def test_survival_is_that_of_the_textbook() -> None:
    found = survival(SIX_MP, ENDED, 35)
    curve = dict(zip(found.times.tolist(), found.share.tolist(), strict=True))
    printed = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {at: round(curve[at], 3) for at in printed} == printed
    assert found.at_risk[:3].tolist() == [21, 17, 16] and found.censored.size == 12
    with pytest.raises(NotEvaluable, match="no run"):
        survival([], [], 1.0)


# ---------------------------------------------------------------- where they are right


def test_welch_and_equivalence_are_scipys_and_statsmodels() -> None:
    reference = stats.ttest_ind(A, B, equal_var=False)
    found = Contrast("welch", A, B)
    assert found.p() == pytest.approx(reference.pvalue)
    assert found.interval(0.05) == pytest.approx(tuple(reference.confidence_interval()))
    assert superiority(A, B) == pytest.approx(stats.mannwhitneyu(A, B).statistic / 25)
    for margin in (0.5, 1.0, 2.0):
        assert equivalence(A, B, margin).p == pytest.approx(ttost_paired(np.array(A), np.array(B), -margin, margin)[0])


def test_detectable_is_statsmodels() -> None:
    assert power.detectable("paired_t", 1) is None
    for n in (3, 5, 10, 34):
        expected = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
        assert power.detectable("paired_t", n) == pytest.approx(expected, rel=1e-5)


@settings(max_examples=10)  # with each of which statsmodels collects garbage
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8))
def test_holm_and_bh_are_statsmodels(p: list[float]) -> None:
    assert holm(p) == pytest.approx(tuple(multipletests(p, method="holm")[1]))
    assert benjamini_hochberg(p) == pytest.approx(tuple(multipletests(p, method="fdr_bh")[1]))


@settings(max_examples=25)
@given(SAMPLES, SAMPLES)
def test_mann_whitney_is_the_enumeration(a: list[int], b: list[int]) -> None:
    def rank_sum(x: np.ndarray, y: np.ndarray) -> float:
        return float(stats.mannwhitneyu(x, y).statistic)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # From the centre: doubling one tail, as scipy does, differs where ties make the distribution lopsided.
        centre = len(a) * len(b) / 2
        reference = stats.permutation_test(
            (a, b), lambda x, y: abs(rank_sum(x, y) - centre), n_resamples=np.inf, alternative="greater"
        )
    assert exact.mann_whitney(a, b) == pytest.approx(reference.pvalue)


def test_many_tasks_are_rliables() -> None:
    random = np.random.default_rng(0)
    for shape in ((3, 8), (5, 26), (4, 7)):
        scores, other = random.normal(size=shape), random.normal(size=shape)
        assert iqm(scores) == pytest.approx(metrics.aggregate_iqm(scores))
        assert mean(scores) == pytest.approx(metrics.aggregate_mean(scores))
        assert median(scores) == pytest.approx(metrics.aggregate_median(scores))
        assert optimality_gap(scores) == pytest.approx(metrics.aggregate_optimality_gap(scores))
        ours = probability_of_improvement(scores, other, resamples=100).value
        assert ours == pytest.approx(metrics.probability_of_improvement(scores, other))


@pytest.mark.parametrize("seed", range(3))
def test_trend_is_pymannkendalls(seed: int) -> None:
    random = np.random.default_rng(seed)
    walk = np.zeros(80)
    for step in range(1, 80):
        walk[step] = 0.95 * walk[step - 1] + random.normal()
    reference, found = pymannkendall.hamed_rao_modification_test(walk), mann_kendall(np.arange(80), walk)
    assert found.slope == theil_sen(np.arange(80), walk) == pytest.approx(reference.slope)
    assert found.tau == pytest.approx(reference.Tau)
    assert found.inflation > 1 and found.p == pytest.approx(reference.p)


# ---------------------------------------------------------------- where they are wrong


def test_scipy_is_certain_of_constants_and_of_nan() -> None:
    a, b = [0.1 + 0.2, 1.1 + 0.2, 2.1 + 0.2], [0.1, 1.1, 2.1]  # 0.2 in each pair, but for rounding
    assert stats.ttest_rel(a, b).pvalue < 1e-30
    assert paired(a, b).p_t is None
    nan = stats.permutation_test(
        ([1.0, 2.0, math.nan],), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples", vectorized=True
    )
    assert nan.pvalue == 0
    assert paired([1.0, 2.0, math.nan], [0.0] * 3).p_signflip == 0.5


def test_scipys_exact_rank_tests_take_ties_as_distinct() -> None:
    d = np.array([1.0, -1.0, 2.0, 2.0, 3.0, -2.0, 4.0, 5.0, 6.0, 7.0])
    assert stats.wilcoxon(d, method="exact").pvalue != pytest.approx(stats.wilcoxon(d, method="auto").pvalue)
    assert exact.wilcoxon(d) == pytest.approx(stats.wilcoxon(d, method="auto").pvalue)  # auto enumerates here
    x, y = [1.0, 2, 2, 3, 5], [2.0, 2, 4, 6, 7]
    assert stats.mannwhitneyu(x, y, method="exact").pvalue == pytest.approx(39 / 126)
    assert exact.mann_whitney(x, y) == pytest.approx(36 / 126)


def test_d_z_is_the_exact_correction_of_hedges_not_the_common_approximation() -> None:
    d = np.array(A) - np.array(B)
    found, df = paired(A, B).d_z, len(d) - 1
    exactly = special.gamma(df / 2) / (np.sqrt(df / 2) * special.gamma((df - 1) / 2))
    assert found == pytest.approx(d.mean() / d.std(ddof=1) * exactly)
    # of pingouin and others
    assert d.mean() / d.std(ddof=1) * (1 - 3 / (4 * df - 1)) == pytest.approx(found, rel=0.01)


def test_pymannkendall_takes_alternating_noise_for_more_evidence() -> None:
    zigzag = np.array([(-1.0) ** step * (1 + 0.01 * step) + 0.02 * step for step in range(30)])
    found = mann_kendall(np.arange(30), zigzag)
    assert pymannkendall.hamed_rao_modification_test(zigzag).p < found.p
    assert found.inflation == 1 and found.p == pytest.approx(pymannkendall.original_test(zigzag).p)


def test_statsmodels_loses_a_family_to_one_nan() -> None:
    assert np.isnan(multipletests([0.01, math.nan, 0.03], method="fdr_bh")[1]).all()
    assert benjamini_hochberg([0.01, None, 0.03]) == pytest.approx((0.03, None, 0.045))


X = np.arange(80).reshape(5, 16)
Y = np.flip(X, axis=0)
TAU = np.linspace(-1, 2, 7)


def readme(module: object) -> object:
    names = ("median", "iqm", "mean", "optimality_gap")
    return lambda x: np.array([getattr(module, f"aggregate_{name}")(x) for name in names])


def test_a_single_run_has_no_interval_of_several_numbers() -> None:
    _, ends = rly.get_interval_estimates({"A": np.ones((1, 5))}, readme(rly))
    assert ends["A"].shape == (2, 4) and np.isnan(ends["A"]).all()


def test_the_calls_of_rliables_readme_give_its_numbers() -> None:
    random, library = np.random.default_rng(0), rliable()
    scores = {"A": random.normal(0.5, 1, (5, 12)), "B": random.normal(0.7, 1, (4, 12))}
    pairs = {"A,B": (scores["A"], scores["B"])}
    curves = {name: random.normal(size=(3, 8, 4)) for name in scores}

    def over_time(module):
        return lambda x: np.array([module.aggregate_iqm(x[..., frame]) for frame in range(x.shape[-1])])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [
            (ours.get_interval_estimates(given, function(of), reps=50), (2, size))
            for given, function, size in (
                (scores, readme, 4), (curves, over_time, 4), (pairs, lambda of: of.probability_of_improvement, 1),
            )
            for ours, of in ((rly, rly), (library, metrics))
        ]  # fmt: skip
        for use_scores in (True, False):
            given = scores, TAU, use_scores
            cases += [(module.create_performance_profile(*given, reps=50), (2, 7)) for module in (rly, library)]
        custom = {"custom_profile_func": lambda x, tau: np.array([(x <= t).mean() for t in tau]), "reps": 50}
        cases += [(module.create_performance_profile(scores, TAU, **custom), (2, 7)) for module in (rly, library)]
    for ((ours, our_ends), shape), ((theirs, their_ends), _) in zip(cases[::2], cases[1::2], strict=True):
        assert ours.keys() == theirs.keys() == our_ends.keys()
        for name in ours:
            assert ours[name] == pytest.approx(theirs[name])
            assert our_ends[name].shape == their_ends[name].shape == shape


def test_intervals_are_those_of_the_statistics() -> None:
    scores = {"x": X.astype(float), "y": Y.astype(float)}
    with pytest.warns(UserWarning, match="median of noisy means is biased"):
        points, ends = rly.get_interval_estimates(scores, readme(rly), reps=300)
    for name in scores:
        assert np.isnan(ends[name][:, 0]).all()  # the median: rliable's interval covers .66 at n = 3
        assert (ends[name][0, 1:] < points[name][1:]).all() and (points[name][1:] < ends[name][1, 1:]).all()
        for place, statistic in ((1, resample.iqm), (2, resample.mean)):
            direct = resample.stratified(scores[name], statistic, resamples=300)
            assert ends[name][:, place] == pytest.approx([direct.low, direct.high])
    again = rly.get_interval_estimates(scores, rly.aggregate_iqm, reps=300)[1]
    assert again["x"][:, 0].tolist() == ends["x"][:, 1].tolist()
    seeded = [rly.StratifiedBootstrap(X, random_state=RandomState(seed)).conf_int(np.mean, 300) for seed in (3, 3, 4)]
    assert (seeded[0] == seeded[1]).all() and (seeded[0] != seeded[2]).any()
    profile = rly.create_performance_profile(scores, [100.0])[1]["x"]  # no score is above it
    assert profile[0, 0] == 0 < profile[1, 0]
    with pytest.warns(UserWarning, match="one run"):
        assert np.isnan(rly.StratifiedBootstrap(X[:1]).conf_int(np.mean)).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rly.get_interval_estimates({"x": X}, np.mean, method="bca"), "method = 'bca': there is one kind"),
        (lambda: rly.get_interval_estimates({"x": X}, np.mean, task_bootstrap=True), "task_bootstrap = True"),
        (lambda: rly.get_interval_estimates({"x,y": [X, Y]}, np.mean), "x,y: of two arrays, only"),
        (lambda: rly.get_interval_estimates({"x,y": [X, Y]}, rly.probability_of_improvement, "bc"), "method = 'bc'"),
        (lambda: rly.create_performance_profile({"x": X}, TAU, task_bootstrap=True), "task_bootstrap = True"),
        (lambda: rly.aggregate_iqm([[1.0, np.nan]]), "not finite: run 1 of task 2"),
        (lambda: rly.probability_of_improvement([[np.inf]], [[1.0]]), "not finite"),
    ],
)  # fmt: skip
def test_what_differs_is_refused(call, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()

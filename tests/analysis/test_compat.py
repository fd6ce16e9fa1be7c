"""rliable's users, on the statistics of this package: rliable's own test cases, and the calls of its README."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.random import RandomState
from rliable import metrics

from analysis.compat import rliable as rly
from analysis.stats import resample
from benchmarks.analysis import rliable

X = np.arange(80).reshape(5, 16)
Y = np.flip(X, axis=0)
TAU = np.linspace(-1, 2, 7)


def readme(module: object) -> object:
    names = ("median", "iqm", "mean", "optimality_gap")
    return lambda x: np.array([getattr(module, f"aggregate_{name}")(x) for name in names])


def test_point_estimates_are_those_of_rliables_tests() -> None:
    x, y = np.array([[1, 2], [2, 2], [1, 1], [2, 1]]), np.array([[1, 1], [2, 2], [3, 3]])
    for name in ("median", "mean", "iqm"):
        assert [getattr(rly, f"aggregate_{name}")(scores) for scores in (x, y)] == [1.5, 2]
    assert rly.probability_of_improvement(x, y) == pytest.approx(1 / 3)


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

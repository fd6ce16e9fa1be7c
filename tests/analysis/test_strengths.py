"""Bradley-Terry strengths: by hand, and by an independent maximiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from analysis.stats import bradley_terry


def matrix(*cells: tuple[int, int, float], k: int = 3) -> np.ndarray:
    made = np.zeros((k, k))
    for i, j, won in cells:
        made[i, j] += won
    return made


def test_the_fit_is_that_of_a_general_maximiser():
    random = np.random.default_rng(0)
    for k in (3, 5, 8):
        wins = random.integers(1, 30, (k, k)) * (random.random((k, k)) < 0.8) + np.eye(k, k=1) + np.eye(k, k=-1)
        np.fill_diagonal(wins, 0)

        def loss(own: np.ndarray, wins: np.ndarray = wins) -> float:
            log = np.append(0.0, own)
            return float((wins * np.logaddexp(0, log[None, :] - log[:, None])).sum())

        best = optimize.minimize(loss, np.zeros(k - 1), method="BFGS", options={"gtol": 1e-9}).x
        assert bradley_terry([wins]).values[1:] == pytest.approx(best, abs=1e-6)


def test_what_always_wins_or_was_not_compared_has_no_value_and_leaves_the_others_theirs():
    wins = matrix((1, 0, 6), (0, 1, 2), (2, 0, 8), k=4)  # 2 lost nothing; nobody met 3
    assert bradley_terry([wins]).values == (0.0, pytest.approx(math.log(3)), None, None)
    alone = bradley_terry([matrix((1, 0, 5), k=2)])
    assert alone.values == (0.0, None) and alone.intervals == (None, None)


def test_the_interval_is_over_seeds_and_not_over_comparisons():
    equal = [[[0, 10], [30, 0]]] * 3
    assert bradley_terry(equal).intervals == (None, None)  # without spread there is none
    few = [[[0, 2], [4, 0]], [[0, 3], [3, 0]], [[0, 1], [5, 0]]]
    many = [[[0, 200], [400, 0]], [[0, 300], [300, 0]], [[0, 100], [500, 0]]]
    (low, high), wide = bradley_terry(few).intervals[1], bradley_terry(many).intervals[1]
    assert (low, high) == pytest.approx(wide)  # a hundred times the comparisons of as many seeds say no more
    value = bradley_terry(few).values[1]
    assert low < value < high and value == pytest.approx(math.log(12 / 6))
    # by hand: fits without each seed are ln(8/4), ln(9/3) and ln(7/5)
    pseudo = [3 * value - 2 * math.log(odds) for odds in (8 / 4, 9 / 3, 7 / 5)]
    half = 4.302652729911275 * np.std(pseudo, ddof=1) / math.sqrt(3)
    assert (low, high) == pytest.approx((value - half, value + half))
    assert bradley_terry([[[0, 0], [6, 0]], [[0, 3], [3, 0]]]).intervals == (None, None)  # no value without seed 1


@pytest.mark.parametrize(
    ("wins", "more"),
    [([[0, 1], [1, 0]], {}), ([[[0, 1, 2], [1, 0, 2]]], {}), ([[[0, -1], [1, 0]]], {}), ([[[0, math.nan], [1, 0]]], {}),
     ([[[0, 1], [1, 0]]], {"reference": 2}), ([[[0, 1], [1, 0]]], {"alpha": 0})],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(wins, more):
    with pytest.raises(ValueError):
        bradley_terry(wins, **more)

"""Effects of a grid's factors, slopes of a curve and of differences over model sizes."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.stats import t_test
from analysis.stats.curve_summaries import NotEvaluable
from analysis.stats.factorial import Cell, Effect, effects, fit, separable
from analysis.stats.scaling import slopes
from analysis.stats.trend import kendall, theil_sen

SEEDS = st.integers(0, 10**6)

# ---------------------------------------------------------------- trend


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(4, 40))
def test_turning_a_curve_turns_the_trend(seed: int, n: int) -> None:
    values = np.round(np.random.default_rng(seed).normal(size=n), 1)
    axis = np.arange(float(n))
    assert theil_sen(axis, -values) == pytest.approx(-theil_sen(axis, values))
    # only the order of the values counts
    assert kendall(axis, np.exp(values)) == pytest.approx(-kendall(axis, -values))


def test_trend_of_nearly_nothing() -> None:
    assert kendall(np.arange(60), np.ones(60)) == 0
    with pytest.raises(NotEvaluable, match="one value"):
        theil_sen([1], [1.0])
    assert theil_sen(np.arange(9000.0), 2 * np.arange(9000.0)) == 2  # blocks of five steps


# ---------------------------------------------------------------- factors


def grid(value: object, seeds: int = 4, **levels: list[Hashable]) -> dict[int, dict[Cell, float]]:
    cells = [tuple(zip(levels, chosen, strict=True)) for chosen in product(*levels.values())]
    return {seed: {cell: value(seed, **dict(cell)) for cell in cells} for seed in range(seeds)}  # type: ignore[operator]


def find(found: tuple[Effect, ...], *levels: Hashable) -> Effect:
    return next(effect for effect in found if effect.levels == levels)


def test_effects_of_a_made_up_grid_are_found() -> None:
    def value(seed: int, lr: float, kl: str) -> float:
        return 10 * seed + 3 * (lr == 2) + (kl == "on") * (2 + (0.5 * seed if lr == 2 else 0))

    found = effects(grid(value, lr=[1, 2], kl=["off", "on"]))
    assert [effect.factors for effect in found] == [("lr",)] * 2 + [("kl",)] * 2 + [("lr", "kl")] * 4
    assert find(found, 2).value == pytest.approx(1.5 + 0.75 / 4) and find(found, 1).value == pytest.approx(-1.6875)
    assert find(found, "on").value == pytest.approx(1.1875)
    assert find(found, 2, "on").value == pytest.approx(0.1875)
    assert find(found, 2, "on").interval == pytest.approx(t_test.t_interval([0, 0.125, 0.25, 0.375]))


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(2, 5), st.integers(2, 4), st.integers(2, 3))
def test_effects_sum_to_zero_and_luck_of_a_seed_does_not_count(seed: int, seeds: int, a: int, b: int) -> None:
    random = np.random.default_rng(seed)
    made = grid(lambda *_, **__: float(random.normal()), seeds, a=list(range(a)), b=list(range(b)), c=[0])
    found = effects(made)
    luckier = effects({s: {cell: value + 100 * s for cell, value in cells.items()} for s, cells in made.items()})
    for factors in {effect.factors for effect in found}:
        assert "c" not in factors  # of one level: it has no effect
        assert sum(effect.value for effect in found if effect.factors == factors) == pytest.approx(0, abs=1e-9)
    for one, other in zip(found, luckier, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-9)
        assert one.interval is None or one.interval == pytest.approx(other.interval, abs=1e-6)


def test_grids_that_say_nothing() -> None:
    assert effects({}) == () == effects({0: {(): 1.0}, 1: {(): 2.0}})
    one = effects(grid(lambda seed, a: float(a), 1, a=[0, 1]))
    assert [e.value for e in one] == pytest.approx([-0.5, 0.5]) and all(e.interval is e.d is None for e in one)
    additive = effects(grid(lambda seed, a, b: 0.1 * a + 0.3 * b + 0.7 * seed, a=[0, 1, 2], b=[0, 1]))
    assert all(e.value == 0 and e.interval is None for e in additive if len(e.factors) == 2)
    torn = grid(lambda seed, a, b: 1.0, a=[0, 1], b=[0, 1])
    del torn[2][(("a", 1), ("b", 0))]
    with pytest.raises(ValueError, match="seed 2 lacks the cell a = 1, b = 0"):
        effects(torn)
    for cells in torn.values():
        cells.pop((("a", 1), ("b", 0)), None)
    with pytest.raises(ValueError, match="3 cells cannot separate all effects"):
        effects(torn)


def test_cells_missing_from_a_larger_grid_change_no_effect_of_two_factors() -> None:
    def value(seed: int, a: int, b: int, c: int) -> float:
        return seed + 0.3 * a * a - b * (1 + 0.1 * seed) + 0.5 * a * c - 0.2 * b * c

    whole = grid(value, a=[0, 1, 2], b=[0, 1], c=[0, 1])
    torn = {seed: dict(list(cells.items())[1:-1]) for seed, cells in whole.items()}
    for one, other in zip(effects(whole), effects(torn), strict=True):
        assert (one.factors, one.levels) == (other.factors, other.levels)
        assert one.value == pytest.approx(other.value, abs=1e-12)
        assert (one.interval is None) == (other.interval is None)
    assert fit(torn).mean_of("a", "b") == pytest.approx(fit(whole).mean_of("a", "b"))
    plain = np.mean([[value(s, 2, 1, c) for c in (0, 1)] for s in range(4)])
    assert fit(torn).mean_of("a", "b")[2, 1].mean() == pytest.approx(plain)


def test_a_level_that_nothing_tells_apart_is_left_out() -> None:
    cells = [(("a", a), ("b", b)) for a in (0, 1, 2) for b in (0, 1)]
    assert separable(cells) == (cells, [])
    kept, out = separable(cells[:-1])  # a = 2 lacks one of 2 cells, b = 1 one of 3
    assert out == [("a", 2)] and kept == cells[:4]
    # A factor that comes with one level of another: what it does is told only where it exists.
    nested = [(("how", "plain"),), *((("how", "kl"), ("target", t)) for t in (0.02, 0.05))]
    kept, out = separable(nested)
    assert out == [("how", "plain")] and kept == nested[1:]


# ---------------------------------------------------------------- sizes

SIZES = [124e6, 1.4e9, 6.9e9]


def test_slope_of_the_difference_is_by_seed() -> None:
    b = np.random.default_rng(0).normal(size=(6, 3))
    expected = np.array([0.1, 0.2, 0.15, 0.3, 0.12, 0.25])
    a = b + np.outer(expected, np.log10(SIZES)) + 0.3
    assert slopes(SIZES, a, b) == pytest.approx(expected) == slopes(SIZES[::-1], a[:, ::-1], b[:, ::-1])
    assert slopes(SIZES, b + 1, b).tolist() == [0] * 6
    with pytest.raises(ValueError, match="parameters"):
        slopes([1e6, 1e6], a[:, :2], b[:, :2])
    with pytest.raises(ValueError, match="shape"):
        slopes(SIZES, a[:, :2], b[:, :2])

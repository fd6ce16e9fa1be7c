"""Grids: what each factor does, every cell, each method at each level, and what a torn grid says of itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Hashable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.data.metric_log import Curves
from analysis.data.sweep import read_sweep
from analysis.findings.study import Collapse, collapse
from analysis.report import terminal, write
from analysis.report.paper import write_paper
from analysis.sections.grid import cell_results, grid_tables, grids, heat_maps, main_effects
from analysis.spec.settings import REWARD
from analysis.stats import t_test
from analysis.stats.compare import slopes
from analysis.stats.curve_summaries import NotEvaluable
from analysis.stats.factorial import Cell, Effect, effects, fit, separable
from analysis.stats.multiplicity import benjamini_hochberg
from analysis.stats.trend import kendall, theil_sen
from analysis.tables.levels import AtLevel, levels
from tests.analysis.conftest import MakeSweep, Reported, ended, logging, replan, studied
from tests.analysis.test_reports import ALONE, ENTROPY, LEVELS, STD, built

WHOLE = replace(LEVELS["a torn grid"], change=lambda folder: None)


def test_effects_and_cells_of_a_made_up_grid(make_sweep: MakeSweep) -> None:
    study = studied(built(make_sweep, WHOLE))
    (found,) = grids(study)
    assert found.group == "C1" and found.seeds == (0, 1, 2) and not found.notes
    assert found.fit.levels == {"gamma": [0.8, 1.2, 10.0], "kl": ["off", "on"], "rho": [0.3, 0.6]}
    on = find(found.effects, "on")
    assert on.value == pytest.approx(0.125) and on.interval == pytest.approx(t_test.t_interval([0.0625, 0.125, 0.1875]))
    assert found.less is not None  # less the baseline of the same seed: its luck is gone
    assert found.less.mean_of("gamma", "kl")[2, 1] == pytest.approx([0.375, 0.5, 0.625])

    results = cell_results(study)
    assert len(results) == 12 and all(one.pairs == 3 for one in results)
    on = [one for one in results if dict(one.cell)["kl"] == "on" and dict(one.cell)["gamma"] != 10.0]
    assert {round(one.difference or 0, 9) for one in on} == {0.25}
    assert on[0].interval == pytest.approx(t_test.t_interval([0.125, 0.25, 0.375]))
    assert [one.q for one in results] == list(benjamini_hochberg([one.p for one in results]))


def test_cut_times_have_no_interval(make_sweep: MakeSweep) -> None:
    timed = {"primary": {"metric": REWARD, "summary": "time_to"}, "time_to": [{"at": 0.65}], "window": 1}
    study = studied(built(make_sweep, replace(WHOLE, asked=timed)))
    (found,) = grids(study)
    assert found.censored and all(effect.interval is None for effect in found.effects)
    assert all(one.interval is None for one in cell_results(study))


def test_report_of_a_grid_has_its_tables_and_figures(make_sweep: MakeSweep, unrendered: None) -> None:
    folder = built(make_sweep, WHOLE)
    written = write(folder)
    names = {table.name: table for table in written.tables}
    assert [row[1:3] for row in names["effects"].rows][:2] == [("gamma", "0.8"), ("gamma", "1.2")]
    # Of two levels the second: 3 x 1 of gamma and each other factor, 1 of these two.
    assert len(names["interactions"].rows) == 3 + 3 + 1
    html = written.index.read_text()
    assert '<h2 id="grid">The grid</h2>' in html and 'href="#grid"' in html
    rows = Reported(folder, "").rows("figures/heat_C1")
    shown = {row["what"]: row for row in rows}
    assert float(shown["gamma = 10.0, kl = on"]["y"]) == pytest.approx(0.5)
    assert "difference to C0 (GRPO)" in rows[0]["y_name"]
    main = (folder / "report" / "figures" / "effects.csv").read_text()
    assert '"kl = on, mean over seeds"' in main and '"kl = on, seed 2"' in main
    (folder / "report" / "results.parquet").write_text("of an older version")
    shutil.rmtree(folder.parent / "runs")  # no result at all: no grid, and what it wrote is gone
    assert 'id="grid"' not in write(folder).index.read_text()
    assert not any((folder / "report" / name).exists() for name in ("figures/effects.svg", "results.parquet"))


def test_no_grid_has_no_figure(make_sweep: MakeSweep) -> None:
    study = studied(make_sweep(("C0", "C1"), steps=10, analysis=ALONE))
    assert grids(study) == [] == cell_results(study) and main_effects(study, []) is None and heat_maps(study, []) == []
    assert not any(table.rows for table in grid_tables(study, [], []))


def test_a_shared_factor_is_taken_from_the_baseline_level_by_level(make_sweep: MakeSweep) -> None:
    both = logging(lambda group, seed, cell, _: cell["lr"] * (1 + cell.get("k", 0)) + 0.01 * seed, 10, REWARD)
    levels = {"C0": [{"lr": lr} for lr in (1, 2)], "C1": [{"lr": lr, "k": k} for lr in (1, 2) for k in (1, 3)]}
    found = {g.group: g for g in grids(studied(make_sweep(("C0", "C1"), (0, 1), 10, ALONE, levels, lines=both)))}
    assert found["C0"].less is None and found["C1"].less is not None
    shown = found["C1"].less.mean_of("lr", "k").mean(axis=-1)
    assert shown == pytest.approx(np.array([[1.0, 3.0], [2.0, 6.0]]))


EVALUATION = "eval/reward_mean"
GOOD, BAD = 0.1, 0.5


def test_the_first_screen_shows_each_method_at_each_level(make_sweep: MakeSweep, unrendered: None) -> None:
    """The mean of two levels, 0.218 against 0.231, hides that one level earns nothing."""
    written = write(built(make_sweep, LEVELS["one factor"]))
    lines = (*written.answer.levels, *written.answer.collapsed)
    assert len(lines) == 3 and "C0 (GRPO): 0.436 at lr = 0.1, 0 at lr = 0.5 (collapsed)." in lines
    page, printed, paper = written.index.read_text(), terminal.text(written), write_paper(written).read_text()
    above = page[: page.index('id="main"')]
    assert all(f"<li>{line}</li>" in above and f"* {line}\n" in printed for line in lines)
    assert all(line in paper for line in written.answer.levels)


FLAT = np.full(40, 0.5)
FALLEN = np.concatenate(([0.5], np.zeros(39)))


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ({REWARD: FLAT, STD: FLAT, ENTROPY: FLAT}, ()),
        ({REWARD: FALLEN}, (Collapse.REWARD_GONE,)),
        ({REWARD: 0 * FLAT}, (Collapse.NEVER_REWARDED,)),
        ({EVALUATION: FALLEN, REWARD: FLAT}, (Collapse.REWARD_GONE,)),
        ({REWARD: FALLEN, ENTROPY: FALLEN}, (Collapse.REWARD_GONE, Collapse.ENTROPY_GONE)),
        ({REWARD: FALLEN - 1, STD: FALLEN}, (Collapse.REWARDS_ALIKE,)),
        ({REWARD: 1 - FALLEN, STD: FALLEN, ENTROPY: FALLEN}, ()),  # solved, and deterministic since
        ({REWARD: FALLEN - 0.5}, ()),  # a penalty that ends lower than it began, with spread that is not recorded
        ({REWARD: -FALLEN}, ()),  # a penalty that ends at 0, which is the best of it
        ({REWARD: np.concatenate((FLAT[:38], [0, 0]))}, ()),  # two steps without reward are not yet an end
        ({REWARD: np.concatenate((FLAT[:36], [0, 0, 0, 0.01]))}, ()),
        ({REWARD: np.zeros(3)}, ()),  # too short to be judged
        ({ENTROPY: FALLEN}, ()),  # without a reward nobody knows whether it was for the worse
    ],
)
def test_what_counts_as_a_collapse(
    make_sweep: MakeSweep, curves: dict[str, Any], expected: tuple[Collapse, ...]
) -> None:
    (run,) = read_sweep(make_sweep(("C0",), (0,), 40)).runs
    steps = np.arange(1.0, 1 + max(map(len, curves.values())))
    made = Curves(steps, {key: np.asarray(values, dtype=float) for key, values in curves.items()})
    assert collapse(replace(run, curves=made)) == expected


# ---------------------------------------------------------------- the best level, for those who take it; trends


def of_lr(folder: Path, **settings: Any) -> dict[str, Any]:
    """The levels of lr by group, with their results, means and the best one."""
    factors = {"a.lr": {"label": "lr", "levels": [GOOD, BAD]}, "a.other": {"label": "other", "levels": [1]}}
    replan(folder, lambda plan: (plan["factors"].update(factors), plan["analysis"]["primary"].update(settings)))
    found = levels(studied(folder))
    assert {one.factor for one in found} <= {"a.lr"}, "a factor of one level is not chosen from"
    return {one.group: one for one in found}


def test_the_best_level_has_the_best_mean_of_the_primary_measure(make_sweep: MakeSweep) -> None:
    folder = built(make_sweep, LEVELS["one factor"])
    found = of_lr(folder)
    assert found["C0"].levels == (AtLevel(GOOD, 2, 2, pytest.approx(0.436)), AtLevel(BAD, 2, 2, 0.0))
    assert {group: one.best.level for group, one in found.items()} == {"C0": GOOD, "C1": GOOD}
    assert of_lr(folder, direction="lower")["C0"].best.level == BAD


def test_a_level_that_lacks_a_result_is_not_the_best(make_sweep: MakeSweep, unrendered: None) -> None:
    folder = built(make_sweep, LEVELS["one factor"])
    ended(folder, "diverged", "C0-0-0")
    found = of_lr(folder)
    assert found["C0"].levels[0].results == 1 and found["C0"].best.level == BAD and found["C1"].best.level == GOOD
    report = json.loads((write(folder).index.parent / "report.json").read_text())
    assert report["levels"][0]["best"]["level"] == BAD and report["levels"][0]["factor"] == "a.lr"


SEEDS = st.integers(0, 10**6)


def test_trend_of_nearly_nothing() -> None:
    assert kendall(np.arange(60), np.ones(60)) == 0
    with pytest.raises(NotEvaluable, match="one value"):
        theil_sen([1], [1.0])
    assert theil_sen(np.arange(9000.0), 2 * np.arange(9000.0)) == 2  # blocks of five steps


# ---------------------------------------------------------------- factors, and sizes


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

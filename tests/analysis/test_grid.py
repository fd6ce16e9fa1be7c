"""Grids: what each factor does, every cell for exploration, and what a torn grid says of itself."""

from __future__ import annotations

import csv
import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest

from analysis.figures.canvas import lay_out
from analysis.report import write
from analysis.sections.grid import cell_results, grid_tables, grids, heat_maps, main_effects
from analysis.spec.settings import REWARD
from analysis.stats import t_test
from analysis.stats.multiplicity import benjamini_hochberg
from tests.analysis.conftest import MakeSweep, logging, studied
from tests.analysis.test_reports import ALONE, LEVELS, built

WHOLE = replace(LEVELS["a torn grid"], change=lambda folder: None)


def test_effects_and_cells_of_a_made_up_grid(make_sweep: MakeSweep) -> None:
    study = studied(built(make_sweep, WHOLE))
    (found,) = grids(study)
    assert found.group == "C1" and found.seeds == (0, 1, 2) and not found.notes
    assert found.fit.levels == {"gamma": [0.8, 1.2, 10.0], "kl": ["off", "on"], "rho": [0.3, 0.6]}
    mains = {(e.factors[0], e.levels[0]): e for e in found.effects if len(e.factors) == 1}
    assert mains["gamma", 10.0].value == pytest.approx(0.5 / 3) and mains["rho", 0.6].value == 0
    assert mains["kl", "on"].value == pytest.approx(0.125)
    assert mains["kl", "on"].interval == pytest.approx(t_test.t_interval([0.0625, 0.125, 0.1875]))
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


def test_report_of_a_grid_has_its_tables_and_figures(make_sweep: MakeSweep) -> None:
    folder = built(make_sweep, WHOLE)
    written = write(folder)
    names = {table.name: table for table in written.tables}
    assert [row[1:3] for row in names["effects"].rows][:2] == [("gamma", "0.8"), ("gamma", "1.2")]
    # Of two levels the second: 3 x 1 of gamma and each other factor, 1 of these two.
    assert len(names["interactions"].rows) == 3 + 3 + 1
    html = written.index.read_text()
    assert '<h2 id="grid">The grid</h2>' in html and 'href="#grid"' in html
    with (folder / "report" / "figures" / "heat_C1.csv").open() as file:
        rows = list(csv.DictReader(file))
    shown = {row["what"]: row for row in rows}
    assert float(shown["gamma = 10.0, kl = on"]["y"]) == pytest.approx(0.5)
    assert "difference to C0 (GRPO)" in rows[0]["y_name"]
    main = (folder / "report" / "figures" / "effects.csv").read_text()
    assert '"kl = on, mean over seeds"' in main and '"kl = on, seed 2"' in main
    shutil.rmtree(folder.parent / "runs")  # no result at all: no grid, and what it wrote is gone
    assert 'id="grid"' not in write(folder).index.read_text()
    assert not (folder / "report" / "figures" / "effects.svg").exists()


def test_no_grid_has_no_figure(make_sweep: MakeSweep) -> None:
    study = studied(make_sweep(("C0", "C1"), steps=10, analysis=ALONE))
    assert grids(study) == [] == cell_results(study) and main_effects(study, []) is None and heat_maps(study, []) == []
    assert grid_tables(study, [], []) == []


def test_a_shared_factor_is_taken_from_the_baseline_level_by_level(make_sweep: MakeSweep) -> None:
    both = logging(lambda group, seed, cell, _: cell["lr"] * (1 + cell.get("k", 0)) + 0.01 * seed, 10, REWARD)
    levels = {"C0": [{"lr": lr} for lr in (1, 2)], "C1": [{"lr": lr, "k": k} for lr in (1, 2) for k in (1, 3)]}
    found = {g.group: g for g in grids(studied(make_sweep(("C0", "C1"), (0, 1), 10, ALONE, levels, lines=both)))}
    assert found["C0"].less is None and found["C1"].less is not None
    shown = found["C1"].less.mean_of("lr", "k").mean(axis=-1)
    assert shown == pytest.approx(np.array([[1.0, 3.0], [2.0, 6.0]]))


@pytest.mark.parametrize("factor", ["a task", "task"])  # before and after the factor `lr`
def test_names_of_many_levels_do_not_overlap(make_sweep: MakeSweep, factor: str) -> None:
    names = [f"{'Crazy' if number % 3 else ''}Climber{number}" for number in range(24)]
    cells = [{factor: name, "lr": lr} for name in names for lr in (0.1, 0.01)]

    made = logging(lambda group, seed, cell, _: names.index(cell[factor]) % 5 + seed * cell["lr"], 5, REWARD)
    study = studied(make_sweep(("C0",), (0, 1), 5, ALONE, {"C0": cells}, lines=made))
    every = grids(study)
    for sketch in (main_effects(study, every), *heat_maps(study, every)):
        assert sketch is not None
        lay_out(sketch.canvas)
        for axes in sketch.canvas.axes:
            for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
                boxes = [label.get_window_extent() for label in labels if label.get_visible() and label.get_text()]
                assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes)), sketch.name
            assert axes.get_window_extent().height > 20

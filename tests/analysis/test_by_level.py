"""Comparisons at equal cost, every method in one row, and curves by level."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.figures.learning_curves import by_level, levels
from analysis.sections.equal_cost import cost_curves, equal_cost, equal_cost_table
from analysis.sections.overview import overview
from analysis.spec.figure_spec import Picture
from analysis.spec.settings import REWARD
from tests.analysis.conftest import MakeSweep, logging, studied
from tests.analysis.test_figures import lines_of
from tests.analysis.test_reports import ALONE, PAIR, SECTIONS, built


def test_a_method_whose_steps_cost_more_is_behind_at_equal_cost(make_sweep: MakeSweep) -> None:
    study = studied(built(make_sweep, SECTIONS["equal cost"]))
    assert study.primary.comparisons[0].difference == 0
    found = equal_cost(study)
    assert found is not None and found.budgets == {"flops": {(): 40.0}}
    final, area = found.blocks
    # C1 ends at its step 20. The last tenth of the cost is 36 to 40 operations: steps 36 to 40 of C0, 18 to 20 of C1.
    assert final.comparisons[0].difference == pytest.approx(0.01 * (19 - 38), abs=1e-3)
    assert final.estimate("C0").mean == pytest.approx(0.1 + 0.01 * 38, abs=1e-3)
    # From the first operations that both have, 2, to 40: the mean of steps 2 to 40 and 1 to 20.
    assert area.comparisons[0].difference == pytest.approx(0.01 * (10.5 - 21), abs=1e-3)
    assert final.measure.title == "final value of mean reward of drawn responses at equal FLOP"
    notes = equal_cost_table(study, found).notes
    assert "Over FLOP, curves end at the least that any run spent: 40." in notes
    (sketch,) = cost_curves(study, found)
    assert sketch.name == "curve_analysis_reward_sum_mean_over_flops"
    assert lines_of(sketch.canvas)["mean--C1"].get_xdata()[-1] == 80  # the curves themselves are whole


def test_the_cost_is_that_of_each_cell(make_sweep: MakeSweep) -> None:
    """A small model must not cut the runs of a large one."""
    study = studied(built(make_sweep, SECTIONS["equal cost in each cell"]))
    found = equal_cost(study)
    assert found is not None
    assert found.budgets == {"flops": {(("task", "a"),): 40.0, (("task", "b"),): 400.0}}
    values = {run: value.value for run, value in found.blocks[0].values.items()}
    assert values["C0-0-0"] == values["C0-0-1"] == pytest.approx(0.01 * 38, abs=1e-3)
    assert values["C1-0-0"] == values["C1-0-1"] == pytest.approx(0.01 * 19, abs=1e-3)


def test_one_metric_has_no_overview(make_sweep: MakeSweep) -> None:
    assert overview(studied(built(make_sweep, replace(SECTIONS["equal cost"], asked=ALONE)))) is None


def test_curves_by_level_are_those_of_each_level(make_sweep: MakeSweep) -> None:
    made = logging(lambda group, seed, cell, _: 0.1 * seed + cell.get("ema_beta", 0.0), 40, REWARD)
    cells = {"C1": [{"ema_beta": 0.5}, {"ema_beta": 0.9}]}
    asked = {**ALONE, "figures": [{"levels": REWARD}]}
    study = studied(make_sweep(PAIR, (0, 1, 2), 40, asked, cells, lines=made))
    apart = by_level(study.sweep)
    assert apart is not None and list(apart.labels.values()) == [
        "C0 (GRPO)", "C1 (BNTO minimal), ema_beta = 0.5", "C1 (BNTO minimal), ema_beta = 0.9"
    ]  # fmt: skip
    (asked,) = (figure for figure in study.settings.figures if figure.kind == "levels")
    sketch = levels(study, asked)
    assert sketch is not None and sketch.name == "levels_analysis_reward_sum_mean"
    drawn = lines_of(sketch.canvas)
    ends = {name: line.get_ydata()[-1] for name, line in drawn.items() if name.startswith("mean--")}
    assert ends == pytest.approx({"mean--C0": 0.1, "mean--C1.ema_beta.0.5": 0.6, "mean--C1.ema_beta.0.9": 1.0})


def test_without_one_factor_there_are_no_curves_by_level(make_sweep: MakeSweep) -> None:
    study = studied(built(make_sweep, SECTIONS["equal cost"]))
    assert levels(study, Picture.model_construct(levels=REWARD)) is None

"""Every method in one row, and curves by level."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.figures.learning_curves import by_level, levels
from analysis.sections.overview import overview
from analysis.spec.figure_spec import Picture
from analysis.spec.settings import REWARD
from tests.analysis.conftest import MakeSweep, logging, studied
from tests.analysis.test_figures import lines_of
from tests.analysis.test_reports import ALONE, PAIR, SECTIONS, built


def test_one_metric_has_no_overview(make_sweep: MakeSweep) -> None:
    assert overview(studied(built(make_sweep, replace(SECTIONS["one row"], asked=ALONE)))) is None


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
    study = studied(built(make_sweep, SECTIONS["one row"]))
    assert levels(study, Picture.model_construct(levels=REWARD)) is None

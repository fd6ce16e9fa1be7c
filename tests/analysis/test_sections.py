"""Parts that only some experiments have: model sizes, many cells, curves by level, times as curves, checks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.figures.figures import survival_curve
from analysis.figures.learning_curves import by_level, levels
from analysis.report import write
from analysis.sections.many_cells import many_table
from analysis.sections.methods import overview
from analysis.sections.model_sizes import short, sizes_table
from analysis.spec.figure_spec import Picture
from analysis.spec.settings import REWARD
from launcher import files
from tests.analysis import qstar
from tests.analysis.conftest import MakeSweep, block_of, logging, replan, studied, without
from tests.analysis.test_figures import lines_of
from tests.analysis.test_reports import ALONE, PAIR, SECTIONS, built, tell_sizes
from trainer_ext.methods.health import Health

UNTOLD = replace(SECTIONS["sizes"], change=lambda folder: None)  # runs that do not tell their size

# ---------------------------------------------------------------- sizes, and many cells


def test_runs_of_one_size_and_methods_without_a_baseline_have_no_table_of_sizes(make_sweep: MakeSweep) -> None:
    folder = built(make_sweep, UNTOLD)
    assert sizes_table(studied(folder)) is None
    for run in sorted((folder.parent / "runs").iterdir()):  # another vocabulary is no other size
        summary = json.loads((run / "summary.json").read_text())
        files.write_json(run / "summary.json", {**summary, "parameters": 1e5 + len(run.name) + int(run.name[-1])})
    assert sizes_table(studied(folder)) is None

    def alone(plan: dict[str, Any]) -> None:
        runs = [run for run in plan["runs"] if run["group"] == "C0"]
        plan |= {"baseline": None, "groups": {"C0": plan["groups"]["C0"]}, "runs": runs}

    tell_sizes()(folder)
    assert sizes_table(studied(folder)) is not None
    assert sizes_table(studied(replan(folder, alone))) is None


def test_a_size_is_short() -> None:
    assert [short(n) for n in (99, 108_160, 124e6, 1.4e9, 6.74e9)] == ["99", "108K", "124M", "1.4B", "6.74B"]


def test_few_cells_are_not_many_and_one_that_a_method_lacks_is_left_out(make_sweep: MakeSweep) -> None:
    folder = built(make_sweep, SECTIONS["many cells"])
    assert many_table(studied(without(folder, *(f"C1-{seed}-2" for seed in range(3))))) is None


# ---------------------------------------------------------------- times


def test_curves_of_times_show_what_the_restricted_mean_is_of(make_sweep: MakeSweep) -> None:
    asked = {**ALONE, "time_to": [{"at": 0.7}], "window": 1}
    study = studied(make_sweep(PAIR, analysis=asked))
    block = block_of(study, REWARD, "time_to")
    sketch = survival_curve(study, block, "reach_1")
    assert sketch is not None
    drawn = lines_of(sketch.canvas)
    for estimate in block.estimates:
        line = drawn[f"curve--{estimate.group}"]
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        assert (np.diff(x) * y[:-1]).sum() == pytest.approx(estimate.mean)  # the area under the curve
    texts = [text.get_text() for text in sketch.canvas.axes[0].texts]
    assert texts.count("3") >= 2 and "not there yet:" in texts


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


def test_runs_that_do_not_report_their_health_have_no_checks(make_sweep: MakeSweep, unrendered: None) -> None:
    folder = make_sweep(groups=("ppo", "q_star"), seeds=(0, 1), lines=qstar.lines)
    for path in folder.parent.glob("runs/*/summary.json"):
        files.write_json(path, {k: v for k, v in json.loads(path.read_text()).items() if k != "warnings"})
    assert "checks" not in {table.name for table in write(folder).tables}


def test_every_warning_that_a_run_can_count_belongs_to_one_check():
    from analysis.tables.comparison import _CHECKS

    health = Health()
    first = {"analysis/entropy_full_mean": 1.0, "eval/distinct_2": 1.0, "eval/reward_mean": 1.0, "actor/sft_loss": 1.0}
    bad = {
        "actor/grad_norm": 1e9, "analysis/entropy_full_mean": 0.0, "analysis/reward_sum_std": 0.0, "actor/kl_init": 99,
        "actor/sft_loss": 2.0, "eval/distinct_2": 0.0, "eval/reward_mean": 0.0, "eval/empty": 1.0,
        "eval/repetition": 1.0, "qstar/weight_max": 1e9, "qstar/weight_mean": 1.0, "rollout/probs_diff_max": 1.0,
        "qstar/alpha_mean": 1.0, "qstar/ess_ratio": 9.0,
    }  # fmt: skip
    for _ in range(20):
        health.check({**first, "actor/grad_norm": 1.0})
    for _ in range(20):
        health.check(bad)
    assert len(health.warnings) == 12
    for warning in health.warnings:
        assert sum(bool(starts) and warning.startswith(starts) for _, starts, _ in _CHECKS) == 1, warning

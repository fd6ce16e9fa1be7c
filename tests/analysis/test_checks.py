"""The ten checks of health: passed, not passed with the runs, or not measured."""

from __future__ import annotations

import json

from analysis.report import write
from launcher import files
from tests.analysis import qstar
from tests.analysis.conftest import MakeSweep
from trainer_ext.methods.health import Health


def test_runs_that_do_not_report_their_health_have_no_checks(make_sweep: MakeSweep):
    folder = make_sweep(groups=("ppo", "q_star"), seeds=(0, 1), lines=qstar.lines)
    for path in folder.parent.glob("runs/*/summary.json"):
        files.write_json(path, {k: v for k, v in json.loads(path.read_text()).items() if k != "warnings"})
    assert "checks" not in {table.name for table in write(folder).tables}


def test_every_warning_that_a_run_can_count_belongs_to_one_check():
    from analysis.tables.compute import _CHECKS

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

"""The ten checks of health: passed, not passed with the runs, or not measured."""

from __future__ import annotations

import json

from analysis.report import write
from launcher import files
from launcher.run.folder import read_summary, run_folder
from launcher.run.lifecycle import find_state, write_state
from tests.analysis import qstar
from tests.analysis.conftest import MakeSweep
from trainer_ext.methods.health import Health

METHODS = ("ppo", "q_star")


def written(make_sweep, warnings, **states):
    """The table of a sweep of two methods with two seeds. warnings: by run, in the plan's order; None: not reported."""
    folder = make_sweep(groups=METHODS, seeds=(0, 1), lines=qstar.lines)
    plan = json.loads((folder / "plan.json").read_text())
    for entry, said in zip(plan["runs"], warnings, strict=True):
        run = run_folder(folder.parent, entry["id"])
        summary = {key: value for key, value in (read_summary(run) or {}).items() if key != "warnings"}
        files.write_json(run / "summary.json", {**summary, **({} if said is None else {"warnings": said})})
        if state := states.get(f"{entry['group']}_{entry['seed']}"):
            write_state(run, find_state(run).replace(state=state, message="NaN"))
    return {table.name: table for table in write(folder).tables}, folder


def test_runs_that_do_not_report_their_health_have_no_checks(make_sweep: MakeSweep):
    assert "checks" not in written(make_sweep, [None] * 4)[0]


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

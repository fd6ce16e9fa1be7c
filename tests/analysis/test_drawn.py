"""Metrics of drawn responses: compared only between methods that draw from the same policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from analysis.data.sweep import read_sweep
from analysis.findings.study import Ground, Outcome, Reason, Study
from analysis.findings.verdicts import judge
from analysis.spec.metric_catalog import describe, drawn_from
from launcher import files
from launcher.run.folder import run_folder
from tests.analysis.conftest import MakeSweep, block_of, logging, studied
from tests.analysis.test_reports import METHODS

DRAWN, OWN = "analysis/reward_sum_mean", "eval/reward_mean"
PPO, SFT = METHODS["PPO"], METHODS["SFT"]
CLAIM = {"claim": "It is better.", "kind": "greater", "group": "SFT", "metric": DRAWN}
CLAIMS: dict[str, Any] = {
    "greater": CLAIM,
    "clip": {**CLAIM, "group": "clip"},
    "own": {**CLAIM, "metric": OWN},
    "ratio": {**CLAIM, "kind": "ratio", "at_least": 1},
    "between": {"claim": "c", "kind": "between", "group": "SFT", "metric": DRAWN, "groups": ["PPO", "clip"]},
    "extreme": {"claim": "c", "kind": "extreme", "group": "PPO", "metric": DRAWN, "which": "greatest"},
    "spread": {"claim": "c", "kind": "spread", "group": "SFT", "metric": DRAWN, "at_most": 1},
    "range": {"claim": "c", "kind": "range", "group": "SFT", "metric": DRAWN, "low": 0},
    "early": {**CLAIM, "summary": "early"},
}


def rewards(group: str, seed: int, *_: object) -> dict[str, float]:
    drawn = {"PPO": 0.5, "clip": 0.6, "SFT": 0.9}[group] + 0.01 * seed + 0.003 * seed * (group != "PPO")
    return {DRAWN: drawn, "reward/length": drawn, OWN: 1 - drawn}


def of_methods(make_sweep: MakeSweep, methods: Mapping[str, Mapping[str, Any]], **more: Any) -> Study:
    asked = {"primary": {"metric": OWN}, "metrics": [DRAWN, "reward/length"], "hypotheses": CLAIMS, **more}
    folder = make_sweep(("PPO", "clip", "SFT"), range(6), 20, asked, lines=logging(rewards))
    for run in read_sweep(folder).runs:
        if run.group in methods:
            config = {"format": 1, "method": dict(methods[run.group])}
            files.write_atomic(run_folder(folder.parent, run.id) / "config.yaml", files.dump_yaml(config))
    return studied(folder)


def test_methods_that_draw_from_different_policies_are_not_judged_by_what_was_drawn(make_sweep: MakeSweep) -> None:
    found = of_methods(make_sweep, {"PPO": PPO, "clip": {**PPO, "clip_high": 0.3}, "SFT": SFT})
    for metric in (DRAWN, "reward/length"):
        block = block_of(found, metric, "final")
        apart, alike = block.comparison("SFT"), block.comparison("clip")
        assert (apart.outcome, apart.p, apart.adjusted, apart.interval) == (Outcome.NOT_EVALUABLE, None, None, None)
        assert apart.ground == Ground(Reason.DRAWN_APART, ("SFT", "PPO"))
        assert alike.p is not None and alike.adjusted == alike.p  # the only comparison of its family
    assert block_of(found, OWN, "final").comparison("SFT").p is not None
    verdicts = {h.id: judge(h, found) for h in found.settings.hypotheses}
    judged = {name for name, verdict in verdicts.items() if verdict.verdict is not Outcome.NOT_EVALUABLE}
    assert judged == {"clip", "own", "range"}
    assert all(verdicts[name].interval is None for name in set(verdicts) - judged)


@pytest.mark.parametrize("methods", [{}, {"PPO": PPO}, dict.fromkeys(("PPO", "clip", "SFT"), SFT)])
def test_methods_that_draw_alike_or_from_what_is_not_known_are_compared(make_sweep: MakeSweep, methods: Any) -> None:
    block = block_of(of_methods(make_sweep, methods), DRAWN, "final")
    assert all(comparison.p is not None for comparison in block.comparisons)


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ({"clip_high": 0.28, "advantage": "gae", "loss": "dpo", "dpo_pairs": "group"}, True),
        ({"target": None, "target_kl": 0.05, "alpha_lambda": 0.02}, True),
        ({"sampler": "rejection", "target": "expert"}, False),
        ({"sampler": "geometric", "target": "expert", "alpha": "kl_symmetry"}, False),
        ({"sampler": "of_a_package"}, False), ({"loss": "dpo", "dpo_pairs": "data"}, False),
    ],
)  # fmt: skip
def test_a_source_is_the_sampler_with_its_target_and_alpha(other: Mapping[str, Any], alike: bool) -> None:
    assert (drawn_from({"method": PPO}) == drawn_from({"method": {**PPO, **other}})) is alike


def test_the_temperature_is_part_of_a_source() -> None:
    hot, cold = ({"method": PPO, "verl": {"actor_rollout_ref": {"rollout": {"temperature": t}}}} for t in (1.0, 0.5))
    assert drawn_from(hot) == "policy, at temperature 1" != drawn_from(cold)
    assert drawn_from({"method": {}}) == drawn_from({}) == ""


def test_what_is_of_drawn_responses_is_labelled_so() -> None:
    keys = (DRAWN, "reward/length", f"{DRAWN} - analysis/reward_sum_std")
    assert all(describe(key).of_drawn and "drawn responses" in describe(key).label for key in keys)
    assert not any(describe(key).of_drawn for key in (OWN, "eval/reward/length", "actor/kl_init", "cost/flops"))

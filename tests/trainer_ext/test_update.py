"""One step of a method on a scored batch: what is put together, and in which order."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.configuration import configuration
from trainer_ext.backends.in_process import trainer  # noqa: F401  (registers the choices of all parts)
from trainer_ext.methods.update import Method, Scored, positions, update


def scored(old, reference):
    """Two prompts with two responses of three tokens each; the last token of the second response is padding."""
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[1, 2] = False
    ones = torch.ones(4, 3) * mask
    return Scored(
        mask=mask,
        rewards=torch.tensor([1.0, 0.0, 1.0, 0.0]),
        group=torch.tensor([0, 0, 1, 1]),
        old=old * ones,
        reference=reference * ones,
        behaviour=old * ones,
        entropy=ones,
        collision=0.5 * ones,
    )


def test_without_a_controller_the_loss_reads_the_plain_advantages():
    method = Method.read(configuration("method=c0_grpo")["method"], 10)
    found = update(method, scored(-1.0, -1.0), 1)
    assert method.controller is None and torch.equal(found.policy["advantages"], found.advantages)
    assert not any(name.startswith("dual_game/") for name in found.metrics)


@pytest.mark.parametrize(
    ("name", "kl_loss", "reads"),
    [
        ("c0_grpo", False, False), ("c0_grpo", True, True), ("bnto_minimal", False, True), ("sft", True, False),
        ("dpo", False, True),
    ],
)  # fmt: skip
def test_the_reference_is_read_only_where_a_loss_or_a_controller_needs_it(name, kl_loss, reads):
    method = Method.read(configuration(f"method={name}")["method"], 10)
    assert method.reads_reference(SimpleNamespace(use_kl_loss=kl_loss)) is reads
    if not reads:
        found = update(method, replace(scored(-1.0, -1.0), reference=None), 1)
        assert "actor/kl_init" not in found.metrics and "ref_log_prob" not in found.policy


def test_a_controller_shapes_the_advantages_and_reports_its_state():
    method = Method.read(configuration("method=bnto_minimal")["method"], 10)
    batch = scored(-1.0, -1.5)
    found = update(method, batch, 1)
    assert not torch.equal(found.policy["advantages"], found.advantages)
    kl = math.exp(-0.5) - 1 + 0.5  # Schulman's estimator of a token's KL, for log-probabilities of -1 and -1.5
    assert found.metrics["dual_game/KL_per_token"] == found.metrics["actor/kl_init"] == pytest.approx(kl)
    assert found.metrics["dual_game/beta"] > 0
    assert not found.policy["advantages"][1, 2]


def test_importance_weights_are_recorded_before_their_treatment():
    method = Method.read(configuration("method=off_policy", "method.weight_high=2.0")["method"], 10)
    batch = replace(scored(-1.0, -1.0), behaviour=-3.0 * torch.ones(4, 3))
    found = update(method, batch, 1)
    assert float(found.policy["rollout_is_weights"].max()) == 2
    assert found.metrics["qstar/weight_max"] == pytest.approx(math.exp(2)) == found.metrics["qstar/weight_mean"]
    drawn = positions(method, batch, {"alpha": torch.ones(2)})
    assert set(drawn) == {"alpha", "log_weight"} and drawn["log_weight"].tolist() == [2.0] * 11
    assert positions(Method.read(configuration("method=c0_grpo")["method"], 10), batch, {}) == {}

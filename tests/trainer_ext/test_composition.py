"""A step's update and the policy loss from their parts: against verl's own losses, and over micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from tests.configuration import configuration
from tests.trainer_ext.batches import Batch, batch
from tests.trainer_ext.equations import COMBINATIONS, RATIOS, SMOOTHINGS, chosen_of, each, importance, variance
from tests.trainer_ext.subjects import loss_config, ratio_settings
from trainer_ext.backends.in_process import trainer  # noqa: F401  (registers the choices of all parts)
from trainer_ext.methods import policy_loss, ratio
from trainer_ext.methods.update import Method, Scored, positions, update

AVERAGES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def taken(b: Batch, config: Any, average: str = "token-mean", name: str = "rlsweep") -> tuple[Tensor, Tensor, dict]:
    """A registered loss of a batch, its gradient in the log-probabilities, and its metrics."""
    now = (b.reference + b.log_ratio).requires_grad_()
    given = (b.reference, now, b.advantages, b.mask, average, config)
    loss, metrics = get_policy_loss_fn(name)(*given)
    loss.backward()
    return loss.detach(), now.grad, metrics


def of_method(*overrides: str) -> SimpleNamespace:
    """What verl hands to the loss for a method file."""
    method = configuration(*overrides)["method"]
    return SimpleNamespace(policy_loss=SimpleNamespace(**policy_loss.policy_loss_config(method)), global_batch_info={})


def of_verl(low: float, high: float, dual: float = 3.0) -> ActorConfig:
    bounds = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": dual}
    return ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **bounds)


def spread(seed: int, size: float = 1.0) -> Batch:
    """A batch whose ratios reach beyond every bound."""
    b = batch(seed, rows=8, length=9)
    return replace(b, log_ratio=2 * size * b.log_ratio)


GSPO = ["method=gspo", "method.dual_clip=1e6"]  # verl's has no dual clip


@pytest.mark.parametrize(
    ("method", "name", "bounds"),
    [
        (["method=c0_grpo"], "vanilla", (0.2, 0.2, 3.0)),
        (["method=dapo_clip_higher"], "vanilla", (0.2, 0.28, 10.0)),
        (["method.clip_low=0.1", "method.clip_high=0.4", "method.dual_clip=1.5"], "vanilla", (0.1, 0.4, 1.5)),
        (
            ["method=gspo", "method.clip_low=0.0003", "method.clip_high=0.0004", "method.dual_clip=1e6"],
            "gspo",
            (3e-4, 4e-4),
        ),
        (["method=gspo", "method.clip_low=0.2", "method.clip_high=0.2", "method.dual_clip=1e6"], "gspo", (0.2, 0.2)),
    ],
)
def test_clipped_ratios_of_tokens_and_geometric_means_are_verls_losses(method, name, bounds):
    ours = of_method(*method)
    for average, seed in product(AVERAGES, range(4)):
        b = spread(seed)
        if bounds[2:] == (10,):
            b.log_ratio[1:, :3] = 2.5  # beyond the dual clip
        ours_loss, ours_gradient, _ = taken(b, ours, average)
        loss, gradient, _ = taken(b, of_verl(*bounds), average, name)
        torch.testing.assert_close(ours_loss, loss)
        torch.testing.assert_close(ours_gradient, gradient)
        assert (gradient == 0)[b.mask].any() and (gradient != 0).any(), "some are clipped, some are not"


@pytest.mark.parametrize("average", AVERAGES)
def test_sampling_weights_multiply_the_loss_of_each_token(average):
    b, config = spread(1), loss_config(None, "token", "clip")
    weights = torch.where(b.mask, b.ratio, math.nan)
    arguments = (b.reference, b.reference + b.log_ratio, b.advantages, b.mask, average, config)
    # positive weights commute with every bound
    weighted = (b.reference, b.reference + b.log_ratio, b.advantages * b.ratio, b.mask, average, config)
    found, expected = policy_loss.policy_loss(*arguments, weights)[0], policy_loss.policy_loss(*weighted)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("choice", ["sequence_arithmetic", "sequence_geometric"])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_with_one_advantage_a_response_the_gradient_is_that_of_the_plain_mean(choice, smoothing):
    b = batch(3)
    own = b.advantages[:, :1] * b.mask
    gradients = []
    for plain in (False, True):
        x = b.log_ratio.clone().requires_grad_()
        seen = plain_mean(x, b.mask, choice, smoothing) if plain else ratio_of(x, b.mask, choice, smoothing)
        (own * seen).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0.1


def ratio_of(log_ratio: Tensor, mask: Tensor, choice: str, smoothing: float | None) -> Tensor:
    return policy_loss.importance_ratio(log_ratio, mask, ratio_settings(smoothing, choice))[0]


def plain_mean(log_ratio: Tensor, mask: Tensor, choice: str, smoothing: float | None) -> Tensor:
    """One ratio a response, differentiated as it is written."""
    token = log_ratio.exp() if smoothing is None else ratio.ema(log_ratio.exp(), mask, smoothing)
    if choice == "sequence_arithmetic":
        return ratio.sequence_arithmetic(token, mask)
    return ratio.sequence_geometric(token.log(), mask)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(("smoothing", "choice", "region"), COMBINATIONS)
def test_micro_batches_add_up_to_the_mini_batch(smoothing, choice, region, average):
    b, config = spread(2), loss_config(smoothing, choice, region)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=int(b.mask.sum()), global_batch_size=8)
    found = []
    for rows in (8, 2):
        parts = [b.map(lambda x, i=i, rows=rows: x[i : i + rows]) for i in range(0, 8, rows)]
        losses, gradients, metrics = zip(*(taken(part, config, average) for part in parts), strict=True)
        summed = {key: sum(one[key] for one in metrics) for key in metrics[0]}
        found.append((sum(losses), torch.cat(gradients), policy_loss.finish(summed)))
    (loss, gradient, metrics), (of_parts, gradient_of_parts, metrics_of_parts) = found
    torch.testing.assert_close(of_parts, loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient_of_parts, gradient, rtol=1e-9, atol=1e-12)
    assert metrics_of_parts == {key: pytest.approx(value, rel=1e-9, abs=1e-12) for key, value in metrics.items()}
    assert gradient.abs().max() > 0


def test_variances_of_a_step_are_those_of_all_its_tokens():
    """Over two mini-batches of as many tokens, whose means differ."""
    first, second = batch(1, density=1), batch(3, density=1)
    second = replace(second, log_ratio=second.log_ratio + 1)
    config = loss_config(0.7, "sequence_arithmetic", "clip")
    reports = [taken(b, config)[2] for b in (first, second)]
    found = policy_loss.finish({key: (reports[0][key] + reports[1][key]) / 2 for key in reports[0]})
    raw = [x for b in (first, second) for x in chosen_of(each(math.exp, b.floats.log_ratio), b.valid)]
    smooth = [x for b in (first, second) for x in chosen_of(importance(b, 0.7, "token")[0], b.valid)]
    rows = [row[0] for b in (first, second) for row in importance(b, 0.7, "sequence_arithmetic")[0]]
    assert found["ema/raw_weights_variance"] == pytest.approx(variance(raw))
    assert found["ema/smoothed_weights_variance"] == pytest.approx(variance(smooth))
    assert found["ema/variance_reduction_ratio"] == pytest.approx(1 - variance(smooth) / variance(raw))
    assert found["amic/sequence_weights_variance"] == pytest.approx(variance(rows))
    assert found["amic/avg_sequence_length"] == 7


def test_variances_of_a_policy_that_has_hardly_moved_keep_their_digits():
    b = batch(1)
    near = replace(b, log_ratio=1e-7 * b.log_ratio)
    found = policy_loss.finish(taken(near, loss_config(0.7, "sequence_arithmetic", "clip"))[2])
    expected = importance(near, 0.7, "sequence_arithmetic")[1]
    for key in (key for key in expected if key.endswith("variance")):
        assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=0), key
    assert "ema/variance_reduction_ratio" not in found, "of a policy that has not moved it is rounding over rounding"


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_a_policy_that_has_not_moved_has_no_variance(kind):
    b = batch(1).to(kind)
    still = replace(b, log_ratio=torch.zeros_like(b.log_ratio))
    found = policy_loss.finish(taken(still, loss_config(0.7, "sequence_arithmetic", "clip"))[2])
    assert found["ema/raw_weights_variance"] == 0
    assert found["ema/smoothed_weights_variance"] == pytest.approx(0, abs=1e-12)
    assert found["amic/sequence_weights_variance"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("average", "rubbish"), [("token-mean", math.nan), ("seq-mean-token-mean", math.inf)])
@pytest.mark.parametrize(("smoothing", "choice", "region"), COMBINATIONS)
def test_rubbish_where_the_mask_is_false_has_no_gradient_and_gives_none(smoothing, choice, region, average, rubbish):
    b, config = spread(2), loss_config(smoothing, choice, region)
    loss, gradient, _ = taken(b, config, average)
    spoilt = b.map(lambda x: torch.where(b.mask, x, rubbish) if x.shape == b.mask.shape else x, "mask")
    other_loss, other_gradient, _ = taken(spoilt, config, average)
    torch.testing.assert_close(other_loss, loss)
    torch.testing.assert_close(other_gradient, gradient)
    assert not gradient[~b.mask].any()


def test_far_ratios_stay_finite():
    b = batch(2)
    far = replace(b, log_ratio=1000 * b.log_ratio).to(torch.float32)
    for combination in COMBINATIONS:
        loss, gradient, metrics = taken(far, loss_config(*combination))
        assert torch.isfinite(loss) and torch.isfinite(gradient).all(), combination
        assert all(map(math.isfinite, policy_loss.finish(metrics).values())), combination


@pytest.mark.parametrize("choice", RATIOS)
def test_a_gate_that_is_differentiated_passes_its_parameter_on(choice):
    b = spread(3, size=0.3)
    soft, whole = (taken(b, loss_config(None, choice, "gaussian", differentiable=flag)) for flag in (False, True))
    torch.testing.assert_close(soft[0], whole[0])
    assert (soft[1] - whole[1]).abs().max() > 1e-3


def scored(old, reference):
    """Two prompts with two responses of three tokens each; the last token of the second response is padding."""
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[1, 2] = False
    ones = torch.ones(4, 3) * mask
    rewards, group = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1])
    columns = {"old": old, "reference": reference, "behaviour": old, "entropy": 1.0, "collision": 0.5}
    return Scored(mask=mask, rewards=rewards, group=group, **{name: x * ones for name, x in columns.items()})


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

"""Whole losses for verl's engines on padded batches, under verl's signature (model_output, data, dp_group).

The choices of the part `loss` make one from verl's ActorConfig; None trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.functional import logsigmoid
from verl.trainer.ppo.core_algos import agg_loss, compute_value_loss, get_policy_loss_fn, kl_penalty
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric

from trainer_ext import registry

Loss = Callable[..., tuple[Tensor, dict[str, Any]]]
#: A margin of at most this is one of rounding, which policy and reference have while they are equal.
_NO_MARGIN = 1e-5


def _global_batch(data: TensorDict) -> dict[str, Any]:
    """Arguments of agg_loss that make it divide by the whole mini-batch, whatever its micro-batches."""
    defaults = {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    return {name: tu.get_non_tensor_data(data, name, default) for name, default in defaults.items()}


def likelihood(
    loss_agg_mode: str,
    loss_scale_factor: int | None,
    model_output: Mapping[str, Tensor],
    data: TensorDict,
    dp_group: Any = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Negative log-likelihood of the responses' tokens, averaged as verl's loss_agg_mode and loss_scale_factor say."""
    over = {**_global_batch(data), "loss_scale_factor": loss_scale_factor}
    loss = agg_loss(-model_output["log_probs"], data["response_mask"], loss_agg_mode, **over)
    return loss, {"actor/sft_loss": Metric(value=loss.detach(), aggregation=AggregationType.SUM)}


def pair_losses(logp: Tensor, logp_ref: Tensor, mask: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Direct preference optimisation (Rafailov et al. 2023): loss and margin of each pair, (B / 2,).

    Rows are chosen and rejected in turn, all (B, T): -log sigmoid(margin), margin = beta times the difference of their
    sums of logp - logp_ref. ValueError: an odd number of rows.
    """
    if len(logp) % 2:
        raise ValueError(f"{len(logp)} responses do not form pairs: a micro-batch of DPO must have an even number")
    gain = torch.where(mask.bool(), logp - logp_ref, 0.0).sum(dim=1)
    margin = beta * (gain[0::2] - gain[1::2])
    return -logsigmoid(margin), margin


def best_and_worst(rewards: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Rows of the best and worst of every `group` responses, in turn, (2 P,), and whether the two differ, (P,).

    rewards: (P * group,), responses to one prompt adjacent; of equal ones the first counts.
    """
    table = rewards.reshape(-1, group)
    best, worst = table.argmax(dim=1), table.argmin(dim=1)
    first = torch.arange(len(table), device=rewards.device) * group
    return torch.stack([first + best, first + worst], dim=1).flatten(), table.amax(dim=1) > table.amin(dim=1)


def dpo(
    beta: float, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """`pair_losses` of pairs in adjacent rows, weighted by the column pair_weight, over the mini-batch's pairs."""
    losses, margin = pair_losses(model_output["log_probs"], data["ref_log_prob"], data["response_mask"], beta)
    batch = _global_batch(data)
    share = data["pair_weight"][0::2] / ((batch["global_batch_size"] or len(data)) / 2)
    loss = batch["dp_size"] * (losses * share).sum()  # the engine takes the mean of the ranks' gradients
    values = {"actor/dpo_loss": losses, "actor/dpo_accuracy": (margin > _NO_MARGIN).float(), "actor/dpo_margin": margin}
    metrics = {key: float((value.detach() * share).sum()) for key, value in values.items()}
    return loss, Metric.from_dict(metrics, aggregation=AggregationType.SUM)


def policy(
    config: Any, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """The registered policy loss that `config` (verl's ActorConfig) names, with its entropy and KL terms.

    What verl's ppo_loss computes, without the conversions from packed sequences.
    """
    config.global_batch_info.update(_global_batch(data), loss_scale_factor=config.loss_scale_factor)
    mask = data["response_mask"]
    loss, metrics = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=data["old_log_probs"],
        log_prob=model_output["log_probs"],
        advantages=data["advantages"],
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=data.get("rollout_is_weights", None),
    )
    metrics = Metric.from_dict(metrics, aggregation=AggregationType.SUM)
    metrics["actor/pg_loss"] = Metric(value=loss.detach(), aggregation=AggregationType.SUM)
    if config.entropy_coeff:
        entropy = agg_loss(model_output["entropy"], mask, config.loss_agg_mode, **config.global_batch_info)
        loss = loss - config.entropy_coeff * entropy
    if config.use_kl_loss:
        kl = kl_penalty(model_output["log_probs"], data["ref_log_prob"], config.kl_loss_type)
        loss = loss + config.kl_loss_coef * agg_loss(kl, mask, config.loss_agg_mode, **config.global_batch_info)
    return loss, metrics


def value(
    cliprange_value: float, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """verl's clipped value loss of a critic, on the columns values (when the batch was scored) and returns, (B, T)."""
    mask, values = data["response_mask"], model_output["values"]
    batch = _global_batch(data)
    loss, _ = compute_value_loss(values, data["returns"], data["values"], mask, cliprange_value, **batch)
    total = batch["batch_num_tokens"] or mask.sum()
    moved = (values.detach() - data["values"]).abs() > cliprange_value
    shares = {
        "critic/vf_loss": loss.detach(),
        "critic/vf_clipfrac": float((moved * mask).sum() / total),
        "critic/vpred_mean": float((values.detach() * mask).sum() / total),
    }
    return loss, Metric.from_dict(shares, aggregation=AggregationType.SUM)


# verl's ActorConfig and the settings -> the loss
registry.loss("policy_gradient")(lambda config, loss_agg_mode: partial(policy, config))
registry.loss("sft")(lambda config, loss_agg_mode: partial(likelihood, loss_agg_mode, config.loss_scale_factor))
registry.loss("dpo", prefix="dpo_")(lambda config, beta, pairs: partial(dpo, beta))
registry.loss.declare("none")

"""The surrogate loss of a method put together from its parts, and registered with verl as the policy loss `rlsweep`.

Here are the parts that act inside the update: smoothing, ratio, trust_region. update.py has those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import PolicyLossConfig

from trainer_ext import registry
from trainer_ext.methods import trust_region  # noqa: F401  (registers its choices)
from trainer_ext.methods.ratio import FIRST, SECOND, Values

#: Variance of ratios that is only rounding: sampling and update compute log-probabilities in different ways.
_ROUNDING = 1e-10
#: Those that act here.
PARTS = (registry.smoothing, registry.ratio, registry.trust_region)


@dataclass
class PartsLossConfig(PolicyLossConfig):
    """verl's policy loss configuration with the choices of the parts and their settings, as a method holds them."""

    loss_mode: str = "rlsweep"
    method: dict[str, Any] = field(default_factory=dict)


def policy_loss_config(method: Mapping[str, Any]) -> dict[str, Any]:
    """What goes to `actor.policy_loss` for a composed method (conf/method). ValueError: a setting is missing."""
    keys = [key for part in PARTS for key in (part.name, *part.get(part.choice(method).name).keys)]
    return {
        "_target_": "trainer_ext.methods.policy_loss.PartsLossConfig",
        "loss_mode": "rlsweep",
        "method": {key: method[key] for key in keys},
    }


def importance_ratio(log_ratio: Tensor, mask: Tensor, method: Mapping[str, Any]) -> tuple[Tensor, Values]:
    """The ratio that the trust region sees, (B, T), and what smoothing and ratio report.

    log_ratio: log-probability now minus when sampled, (B, T); method: with the parts `smoothing` and `ratio`.
    """
    ratio, smoothing = log_ratio.exp(), registry.smoothing.choice(method)
    smooth = smoothing(ratio, mask)
    metrics = smoothing.metrics(ratio, smooth)
    if smooth is not ratio:
        log_ratio = smooth.log()
    ratio, reported = registry.ratio.choice(method)(smooth, log_ratio, mask)
    return ratio, metrics | reported


def finish(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a step from the means of what `policy_loss` reported: variances from their moments."""
    finished = {key: value for key, value in metrics.items() if not key.endswith((FIRST, SECOND))}
    for key, value in metrics.items():
        if key.endswith(FIRST):
            name = key.removesuffix(FIRST)
            finished[name] = max(0.0, metrics[name + SECOND] - value**2)
    raw = finished.get("ema/raw_weights_variance", 0.0)
    if raw > _ROUNDING:
        finished["ema/variance_reduction_ratio"] = 1 - finished["ema/smoothed_weights_variance"] / raw
    return finished


@register_policy_loss("rlsweep")
def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    in_shares: bool = True,
) -> tuple[Tensor, dict[str, Any]]:
    """The surrogate of the configured parts under verl's signature; tensors are (micro-batch, T).

    Metrics are shares of the mini-batch, so that their sum over its micro-batches and ranks is the mini-batch's value;
    `finish` completes them. They are right under `losses.policy`, which declares them as sums; verl's own ppo_loss
    takes their mean over micro-batches and over ranks. in_shares=False: they are means over the micro-batch.
    """
    method = config.policy_loss.method
    region = registry.trust_region.choice(method)
    valid = response_mask.bool()  # some of verl's averages fail with NaN where the mask is false
    log_ratio = torch.where(valid, log_prob - old_log_prob, 0.0)
    log_ratio = log_ratio.clamp(-20.0, 20.0)  # as in verl: exp stays finite
    advantages = torch.where(valid, advantages, 0.0)
    ratio, values = importance_ratio(log_ratio, response_mask, method)
    per_token = region(ratio, advantages)
    if rollout_is_weights is not None:
        per_token = per_token * torch.where(valid, rollout_is_weights, 0.0)
    loss = agg_loss(per_token, response_mask, loss_agg_mode, **config.global_batch_info)
    values |= region.metrics(ratio.detach(), advantages)
    values["actor/ppo_kl"] = -log_ratio.detach()
    whole = config.global_batch_info if in_shares else {}
    tokens = float(whole.get("batch_num_tokens") or response_mask.sum().clamp_min(1))
    rows = whole.get("global_batch_size") or len(response_mask)
    return loss, {
        key: float(value.sum()) / rows if value.dim() == 1 else float(torch.where(valid, value, 0.0).sum()) / tokens
        for key, value in values.items()
    }

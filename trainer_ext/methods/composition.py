"""A method put together from its parts, and registered with verl as the policy loss `rlsweep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import PolicyLossConfig

from trainer_ext.methods import trust_region
from trainer_ext.methods.control import DualController, DualSettings

#: Parts with their choices; conf/method/<part>/ holds a file for each.
TRUST_REGIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "clip": (trust_region.clip, ("clip_low", "clip_high", "dual_clip")),
    "asymmetric_clip": (trust_region.asymmetric_clip, ("clip_ratio_pos", "clip_ratio_neg")),
    "gaussian": (trust_region.gaussian, ("sigma", "differentiable")),
}


@dataclass
class PartsLossConfig(PolicyLossConfig):
    """verl's policy loss configuration with the trust region's choice and its parameters."""

    loss_mode: str = "rlsweep"
    trust_region: str = "clip"
    parameters: dict[str, Any] = field(default_factory=dict)


def policy_loss_config(method: Mapping[str, Any]) -> dict[str, Any]:
    """What goes to `actor.policy_loss` for a composed method (conf/method)."""
    choice = method["trust_region"]
    _, names = TRUST_REGIONS[choice]
    return {
        "_target_": "trainer_ext.methods.composition.PartsLossConfig",
        "loss_mode": "rlsweep",
        "trust_region": choice,
        "parameters": {name: method[name] for name in names},
    }


def controller(method: Mapping[str, Any], total_steps: int) -> DualController | None:
    """The method's dual controller; None without control."""
    if method["control"] == "none":
        return None
    names = {f.name for f in fields(DualSettings)}
    return DualController(DualSettings(**{k: v for k, v in method.items() if k in names}), total_steps)


@register_policy_loss("rlsweep")
def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """The surrogate of the configured parts under verl's signature; tensors are (micro-batch, T).

    Metrics are shares of the mini-batch, so that their sum over its micro-batches is the mini-batch's value.
    """
    choice = config.policy_loss.trust_region
    parameters = dict(config.policy_loss.parameters)
    log_ratio = (log_prob - old_log_prob).clamp(-20.0, 20.0)  # as in verl, so that exp stays finite
    ratio = log_ratio.exp()
    per_token = TRUST_REGIONS[choice][0](ratio, advantages, **parameters)
    if rollout_is_weights is not None:
        per_token = per_token * rollout_is_weights
    loss = agg_loss(per_token, response_mask, loss_agg_mode, **config.global_batch_info)
    total = config.global_batch_info.get("batch_num_tokens") or response_mask.sum()
    metrics = _region_metrics(choice, ratio.detach(), advantages, parameters)
    metrics["actor/ppo_kl"] = -log_ratio.detach()
    return loss, {key: float((value * response_mask).sum() / total) for key, value in metrics.items()}


def _region_metrics(choice: str, ratio: Tensor, advantages: Tensor, parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the trust region did to each token, (B, T); the mean over tokens is the metric."""
    if choice == "gaussian":
        weight = trust_region.trust_weight(ratio, parameters["sigma"])
        return {"ptrw/trust_weights_mean": weight, "ptrw/loss_mean": -weight * ratio * advantages}
    if choice == "asymmetric_clip":
        positive = advantages > 0
        width = torch.where(positive, parameters["clip_ratio_pos"], parameters["clip_ratio_neg"])
        low, high, dual = width, width, torch.zeros_like(positive)
        more = {
            "asymmetric/pos_advantage_ratio": positive.float(),
            "asymmetric/neg_advantage_ratio": (advantages < 0).float(),
        }
    else:
        low, high = parameters["clip_low"], parameters["clip_high"]
        dual, more = (advantages < 0) & (ratio > parameters["dual_clip"]), {}
    upper = (advantages > 0) & (ratio > 1 + high)
    lower = (advantages < 0) & (ratio < 1 - low)
    return {"actor/clipfrac_upper": upper.float(), "actor/clipfrac_lower": (lower | dual).float(), **more}

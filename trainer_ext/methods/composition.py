"""A method put together from its parts, and registered with verl as the policy loss `rlsweep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import PolicyLossConfig

from trainer_ext.methods import trust_region
from trainer_ext.methods.control import DualController, DualSettings

PerToken = dict[str, Tensor]


def _no_metrics(ratio: Tensor, advantages: Tensor, **parameters: Any) -> PerToken:
    return {}


@dataclass(frozen=True)
class TrustRegion:
    """A choice of the part `trust_region`: its loss per token, the parameters that it reads, and what it reports.

    `metrics` takes what `loss` takes and gives named values per token, (B, T); their means over tokens are written.
    """

    loss: Callable[..., Tensor]
    parameters: tuple[str, ...]
    metrics: Callable[..., PerToken] = _no_metrics


def _clip_metrics(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float) -> PerToken:
    upper = (advantages > 0) & (ratio > 1 + clip_high)
    lower = (advantages < 0) & ((ratio < 1 - clip_low) | (ratio > dual_clip))
    return {"actor/clipfrac_upper": upper.float(), "actor/clipfrac_lower": lower.float()}


def _asymmetric_metrics(ratio: Tensor, advantages: Tensor, clip_ratio_pos: float, clip_ratio_neg: float) -> PerToken:
    positive, negative = advantages > 0, advantages < 0
    return {
        "actor/clipfrac_upper": (positive & (ratio > 1 + clip_ratio_pos)).float(),
        "actor/clipfrac_lower": (negative & (ratio < 1 - clip_ratio_neg)).float(),
        "asymmetric/pos_advantage_ratio": positive.float(),
        "asymmetric/neg_advantage_ratio": negative.float(),
    }


def _gaussian_metrics(ratio: Tensor, advantages: Tensor, sigma: float, differentiable: bool) -> PerToken:
    weight = trust_region.trust_weight(ratio, sigma)
    return {"ptrw/trust_weights_mean": weight, "ptrw/loss_mean": -weight * ratio * advantages}


#: The choices; conf/method/trust_region/ holds a file for each.
TRUST_REGIONS = {
    "clip": TrustRegion(trust_region.clip, ("clip_low", "clip_high", "dual_clip"), _clip_metrics),
    "asymmetric_clip": TrustRegion(
        trust_region.asymmetric_clip, ("clip_ratio_pos", "clip_ratio_neg"), _asymmetric_metrics
    ),
    "gaussian": TrustRegion(trust_region.gaussian, ("sigma", "differentiable"), _gaussian_metrics),
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
    return {
        "_target_": "trainer_ext.methods.composition.PartsLossConfig",
        "loss_mode": "rlsweep",
        "trust_region": choice,
        "parameters": {name: method[name] for name in TRUST_REGIONS[choice].parameters},
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
    region = TRUST_REGIONS[config.policy_loss.trust_region]
    parameters = dict(config.policy_loss.parameters)
    log_ratio = (log_prob - old_log_prob).clamp(-20.0, 20.0)  # as in verl, so that exp stays finite
    ratio = log_ratio.exp()
    per_token = region.loss(ratio, advantages, **parameters)
    if rollout_is_weights is not None:
        per_token = per_token * rollout_is_weights
    loss = agg_loss(per_token, response_mask, loss_agg_mode, **config.global_batch_info)
    total = config.global_batch_info.get("batch_num_tokens") or response_mask.sum()
    metrics = region.metrics(ratio.detach(), advantages, **parameters)
    metrics["actor/ppo_kl"] = -log_ratio.detach()
    return loss, {key: float((value * response_mask).sum() / total) for key, value in metrics.items()}

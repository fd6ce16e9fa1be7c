"""The update of a method put together from its parts, and registered with verl as the policy loss `rlsweep`.

Here are the parts that act inside the update: smoothing, ratio, trust_region. Those before it are in estimators.py and
control.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import PolicyLossConfig

from trainer_ext.methods import ratio, trust_region
from trainer_ext.methods.control import DualController, DualSettings

#: Values whose means are written: (B, T) over tokens, (B,) over responses.
Values = dict[str, Tensor]
# Of a variance the loss reports two moments under these endings, which add up over micro-batches; `finish` joins them.
_FIRST, _SECOND = "@1", "@2"
#: Variance of ratios that rounding may leave: sampling and update do not work log-probabilities out in the same way.
_ROUNDING = 1e-10


def _no_metrics(ratio: Tensor, advantages: Tensor, **parameters: Any) -> Values:
    return {}


@dataclass(frozen=True)
class TrustRegion:
    """A choice of the part `trust_region`: its loss per token, the parameters that it reads, and what it reports.

    `metrics` takes what `loss` takes and gives named values per token, (B, T); their means over tokens are written.
    """

    loss: Callable[..., Tensor]
    parameters: tuple[str, ...]
    metrics: Callable[..., Values] = _no_metrics


def _clip_metrics(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float) -> Values:
    upper = (advantages > 0) & (ratio > 1 + clip_high)
    lower = (advantages < 0) & ((ratio < 1 - clip_low) | (ratio > dual_clip))
    return {"actor/clipfrac_upper": upper.float(), "actor/clipfrac_lower": lower.float()}


def _asymmetric_metrics(ratio: Tensor, advantages: Tensor, clip_ratio_pos: float, clip_ratio_neg: float) -> Values:
    positive, negative = advantages > 0, advantages < 0
    return {
        "actor/clipfrac_upper": (positive & (ratio > 1 + clip_ratio_pos)).float(),
        "actor/clipfrac_lower": (negative & (ratio < 1 - clip_ratio_neg)).float(),
        "asymmetric/pos_advantage_ratio": positive.float(),
        "asymmetric/neg_advantage_ratio": negative.float(),
    }


def _gaussian_metrics(ratio: Tensor, advantages: Tensor, sigma: float, differentiable: bool) -> Values:
    weight = trust_region.trust_weight(ratio, sigma)
    return {"ptrw/trust_weights_mean": weight, "ptrw/loss_mean": -weight * ratio * advantages}


#: The choices; conf/method/trust_region/ holds a file for each.
TRUST_REGIONS = {
    "clip": TrustRegion(trust_region.clip, ("clip_low", "clip_high", "dual_clip"), _clip_metrics),
    "asymmetric_clip": TrustRegion(
        trust_region.asymmetric_clip, ("clip_ratio_pos", "clip_ratio_neg"), _asymmetric_metrics
    ),
    "none": TrustRegion(trust_region.score, ()),
    "gaussian": TrustRegion(trust_region.gaussian, ("sigma", "differentiable"), _gaussian_metrics),
}


@dataclass
class PartsLossConfig(PolicyLossConfig):
    """verl's policy loss configuration with the choices of the parts and their parameters."""

    loss_mode: str = "rlsweep"
    ema_beta: float | None = None
    ratio: str = "token"
    trust_region: str = "clip"
    parameters: dict[str, Any] = field(default_factory=dict)


def policy_loss_config(method: Mapping[str, Any]) -> dict[str, Any]:
    """What goes to `actor.policy_loss` for a composed method (conf/method)."""
    choice = method["trust_region"]
    return {
        "_target_": "trainer_ext.methods.policy_loss.PartsLossConfig",
        "loss_mode": "rlsweep",
        "ema_beta": method.get("ema_beta"),
        "ratio": method["ratio"],
        "trust_region": choice,
        "parameters": {name: method[name] for name in TRUST_REGIONS[choice].parameters},
    }


def controller(method: Mapping[str, Any], total_steps: int) -> DualController | None:
    """The method's dual controller; None without control."""
    if method["control"] == "none":
        return None
    names = {f.name for f in fields(DualSettings)}
    return DualController(DualSettings(**{k: v for k, v in method.items() if k in names}), total_steps)


def importance_ratio(log_ratio: Tensor, mask: Tensor, choice: str, ema_beta: float | None) -> tuple[Tensor, Values]:
    """The ratio that the trust region sees, (B, T), and what smoothing and ratio report.

    log_ratio: log-probability now minus when sampled, (B, T); choice: the part `ratio`; ema_beta: None: no smoothing.

    A response's ratio stands at each of its tokens, but each token's gradient is its own, as in GSPO-token (Zheng et
    al. 2025, section 4.3). With one advantage a response the gradient is that of the plain mean; with one a token
    (credit, dual control) the plain mean would average the advantages away.
    """
    token = log_ratio.exp()
    metrics: Values = {}
    if ema_beta is not None:
        smooth = ratio.ema(token, mask, ema_beta)
        metrics |= _moments("ema/raw_weights_variance", token) | _moments("ema/smoothed_weights_variance", smooth)
        token, log_ratio = smooth, smooth.log()
    if choice == "sequence_geometric":
        row = ratio.sequence_geometric(log_ratio, mask).detach()
        return row * (log_ratio - log_ratio.detach()).exp(), metrics
    if choice == "sequence_arithmetic":
        row = ratio.sequence_arithmetic(token, mask).detach()
        metrics |= _moments("amic/sequence_weights_variance", row[:, 0])
        metrics["amic/avg_sequence_length"] = mask.sum(dim=1)
        return row + (token - token.detach()), metrics
    return token, metrics


def _moments(key: str, values: Tensor) -> Values:
    distance = values.detach().double() - 1  # ratios are near 1: the square of the distance keeps its digits
    return {key + _FIRST: distance, key + _SECOND: distance**2}


def finish(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's means of what `policy_loss` reported, with the variances made of their moments."""
    found = {key: value for key, value in metrics.items() if not key.endswith((_FIRST, _SECOND))}
    for key, value in metrics.items():
        if key.endswith(_FIRST):
            name = key.removesuffix(_FIRST)
            found[name] = max(0.0, metrics[name + _SECOND] - value**2)
    raw = found.get("ema/raw_weights_variance", 0.0)
    if raw > _ROUNDING:
        found["ema/variance_reduction_ratio"] = 1 - found["ema/smoothed_weights_variance"] / raw
    return found


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

    Metrics are shares of the mini-batch, so that their sum over its micro-batches is the mini-batch's value; `finish`
    completes them.
    """
    parts = config.policy_loss
    region = TRUST_REGIONS[parts.trust_region]
    parameters = dict(parts.parameters)
    valid = response_mask.bool()  # not all of verl's averages bear NaN where it is false
    log_ratio = torch.where(valid, log_prob - old_log_prob, 0.0)
    log_ratio = log_ratio.clamp(-20.0, 20.0)  # as in verl, so that exp stays finite
    advantages = torch.where(valid, advantages, 0.0)
    seen, metrics = importance_ratio(log_ratio, response_mask, parts.ratio, parts.ema_beta)
    per_token = region.loss(seen, advantages, **parameters)
    if rollout_is_weights is not None:
        per_token = per_token * torch.where(valid, rollout_is_weights, 0.0)
    loss = agg_loss(per_token, response_mask, loss_agg_mode, **config.global_batch_info)
    tokens = float(config.global_batch_info.get("batch_num_tokens") or valid.sum().clamp_min(1))
    rows = config.global_batch_info.get("global_batch_size") or len(response_mask)
    metrics |= region.metrics(seen.detach(), advantages, **parameters)
    metrics["actor/ppo_kl"] = -log_ratio.detach()
    return loss, {
        key: float(value.sum()) / rows if value.dim() == 1 else float(torch.where(valid, value, 0.0).sum()) / tokens
        for key, value in metrics.items()
    }

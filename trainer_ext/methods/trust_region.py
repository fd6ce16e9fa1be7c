"""Trust regions: the surrogate loss of each token from its importance ratio.

All take ratio and advantages of shape (B, T), any float type and device, and return the loss per token (B, T),
unmasked, to be minimised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_ext.methods.ratio import Values
from trainer_ext.registry import trust_region

#: Smaller advantages have the sign of a rounding error: of groups whose rewards agree, with a control term added.
_ZERO = 1e-8


def _clip_metrics(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float) -> Values:
    upper = (advantages > _ZERO) & (ratio > 1 + clip_high)
    lower = (advantages < -_ZERO) & ((ratio < 1 - clip_low) | (ratio > dual_clip))
    return {"actor/clipfrac_upper": upper.float(), "actor/clipfrac_lower": lower.float()}


def _asymmetric_metrics(ratio: Tensor, advantages: Tensor, clip_ratio_pos: float, clip_ratio_neg: float) -> Values:
    positive, negative = advantages > _ZERO, advantages < -_ZERO
    return {
        "actor/clipfrac_upper": (positive & (ratio > 1 + clip_ratio_pos)).float(),
        "actor/clipfrac_lower": (negative & (ratio < 1 - clip_ratio_neg)).float(),
        "asymmetric/pos_advantage_ratio": positive.float(),
        "asymmetric/neg_advantage_ratio": negative.float(),
    }


def _gaussian_metrics(ratio: Tensor, advantages: Tensor, sigma: float, differentiable: bool) -> Values:
    weight = trust_weight(ratio, sigma)
    return {"ptrw/trust_weights_mean": weight, "ptrw/loss_mean": -weight * ratio * advantages}


@trust_region("clip", metrics=_clip_metrics)
def clip(
    ratio: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float = 3.0
) -> Tensor:
    """PPO's clipped surrogate, -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) (Schulman et al. 2017).

    Where A < 0 the loss is at most dual_clip * |A| (Ye et al. 2020).
    """
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


@trust_region("none")
def score(ratio: Tensor, advantages: Tensor) -> Tensor:
    """No trust region: -A log r, whose gradient is that of -A log pi whatever the ratio (Williams 1992, REINFORCE)."""
    return -advantages * ratio.log()


@trust_region("asymmetric_clip", metrics=_asymmetric_metrics)
def asymmetric_clip(
    ratio: Tensor, advantages: Tensor, clip_ratio_pos: float = 0.3, clip_ratio_neg: float = 0.1
) -> Tensor:
    """The clipped surrogate with width clip_ratio_pos where A > 0 and clip_ratio_neg elsewhere, on both sides of 1."""
    wide, narrow = (ratio.clamp(1 - width, 1 + width) for width in (clip_ratio_pos, clip_ratio_neg))
    clipped = torch.where(advantages > 0, wide, narrow)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


@trust_region("gaussian", metrics=_gaussian_metrics)
def gaussian(ratio: Tensor, advantages: Tensor, sigma: float = 0.2, differentiable: bool = False) -> Tensor:
    """PTRW: -phi r A with trust weight phi = exp(-(r - 1)^2 / (2 sigma^2)).

    phi's gradient is stopped, a soft gate, unless `differentiable`: then the gradient in r changes sign once
    r (r - 1) > sigma^2, pushing far ratios further away.
    """
    weight = trust_weight(ratio, sigma)
    return -(weight if differentiable else weight.detach()) * ratio * advantages


def trust_weight(ratio: Tensor, sigma: float = 0.2) -> Tensor:
    """phi = exp(-(r - 1)^2 / (2 sigma^2)), (B, T), in (0, 1]."""
    return torch.exp(-((ratio - 1) ** 2) / (2 * sigma**2))

"""Importance weights of tokens that were drawn from another distribution than the policy."""

from __future__ import annotations

import torch
from torch import Tensor


def importance_weights(
    log_probs: Tensor, behaviour: Tensor, mask: Tensor, treatment: str, low: float = 0.1, high: float = 10.0
) -> Tensor:
    """w = pi_theta(y) / q(y) of each token, (B, T), no gradient; 0 where the mask is false.

    log_probs: under the policy; behaviour: under the distribution drawn from, both (B, T). treatment: `none` (1),
    `raw`, `clipped` to [low, high], `normalized` (over its mean on the whole batch). ValueError: an unknown treatment.
    """
    valid = mask.bool()
    weights = torch.where(valid, log_probs.detach() - behaviour.detach(), 0.0).clamp(-20.0, 20.0).exp()
    if treatment == "none":
        weights = torch.ones_like(weights)
    elif treatment == "clipped":
        weights = weights.clamp(low, high)
    elif treatment == "normalized":
        weights = weights / weights[valid].mean()
    elif treatment != "raw":
        raise ValueError(f"weights={treatment!r}: none, raw, clipped or normalized")
    return torch.where(valid, weights, 0.0)


def weight_metrics(weights: Tensor, mask: Tensor) -> dict[str, float]:
    """The qstar/weight_* values over the valid tokens."""
    found = weights[mask.bool()].double()
    mean = float(found.mean())
    return {
        "qstar/weight_max": float(found.max()),
        "qstar/weight_min": float(found.min()),
        "qstar/weight_mean": mean,
        "qstar/weight_cv": float(found.std(unbiased=False)) / mean,
    }

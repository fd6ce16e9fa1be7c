"""Importance weights of tokens that were drawn from another distribution than the policy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainer_ext import registry

# w of tokens and which of them are valid, (B, T) of the whole batch -> weights
registry.weights("none")(lambda w, valid: torch.ones_like(w))
registry.weights("raw")(lambda w, valid: w)
registry.weights("clipped", prefix="weight_")(lambda w, valid, low, high: w.clamp(low, high))
registry.weights("normalized")(lambda w, valid: w / w[valid].mean())


def importance_weights(
    log_probs: Tensor, behaviour: Tensor, mask: Tensor, treatment: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """w = pi_theta(y) / q(y) of each token, (B, T), no gradient; 0 where the mask is false.

    log_probs: under the policy; behaviour: under the distribution drawn from, both (B, T). treatment: a choice of the
    part `weights`; None: w as it is.
    """
    valid = mask.bool()
    w = torch.where(valid, log_probs.detach() - behaviour.detach(), 0.0).clamp(-20.0, 20.0).exp()
    return torch.where(valid, treatment(w, valid) if treatment else w, 0.0)


def weight_metrics(weights: Tensor, mask: Tensor) -> dict[str, float]:
    """The qstar/weight_* values over the valid tokens."""
    valid = weights[mask.bool()].double()
    mean = float(valid.mean())
    return {
        "qstar/weight_max": float(valid.max()),
        "qstar/weight_min": float(valid.min()),
        "qstar/weight_mean": mean,
        "qstar/weight_cv": float(valid.std(unbiased=False)) / mean,
    }

"""Credit assignment: weights (B, T) of the tokens of a response, which multiply its advantages.

Masks may have holes and empty rows; weights are 0 where the mask is false. Nothing here has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer_ext.registry import credit

#: Of `log_position`: the logarithm of the last token's weight is -LOG_FALL; LOG_START scales positions, in tokens.
LOG_FALL, LOG_START = 2.0, 10.0


def temporal_decay(mask: Tensor, gamma: float = 0.95, schedule: str = "exponential", normalize: str = "mean") -> Tensor:
    """Weights that fall along the valid tokens t = 1, ..., L of each row.

    schedule="exponential": gamma^(t-1); "log_position": exp(-2 log(1 + (t-1)/10) / log(1 + (L-1)/10)), which does not
    read gamma. normalize="mean": mean one over the valid tokens; "sum": they sum to one; "none". gamma = 1 under "mean"
    is the identity. Returns the mask's type if that is a float, else the default float type. ValueError: gamma is not
    in (0, 1], or a name is unknown.
    """
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma={gamma}: the decay from token to token must be above 0 and at most 1")
    valid = mask.bool()
    position = (valid.cumsum(dim=1) - 1).clamp_min(0)
    length = valid.sum(dim=1, keepdim=True)
    steps = torch.arange(mask.shape[1], dtype=torch.float64, device=mask.device)
    if schedule == "exponential":
        weights = torch.pow(gamma, steps)[position]
    elif schedule == "log_position":
        fall = torch.log1p(steps / LOG_START)
        whole = fall[(length - 1).clamp_min(0)]
        weights = torch.exp(-LOG_FALL * fall[position] / torch.where(whole > 0, whole, 1.0))
    else:
        raise ValueError(f"schedule={schedule!r}: must be exponential or log_position")
    weights = torch.where(valid, weights, 0.0)
    if normalize in ("mean", "sum"):
        scale = length if normalize == "mean" else (length > 0)
        total = weights.sum(dim=1, keepdim=True)
        weights = weights * (scale / torch.where(total > 0, total, 1.0))
    elif normalize != "none":
        raise ValueError(f"normalize={normalize!r}: must be mean, sum or none")
    return weights.to(mask.dtype if mask.dtype.is_floating_point else torch.get_default_dtype())


def gradient_adaptive(logp: Tensor, mask: Tensor, tau: float = 1.0, logits: Tensor | None = None) -> Tensor:
    """c_t = L softmax_t(g_t / tau) over the valid tokens of each row: mean one.

    g = |logp|, or with `logits` (B, T, V), of which logp are the sampled tokens' log-probabilities, the exact norm of
    the score's gradient (`score_norm`). Returns logp's type. ValueError: tau is not above 0.
    """
    if logits is None:
        return softmax_weights(logp.detach().abs(), mask, tau)
    # row by row: only one response at a time is in double precision
    log_collision = torch.stack([_log_collision(row.detach().double()) for row in logits])
    return softmax_weights(score_norm(logp, log_collision.exp()).to(logp.dtype), mask, tau)


def score_norm(logp: Tensor, collision: Tensor) -> Tensor:
    """||onehot(y) - pi||_2 = sqrt(1 - 2 p + sum_v pi_v^2), the norm of the gradient of log pi(y) in the logits.

    logp: log p of the sampled tokens; collision: sum_v pi_v^2, both (B, T). Returns (B, T) float64, in [0, sqrt 2].
    """
    lp = logp.detach().double()
    rest = -torch.expm1(lp)  # the other tokens' probability; their squares sum to at most its own
    squares = (collision.detach().double() - torch.exp(2 * lp)).clamp_min(0).minimum(rest**2)
    return (rest**2 + squares).sqrt()


def softmax_weights(norms: Tensor, mask: Tensor, tau: float) -> Tensor:
    """L softmax_t(norms_t / tau) over the valid tokens of each row, (B, T), in norms' type."""
    if not (tau > 0 and math.isfinite(tau)):
        raise ValueError(f"tau={tau}: the temperature of the softmax must be above 0")
    valid = mask.bool()
    scaled = torch.where(valid, norms.detach().double() / tau, -math.inf)
    # an empty row is all -inf, of which softmax makes NaN
    weights = torch.where(valid, scaled.softmax(dim=1), 0.0) * valid.sum(dim=1, keepdim=True)
    return weights.to(norms.dtype)


def _log_collision(logits: Tensor) -> Tensor:
    """log sum_v pi_v^2 of (T, V) logits."""
    return (2 * logits).logsumexp(dim=-1) - 2 * logits.logsumexp(dim=-1)


@credit("gradient_adaptive")
def _gradient_adaptive(
    logp: Tensor, mask: Tensor, collision: Tensor, tau: float, norm: str
) -> tuple[Tensor, dict[str, float]]:
    norms = score_norm(logp, collision) if norm == "exact" else logp.detach().double().abs()
    weights = softmax_weights(norms, mask, tau)
    valid, metrics = mask.bool(), {}
    if valid.any():
        metrics = {
            "gradient_adaptive/avg_gradient_norm": float(norms[valid].mean()),
            "gradient_adaptive/weight_variance": float(weights[valid].var(unbiased=False)),
        }
    return weights.to(logp.dtype), metrics


@credit("temporal_decay")
def _temporal_decay(
    logp: Tensor, mask: Tensor, collision: Tensor, gamma: float, schedule: str, normalize: str
) -> tuple[Tensor, dict[str, float]]:
    weights = temporal_decay(mask.double(), gamma, schedule, normalize)
    order = mask.bool().cumsum(dim=1)  # a hole has the number of the token before it, but weight 0
    length, metrics = order[:, -1:], {}
    if rows := int((length > 0).sum()):
        metrics = {
            "temporal_decay/weight_sum": float(weights.sum() / rows),
            "temporal_decay/first_weight": float(weights[order == 1].sum() / rows),
            "temporal_decay/last_weight": float(weights[order == length].sum() / rows),
        }
    return weights.to(logp.dtype), metrics


def credit_weights(
    chosen: Mapping[str, Mapping[str, Any]], logp: Tensor, mask: Tensor, collision: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """The product of the chosen credits' weights, (B, T), and their metrics; ones where none is chosen."""
    weights = torch.ones_like(logp)
    metrics: dict[str, float] = {}
    for choice in credit.each(chosen):  # sorted, because rounding depends on the order of a product
        factor, reported = choice(logp, mask, collision)
        weights = weights * factor
        metrics |= reported
    return weights, metrics

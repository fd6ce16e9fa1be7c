"""The geometric family q_a ∝ p_theta^a p_t^(1-a) between two next-token distributions, from their log-probabilities.

A token that either distribution excludes (-inf) is excluded by every q_a with 0 < a < 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_geometric_mean(log_p_theta: Tensor, log_p_t: Tensor, alpha: Tensor | float) -> tuple[Tensor, Tensor]:
    """(log q_a, log Z_a) of log-probabilities (..., V); alpha (...) or a number; shapes (..., V) and (...).

    Z_a = sum_v p_theta^a p_t^(1-a). With no token in common log Z = -inf, and log q is that of the plain mixture
    a p_theta + (1-a) p_t. alpha of 0 or 1 gives p_t or p_theta whole, tokens that the other excludes with them.
    """
    a = torch.as_tensor(alpha, dtype=log_p_theta.dtype, device=log_p_theta.device).unsqueeze(-1)
    a = a.expand(*log_p_theta.shape[:-1], 1)
    # 0 * -inf is NaN: a distribution of weight 0 is left out
    weighted = torch.where(a > 0, a * log_p_theta, 0.0) + torch.where(a < 1, (1 - a) * log_p_t, 0.0)
    log_z = weighted.logsumexp(dim=-1, keepdim=True)
    if not bool((log_z == -math.inf).any()):
        return weighted - log_z, log_z[..., 0]
    mixture = torch.logaddexp(a.log() + log_p_theta, (-a).log1p() + log_p_t)
    return torch.where(log_z > -math.inf, weighted - log_z, mixture), log_z[..., 0]


def asymmetry(log_p_theta: Tensor, log_p_t: Tensor, log_q: Tensor) -> Tensor:
    """KL(q||p_t) - KL(q||p_theta) in nats, (...) of (..., V), over the tokens that both have."""
    both = (log_p_theta > -math.inf) & (log_p_t > -math.inf)
    return (log_q.exp() * torch.where(both, log_p_theta - log_p_t, 0.0)).sum(dim=-1)


def effective_sample_size(log_p: Tensor, log_q: Tensor) -> Tensor:
    """ESS of samples from q as samples from p, per sample: 1 / sum_v p(v)^2 / q(v), (...) of (..., V).

    In [0, 1]; 1 when p = q; 0 when q excludes a token of p.
    """
    square = torch.where(log_p > -math.inf, 2 * log_p - log_q, -math.inf)
    return (-square.logsumexp(dim=-1)).exp()

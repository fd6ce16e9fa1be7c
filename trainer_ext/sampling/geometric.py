"""The geometric family q_a ∝ p_theta^a p_t^(1-a) between two next-token distributions, from their log-probabilities.

Log-probabilities have shape (..., V): the last dimension is the vocabulary. A token that either distribution excludes
(-inf) is excluded by every q_a with 0 < a < 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_geometric_mean(log_p_theta: Tensor, log_p_t: Tensor, alpha: Tensor | float) -> tuple[Tensor, Tensor]:
    """log q_a, of shape (..., V), and log Z_a, of shape (...), with Z_a = sum_v p_theta(v)^a p_t(v)^(1-a).

    alpha: the exponent a in [0, 1], a number or of shape (...). At 1, q_a is p_theta, and at 0 p_t, with the tokens
    that the other excludes. For 0 < a < 1 and no token in common, log Z_a = -inf, and q_a = a p_theta + (1-a) p_t.
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
    """KL(q||p_t) - KL(q||p_theta) in nats, of shape (...): positive where q is closer to p_theta. Tokens that
    p_theta or p_t excludes are left out."""
    both = (log_p_theta > -math.inf) & (log_p_t > -math.inf)
    return (log_q.exp() * torch.where(both, log_p_theta - log_p_t, 0.0)).sum(dim=-1)


def effective_sample_size(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Effective sample size, per sample, of samples from q with weights p / q: 1 / sum_v (p(v)^2 / q(v)).

    Shape (...), in [0, 1]: 1 where p = q; 0 where q excludes a token of p.
    """
    log_terms = torch.where(log_p > -math.inf, 2 * log_p - log_q, -math.inf)
    return (-log_terms.logsumexp(dim=-1)).exp()


def refuse(bad: Tensor, name: str, reason: str, first: int = 0) -> None:
    """ValueError, which names the first of the rows `bad`, (rows,) bool, counted from `first`."""
    if bool(bad.any()):
        raise ValueError(f"{name}: row {first + int(bad.int().argmax())} {reason}")

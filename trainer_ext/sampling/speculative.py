"""Speculative sampling from q (Leviathan et al. 2023, Chen et al. 2023): draft cheaply, verify, correct.

A draft token y is kept with probability min(1, q(y)/p(y)); at the first that is not, one is drawn from the residual
max(q - p, 0), normalised; when all are kept, one more from q. The residual is what makes the output's distribution
exactly q: drawing from q itself there does not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer_ext.sampling import draws
from trainer_ext.sampling.geometric import refuse


def acceptance(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Probability that a token drafted from p is kept: sum_v min(p, q) = 1 - TV(p, q), (...) of (..., V)."""
    return torch.minimum(log_p, log_q).exp().sum(dim=-1)


def residual(log_p: Tensor, log_q: Tensor) -> Tensor:
    """max(q - p, 0), normalised, (..., V): what follows a rejection. Equal p and q, which reject nothing: q."""
    left = (log_q.exp() - log_p.exp()).clamp_min(0)
    total = left.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, left / torch.where(total > 0, total, 1.0), log_q.exp())


def verify(draft: Tensor, log_p: Tensor, log_q: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Keep or correct k draft tokens of each of B rows: how many of them stand, and the token drawn after these, (B,).

    draft: (B, k) int64, drawn from p; log_p: (B, k, V), the draft's log-probabilities; log_q: (B, k + 1, V), those of q
    at the same positions and the one after; uniform: (B, k + 1, 2), random numbers in [0, 1) of each position: to keep
    its draft, to draw another token there. The output, draft[:standing] and then the token, is distributed as q's.

    ValueError: shapes that do not fit, a token outside the vocabulary or that log_p excludes, NaN, with its row.
    """
    rows, k = draft.shape
    words = log_p.shape[-1]
    for name, x, shape in (("log_p", log_p, (rows, k, words)), ("log_q", log_q, (rows, k + 1, words))):
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: must be {shape} for a draft of shape {(rows, k)}")
        refuse(x.isnan().flatten(1).any(dim=1), name, "holds NaN")
    outside = ((draft < 0) | (draft >= words)).any(dim=1)
    refuse(outside, "draft", f"holds a token outside the vocabulary of {words}")
    index = draft.unsqueeze(-1)
    drawn = log_p.gather(-1, index)[..., 0]
    refuse((drawn == -math.inf).any(dim=1), "draft", "holds a token that log_p excludes: draw it from p")
    chance = log_q[:, :k].gather(-1, index)[..., 0] - drawn
    kept = uniform[:, :k, 0].double().log() < chance
    accepted = kept.long().cumprod(dim=1).sum(dim=1)
    row = torch.arange(rows, device=draft.device)
    after = log_q[row, accepted]
    # after the last position nothing was drafted: p = 0 there, whose residual is q
    nothing = torch.full_like(log_q[:, :1], -math.inf)
    before = torch.cat([log_p, nothing], dim=1)[row, accepted]
    return accepted, draws.choose(residual(before, after), uniform[row, accepted, 1])

"""Log-probabilities and entropies from logits, a block of tokens at a time and in float32.

verl's own go through the tokens one by one where flash attention is not installed, with several kernels for each. In
bfloat16 they also hold copies of all logits in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from verl.utils import torch_functional

#: Logits of a block, whose copies in float32 exist at a time; a single token may have more.
BLOCK = 2**24
_entropy = torch_functional.entropy_from_logits


def _rows(logits: Tensor) -> int:
    """Tokens in a block."""
    return max(1, BLOCK // logits.shape[-1])


class _LogProbs(torch.autograd.Function):
    """log_softmax of logits (N, V) at labels (N,), (N,) in float32. It keeps nothing of the size of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        sums = torch.cat([part.float().logsumexp(dim=-1) for part in logits.split(_rows(logits))])
        ctx.save_for_backward(logits, labels, sums)
        return logits.gather(1, labels[:, None])[:, 0].float() - sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, labels, sums = ctx.saved_tensors
        (gradient,) = gradients
        found = torch.empty_like(logits)
        parts = (x.split(_rows(logits)) for x in (found, logits, labels, sums, gradient))
        for into, part, label, total, factor in zip(*parts, strict=True):
            slope = (part.float() - total[:, None]).exp_().neg_()
            slope.scatter_add_(1, label[:, None], torch.ones_like(slope[:, :1]))
            into.copy_(slope.mul_(factor[:, None]))
        return found, None


def log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """As verl's logprobs_from_logits_v2: of labels (...,) under logits (..., V); float32."""
    flat = _LogProbs.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return flat.view(labels.shape)


def entropy(logits: Tensor) -> Tensor:
    """As verl's entropy_from_logits: of the distributions whose logits (..., V) are; (...,), float32."""
    flat = logits.reshape(-1, logits.shape[-1])
    return torch.cat([_entropy(part.float()) for part in flat.split(_rows(flat))]).view(logits.shape[:-1])


def use() -> None:
    """Make verl's engines in this process use these."""
    torch_functional.logprobs_from_logits_v2 = log_probs
    torch_functional.entropy_from_logits = entropy

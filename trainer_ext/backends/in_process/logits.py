"""Log-probabilities, entropies and collision probabilities from logits, a block of tokens at a time and in float32.

Where flash attention is not installed, verl's log-probabilities go through the tokens one by one, with several kernels
for each. Its other functions hold copies of all logits, also in bfloat16 some in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from verl.utils import torch_functional

from trainer_ext.fits.memory import BLOCK

_entropy = torch_functional.entropy_from_logits
_collision = torch_functional.calculate_sum_pi_squared_from_logits


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
        of_logits = torch.empty_like(logits)
        parts = (x.split(_rows(logits)) for x in (of_logits, logits, labels, sums, gradient))
        for into, part, label, total, factor in zip(*parts, strict=True):
            slope = (part.float() - total[:, None]).exp_().neg_()
            slope.scatter_add_(1, label[:, None], torch.ones_like(slope[:, :1]))
            into.copy_(slope.mul_(factor[:, None]))
        return of_logits, None


def log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """As verl's logprobs_from_logits_v2: of labels (...,) under logits (..., V); float32."""
    flat = _LogProbs.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return flat.view(labels.shape)


def _in_blocks(of: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """A function of the distributions with these logits (..., V); (...,), float32.

    For a gradient, the values inside of the function are computed again.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    parts = [checkpoint(lambda part: of(part.float()), part, **again) for part in flat.split(_rows(flat))]
    return torch.cat(parts).view(logits.shape[:-1])


def entropy(logits: Tensor) -> Tensor:
    """As verl's entropy_from_logits, in nats: of the distributions with these logits (..., V); (...,), float32."""
    return _in_blocks(_entropy, logits)


def collision(logits: Tensor) -> Tensor:
    """As verl's calculate_sum_pi_squared_from_logits: sum_v pi_v^2 under these logits (..., V); (...,), float32."""
    return _in_blocks(_collision, logits)


def use() -> None:
    """Make verl's own engines in this process use these."""
    torch_functional.logprobs_from_logits_v2 = log_probs
    torch_functional.entropy_from_logits = entropy
    torch_functional.calculate_sum_pi_squared_from_logits = collision

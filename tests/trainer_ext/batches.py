"""Ragged batches of numbers that could be a training step's, for the tests of what the methods compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace

import torch
from hypothesis import strategies as st
from torch import Tensor

Rows = list[list[float]]
WORDS = 5


@dataclass(frozen=True)
class Batch:
    """Tensors (B, T), logits (B, T, WORDS), group (B,); what stands where the mask is false should not matter."""

    logp: Tensor  # of the token chosen, from logits
    reference: Tensor
    ratio: Tensor
    log_ratio: Tensor  # another one than ratio's, of the same size
    advantages: Tensor
    rewards: Tensor
    logits: Tensor
    mask: Tensor
    group: Tensor

    @property
    def valid(self) -> list[list[bool]]:
        return [[bool(m) for m in row] for row in self.mask.tolist()]

    @property
    def floats(self) -> SimpleNamespace:
        """The numbers themselves, nested lists."""
        return SimpleNamespace(**{f.name: getattr(self, f.name).double().tolist() for f in fields(self)})

    def map(self, change: Callable[[Tensor], Tensor], *but: str) -> Batch:
        """A batch with every tensor changed, except those named."""
        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self) if f.name not in but})

    def to(self, kind: torch.dtype) -> Batch:
        """Numbers rounded to another type."""
        return self.map(lambda x: x.to(kind), "mask", "group")


def batch(seed: int, rows: int = 5, length: int = 7, density: float = 0.7) -> Batch:
    """Random rows with holes; the first is empty if there is another one and the seed is even. Float64."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    logits = 2 * normal(rows, length, WORDS)
    logits[torch.rand(logits.shape, generator=generator) < 0.2] = -math.inf
    logits[..., 0] = normal(rows, length)
    chosen = logits.softmax(-1).view(-1, WORDS).multinomial(1, generator=generator).view(rows, length, 1)
    logp = logits.log_softmax(-1).gather(-1, chosen)[..., 0]
    mask = torch.rand(rows, length, generator=generator) < density
    if rows > 1 and seed % 2 == 0:
        mask[0] = False
    return Batch(
        logp=logp,
        reference=logp + 0.3 * normal(rows, length),
        ratio=(0.5 * normal(rows, length)).exp(),
        log_ratio=0.5 * normal(rows, length),
        advantages=normal(rows, length),
        rewards=normal(rows, length),
        logits=logits,
        mask=mask,
        group=torch.randint(0, 3, (rows,), generator=generator),
    )


#: Ragged batches, down to one row, one token, no valid token at all.
BATCHES = st.builds(batch, st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 8), st.sampled_from([0.2, 0.7, 1]))

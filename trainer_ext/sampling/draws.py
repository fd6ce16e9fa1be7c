"""Random numbers for each response, which depend on its place in the run but not on its batch or the machine.

With one generator for a whole batch, a row would get other numbers as soon as the batch has one more row. Here each
response has its own key, a hash of the seed, the purpose of the draw, the step, and its row in that step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


def key(seed: int, purpose: str, step: int, row: int) -> int:
    """The key of one response of a run: 63 bits, so that a sampling server accepts it as a seed."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}/{row}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def keys(seed: int, purpose: str, step: int, rows: Iterable[int]) -> list[int]:
    return [key(seed, purpose, step, row) for row in rows]


def uniforms(keys: Sequence[int], count: int) -> Tensor:
    """Uniform numbers in [0, 1) from each key: (len(keys), count) float64, on the CPU. A larger count only appends."""
    rows = np.empty((len(keys), count))
    philox = np.random.Philox(key=0)
    generator, state = np.random.Generator(philox), philox.state
    for row, key in zip(rows, keys, strict=True):  # one generator, set to each key: making one takes longer
        state["state"]["key"][0] = key
        philox.state = state
        generator.random(out=row)
    return torch.from_numpy(rows)


def choose(weights: Tensor, uniform: Tensor) -> Tensor:
    """The index (...) at which the running sum of weights (..., V), of 0 or more, passes `uniform` (...) of the total.

    An index of weight 0 is never chosen. Computed in double precision.
    """
    sums = weights.double().cumsum(dim=-1)
    level = (uniform.to(sums.device).double() * sums[..., -1]).unsqueeze(-1)
    index = torch.searchsorted(sums, level, right=True)
    # If rounding puts the level at the total, the last index whose weight is above 0 is chosen.
    last = torch.searchsorted(sums, sums[..., -1:].contiguous(), right=False)
    return torch.minimum(index, last).squeeze(-1)


def accepted(policy: Tensor, target: Tensor, mask: Tensor, n: int, keys: Sequence[int]) -> Tensor:
    """Which responses rejection sampling towards a target keeps, (B,) bool.

    Each is kept with probability pi_t / (m pi_theta), m the largest ratio of its prompt's n responses. policy, target:
    (B, T) log-probabilities of the tokens; mask: (B, T) bool; the n responses to a prompt are adjacent; keys: of the
    draws, one for each response.
    """
    ratio = ((target - policy) * mask).double().sum(dim=1).reshape(-1, n)
    chance = (ratio - ratio.amax(dim=1, keepdim=True)).exp().flatten()
    return uniforms(keys, 1)[:, 0].to(chance.device) <= chance

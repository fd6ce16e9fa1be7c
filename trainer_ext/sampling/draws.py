"""Random numbers of one response, by its place in a run: a row gets the same ones in every batch, on every machine.

A generator that all rows of a batch share gives a row other numbers as soon as one more row is drawn with it. Here each
response has a key of its own, made of the seed, the purpose of the draw, the step, and its row in that step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


def key(seed: int, purpose: str, step: int, row: int) -> int:
    """63 bits that name one response of a run. They fit the seed of a request to a sampling server."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}/{row}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def keys(seed: int, purpose: str, step: int, rows: Iterable[int]) -> list[int]:
    """The key of each row."""
    return [key(seed, purpose, step, row) for row in rows]


def uniforms(of: Sequence[int], count: int) -> Tensor:
    """(len(of), count) float64 in [0, 1), on the CPU: a row for each key. A larger count only appends numbers."""
    rows = [np.random.Generator(np.random.Philox(key=one)).random(count) for one in of]
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, count, dtype=torch.float64)


def choose(weights: Tensor, uniform: Tensor) -> Tensor:
    """The index (...) at which the running sum of weights (..., V), of 0 or more, passes `uniform` (...) of the total.

    An index of weight 0 is never chosen. Computed in double precision.
    """
    sums = weights.double().cumsum(dim=-1)
    level = (uniform.to(sums.device).double() * sums[..., -1]).unsqueeze(-1)
    found = torch.searchsorted(sums, level, right=True)
    # a level that rounding puts at the total is in the last index whose weight is above 0
    last = torch.searchsorted(sums, sums[..., -1:].contiguous(), right=False)
    return torch.minimum(found, last).squeeze(-1)


def accepted(policy: Tensor, target: Tensor, mask: Tensor, n: int, keys: Sequence[int]) -> Tensor:
    """Which responses rejection sampling towards a target keeps, (B,) bool.

    Each is kept with probability pi_t / (m pi_theta), m the largest ratio of its prompt's n responses. policy, target:
    (B, T) log-probabilities of the tokens; mask: (B, T) bool; the n responses to a prompt are adjacent; keys: of the
    draws, one for each response.
    """
    ratio = ((target - policy) * mask).double().sum(dim=1).reshape(-1, n)
    chance = (ratio - ratio.amax(dim=1, keepdim=True)).exp().flatten()
    return uniforms(keys, 1)[:, 0].to(chance.device) <= chance

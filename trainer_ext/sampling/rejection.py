"""Rejection sampling: of responses that a policy drew, keep each as often as a target would have drawn it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trainer_ext.sampling import draws


def accepted(policy: Tensor, target: Tensor, mask: Tensor, n: int, keys: Sequence[int]) -> Tensor:
    """Which responses are kept, (B,) bool: with probability pi_t / (m pi_theta), m the largest of its prompt's n.

    policy, target: (B, T) log-probabilities of the tokens; mask: (B, T) bool; the n responses to a prompt are adjacent;
    keys: of the draws, one for each response.
    """
    ratio = ((target - policy) * mask).double().sum(dim=1).reshape(-1, n)
    chance = (ratio - ratio.amax(dim=1, keepdim=True)).exp().flatten()
    return draws.uniforms(keys, 1)[:, 0].to(chance.device) <= chance

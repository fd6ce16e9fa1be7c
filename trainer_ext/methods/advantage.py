"""Advantages from rewards."""

from __future__ import annotations

import torch
from torch import Tensor


def grpo(rewards: Tensor, group: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Group-normalised advantages (Shao et al. 2024, DeepSeekMath, section 4.1.1).

    rewards: (B,) one a response; group: (B,) int64, the same number for the responses to one prompt. Returns (B,):
    (R - mean) / (std + epsilon) within the group, std with n - 1 as in verl; 0 in a group of one.
    """
    _, index = torch.unique(group, return_inverse=True)
    kind, rewards = rewards.dtype, rewards.double()  # in single precision equal rewards would differ from their mean
    groups = int(index.max()) + 1
    count = rewards.new_zeros(groups).index_add_(0, index, torch.ones_like(rewards))
    mean = rewards.new_zeros(groups).index_add_(0, index, rewards) / count
    centred = rewards - mean[index]
    squares = rewards.new_zeros(groups).index_add_(0, index, centred**2)
    std = (squares / (count - 1).clamp_min(1)).sqrt()
    return (centred / (std[index] + epsilon)).to(kind)

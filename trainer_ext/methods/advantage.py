"""Advantages from rewards, registered with verl under its own signature as `rlsweep_grpo` and `rlsweep_raw`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def grpo(rewards: Tensor, group: Tensor, epsilon: float = 1e-6, normalize: bool = True) -> Tensor:
    """Group-normalised advantages (Shao et al. 2024, DeepSeekMath, section 4.1.1).

    rewards: (B,) one a response; group: (B,) int64, the same number for the responses to one prompt. Returns (B,):
    (R - mean) / (std + epsilon) within the group, std with n - 1 as in verl; without `normalize` R - mean alone (Liu et
    al. 2025, "Dr. GRPO"). 0 in a group of one.
    """
    _, index = torch.unique(group, return_inverse=True)
    kind, rewards = rewards.dtype, rewards.double()  # in single precision equal rewards would differ from their mean
    groups = int(index.max()) + 1
    count = rewards.new_zeros(groups).index_add_(0, index, torch.ones_like(rewards))
    mean = rewards.new_zeros(groups).index_add_(0, index, rewards) / count
    centred = rewards - mean[index]
    if not normalize:
        return centred.to(kind)
    squares = rewards.new_zeros(groups).index_add_(0, index, centred**2)
    std = (squares / (count - 1).clamp_min(1)).sqrt()
    return (centred / (std[index] + epsilon)).to(kind)


def grpo_estimator(
    token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray[Any, Any], config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """`grpo` as verl calls an estimator: rewards and mask (B, T), index (B,) names the group.

    config.norm_adv_by_std_in_grpo chooses the division by the group's spread. Returns advantages and returns, (B, T).
    """
    group = np.unique(np.asarray(index).astype(str), return_inverse=True)[1]
    normalize = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    rewards = _returns(token_level_rewards, response_mask)
    found = grpo(rewards, torch.as_tensor(group, device=rewards.device), normalize=normalize)
    advantages = found.to(token_level_rewards.dtype)[:, None] * response_mask
    return advantages, advantages


def raw_estimator(token_level_rewards: Tensor, response_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """A = R, the response's reward at each of its tokens, without a baseline; as verl calls an estimator."""
    rewards = _returns(token_level_rewards, response_mask).to(token_level_rewards.dtype)[:, None] * response_mask
    return rewards, rewards


def _returns(token_level_rewards: Tensor, mask: Tensor) -> Tensor:
    """R_i, (B,) float64: responses of equal reward agree, wherever in them it is given."""
    return torch.where(mask.bool(), token_level_rewards, 0.0).double().sum(dim=1)

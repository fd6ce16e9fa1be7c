"""Advantages of a step from its rewards, by an estimator of verl's registry; this module adds `rlsweep_grpo` and
`rlsweep_raw`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, register_adv_est

from trainer_ext import registry


def grpo(rewards: Tensor, group: Tensor, epsilon: float = 1e-6, normalize: bool = True) -> Tensor:
    """Group-normalised advantages (Shao et al. 2024, DeepSeekMath, section 4.1.1).

    rewards: (B,), one for each response. group: (B,) int64, equal for the responses to one prompt. Returns (B,):
    (R - mean) / (std + epsilon) within the group, where std divides by n - 1 as in verl, or R - mean if normalize is
    False (Liu et al. 2025, "Dr. GRPO"). A group of one response gets 0.
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


@register_adv_est("rlsweep_grpo")
def grpo_estimator(
    token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray[Any, Any], config: Any, **_: Any
) -> tuple[Tensor, Tensor]:
    """`grpo` as verl calls an estimator: rewards and mask (B, T), index (B,) names the group.

    config.norm_adv_by_std_in_grpo chooses the division by the group's spread. Returns advantages and returns, (B, T).
    """
    group = np.unique(np.asarray(index).astype(str), return_inverse=True)[1]
    rewards = _returns(token_level_rewards, response_mask)
    groups = torch.as_tensor(group, device=rewards.device)
    normalized = grpo(rewards, groups, normalize=config.norm_adv_by_std_in_grpo)
    advantages = normalized.to(token_level_rewards.dtype)[:, None] * response_mask
    return advantages, advantages


@register_adv_est("rlsweep_raw")
def raw_estimator(token_level_rewards: Tensor, response_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """A = R, the response's reward at each of its tokens, without a baseline; as verl calls an estimator."""
    rewards = _returns(token_level_rewards, response_mask).to(token_level_rewards.dtype)[:, None] * response_mask
    return rewards, rewards


def _returns(token_level_rewards: Tensor, mask: Tensor) -> Tensor:
    """The reward of each response, (B,). In float64 the sum does not depend on which token has the reward."""
    return torch.where(mask.bool(), token_level_rewards, 0.0).double().sum(dim=1)


# Each choice maps its settings to verl's `algorithm` section. The backend reads the settings of the critic.
registry.advantage("grpo")(
    lambda norm_adv_by_std_in_grpo: AlgoConfig(
        adv_estimator="rlsweep_grpo", norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo
    )
)
registry.advantage("raw")(lambda: AlgoConfig(adv_estimator="rlsweep_raw"))
registry.advantage("verl")(lambda adv_estimator: AlgoConfig(adv_estimator=adv_estimator))
registry.advantage("gae")(
    lambda gae_gamma, gae_lambda, critic_lr_ratio, critic_warmup, cliprange_value: AlgoConfig(
        adv_estimator="gae", gamma=gae_gamma, lam=gae_lambda
    )
)


def advantages(
    config: AlgoConfig, token_level_rewards: Tensor, mask: Tensor, group: Tensor, values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, (B, T), of the estimator that verl's registry has under config.adv_estimator.

    token_level_rewards, mask: (B, T); group: (B,) int64, one number for each prompt; values: (B, T) for `gae` alone.
    """
    counts = mask.to(token_level_rewards.dtype)  # verl subtracts masks, which booleans do not allow
    token_level_rewards = torch.where(mask.bool(), token_level_rewards, 0.0)  # verl sums rewards without a mask
    estimate = get_adv_estimator_fn(config.adv_estimator)
    if values is not None:
        values = torch.where(mask.bool(), values, 0.0)
        estimated = estimate(token_level_rewards, values, counts, gamma=config.gamma, lam=config.lam)
    else:
        index = np.array([str(int(number)) for number in group], dtype=object)
        estimated = estimate(token_level_rewards=token_level_rewards, response_mask=counts, index=index, config=config)
    return estimated[0] * counts, estimated[1] * counts

"""From rewards to the advantages of a step, on the whole batch: the parts `advantage` and `credit` of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, register_adv_est

from trainer_ext.methods import advantage, credit

register_adv_est("rlsweep_grpo")(advantage.grpo_estimator)
register_adv_est("rlsweep_raw")(advantage.raw_estimator)

#: verl's name of each choice of the part `advantage`; of `verl` the method itself names it.
ESTIMATORS = {"grpo": "rlsweep_grpo", "raw": "rlsweep_raw", "gae": "gae"}


def algorithm_config(method: Mapping[str, Any]) -> AlgoConfig:
    """verl's `algorithm` section for a composed method (conf/method/advantage)."""
    choice = method["advantage"]
    return AlgoConfig(
        adv_estimator=method["adv_estimator"] if choice == "verl" else ESTIMATORS[choice],
        gamma=method.get("gae_gamma", 1.0),
        lam=method.get("gae_lambda", 1.0),
        norm_adv_by_std_in_grpo=method.get("norm_adv_by_std_in_grpo", True),
    )


def advantages(
    config: AlgoConfig, token_level_rewards: Tensor, mask: Tensor, group: Tensor, values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, (B, T), of the estimator that verl's registry has under config.adv_estimator.

    token_level_rewards, mask: (B, T); group: (B,) int64, one number a prompt; values: (B, T) for `gae` alone.
    """
    counts = mask.to(token_level_rewards.dtype)  # verl subtracts masks
    token_level_rewards = torch.where(mask.bool(), token_level_rewards, 0.0)  # and sums rewards without one
    estimate = get_adv_estimator_fn(config.adv_estimator)
    if values is not None:
        values = torch.where(mask.bool(), values, 0.0)
        found = estimate(token_level_rewards, values, counts, gamma=config.gamma, lam=config.lam)
    else:
        index = np.array([str(int(one)) for one in group], dtype=object)
        found = estimate(token_level_rewards=token_level_rewards, response_mask=counts, index=index, config=config)
    return found[0] * counts, found[1] * counts


def _gradient_adaptive(
    logp: Tensor, mask: Tensor, collision: Tensor, tau: float, norm: str
) -> tuple[Tensor, dict[str, float]]:
    norms = credit.score_norm(logp, collision) if norm == "exact" else logp.detach().double().abs()
    weights = credit.softmax_weights(norms, mask, tau)
    valid, metrics = mask.bool(), {}
    if valid.any():
        metrics = {
            "gradient_adaptive/avg_gradient_norm": float(norms[valid].mean()),
            "gradient_adaptive/weight_variance": float(weights[valid].var(unbiased=False)),
        }
    return weights.to(logp.dtype), metrics


def _temporal_decay(
    logp: Tensor, mask: Tensor, collision: Tensor, gamma: float, schedule: str, normalize: str
) -> tuple[Tensor, dict[str, float]]:
    weights = credit.temporal_decay(mask.double(), gamma, schedule, normalize)
    order = mask.bool().cumsum(dim=1)  # a hole has the number of the token before it, and weight 0
    length, metrics = order[:, -1:], {}
    rows = int((length > 0).sum())
    if rows:
        metrics = {
            "temporal_decay/weight_sum": float(weights.sum() / rows),
            "temporal_decay/first_weight": float(weights[order == 1].sum() / rows),
            "temporal_decay/last_weight": float(weights[order == length].sum() / rows),
        }
    return weights.to(logp.dtype), metrics


#: The choices of the part `credit`; conf/method/credit/ holds a file for each. Each takes logp, mask, collision (sum of
#: the squared probabilities of the whole vocabulary), all (B, T), and its parameters; gives weights (B, T) and metrics.
CREDITS: dict[str, Callable[..., tuple[Tensor, dict[str, float]]]] = {
    "gradient_adaptive": _gradient_adaptive,
    "temporal_decay": _temporal_decay,
}


def credit_weights(
    chosen: Mapping[str, Mapping[str, Any]], logp: Tensor, mask: Tensor, collision: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """The product of the chosen credits' weights, (B, T), and their metrics; ones where none is chosen."""
    weights = torch.ones_like(logp)
    metrics: dict[str, float] = {}
    for name, parameters in sorted(chosen.items()):  # products of three depend on their order
        factor, found = CREDITS[name](logp, mask, collision, **parameters)
        weights = weights * factor
        metrics |= found
    return weights, metrics

"""Advantages of a step: ours by hand, verl's by verl. That ours equal their loops is in test_laws.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import (
    compute_gae_advantage_return,
    compute_grpo_outcome_advantage,
    get_adv_estimator_fn,
)

from tests.configuration import CONF, configuration
from tests.trainer_ext.batches import BATCHES, Batch, batch
from trainer_ext.methods import advantage

ESTIMATORS = yaml.safe_load((CONF / "method" / "advantage" / "verl.yaml").read_text())["allowed"]["adv_estimator"][
    "enum"
]


def masked(b: Batch) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """What verl's own functions take: rewards that are 0 where nothing counts, a mask of numbers, names of groups."""
    return b.rewards * b.mask, b.mask.double(), np.array([f"prompt {int(g)}" for g in b.group], dtype=object)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reward", [1.0, 0.1, 0.7])
def test_a_group_that_agrees_has_no_advantage(reward, kind):
    rewards, group = torch.full((8,), reward, dtype=kind), torch.zeros(8, dtype=torch.long)
    found = advantage.grpo(rewards, group)
    assert found.dtype == kind
    # the mean of equal numbers is exact where double precision is wider than they are
    assert found.tolist() == pytest.approx([0.0] * 8, abs=1e-9 if kind is torch.float64 else 0)


@settings(max_examples=15)
@given(BATCHES)
def test_grpo_and_dr_grpo_are_verls_but_for_a_group_of_one(b):
    rewards, counts, index = masked(b)
    alone = torch.tensor([(b.group == g).sum() == 1 for g in b.group])[:, None]
    totals = rewards.sum(dim=1, keepdim=True) * counts
    for normalize in (True, False):
        config = advantage.algorithm_config({"advantage": "grpo", "norm_adv_by_std_in_grpo": normalize})
        ours, _ = advantage.advantages(config, b.rewards, b.mask, b.group)
        verls, _ = compute_grpo_outcome_advantage(rewards, counts, index, norm_adv_by_std_in_grpo=normalize)
        torch.testing.assert_close(torch.where(alone, 0.0, ours), torch.where(alone, 0.0, verls))
        # verl has the reward itself as the advantage of a response without peers; nothing says that it was good
        torch.testing.assert_close(torch.where(alone, verls, 0.0), torch.where(alone, totals, 0.0), rtol=2e-6, atol=0)
        assert not torch.where(alone, ours, 0.0).any()


def gae_config(gamma: float, lam: float) -> AlgoConfig:
    method = configuration("method=c0_ppo", f"method.gae_gamma={gamma}", f"method.gae_lambda={lam}")["method"]
    return advantage.algorithm_config(method)


def test_the_method_files_choose_the_estimators():
    plain, centred = (
        advantage.algorithm_config(configuration(f"method={name}")["method"]) for name in ("c0_grpo", "dr_grpo")
    )
    assert plain.adv_estimator == centred.adv_estimator == "rlsweep_grpo"
    assert plain.norm_adv_by_std_in_grpo and not centred.norm_adv_by_std_in_grpo
    config = gae_config(0.9, 0.8)
    assert (config.adv_estimator, config.gamma, config.lam) == ("gae", 0.9, 0.8)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("normalize", [True, False])
def test_an_estimator_of_verls_gives_what_it_gives_in_verl(name, normalize):
    b = batch(7, rows=6, length=5)
    b = type(b)(**{**vars(b), "group": torch.tensor([3, 1, 3, 1, 1, 3])})
    rewards, counts, index = masked(b)
    config = AlgoConfig(adv_estimator=name, gamma=1.0, lam=1.0, norm_adv_by_std_in_grpo=normalize)
    expected = get_adv_estimator_fn(name)(
        token_level_rewards=rewards.clone(), response_mask=counts, index=index, config=config
    )
    rubbish = torch.where(b.mask, b.rewards, math.nan)
    found = advantage.advantages(config, rubbish, b.mask, b.group)
    for ours, verls in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, verls * counts)
    assert found[0].abs().max() > 0.01
    assert advantage.algorithm_config({"advantage": "verl", "adv_estimator": name}).adv_estimator == name


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [1.0, 0.8])
def test_gae_is_verls(gamma, lam):
    b = batch(8)
    rewards, counts, _ = masked(b)
    config = gae_config(gamma, lam)
    expected = compute_gae_advantage_return(rewards, b.logp * counts, counts, gamma, lam)
    rubbish = (torch.where(b.mask, x, math.nan) for x in (b.rewards, b.logp))
    for ours, verls in zip(
        advantage.advantages(config, next(rubbish), b.mask, b.group, next(rubbish)), expected, strict=True
    ):
        torch.testing.assert_close(ours, verls * counts)

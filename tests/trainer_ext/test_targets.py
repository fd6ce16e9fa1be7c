"""The weights by which a target's examples are drawn from the sampled responses."""

from __future__ import annotations

import math

import pytest
import torch

from trainer_ext import registry
from trainer_ext.backends.in_process import target_model

REWARDS = torch.tensor([[0.0, 1.0, 0.5], [2.0, 2.0, -1.0]])
A, B = math.exp(2), math.exp(1)  # of rewards 1 and 0.5 with beta = 0.5


@pytest.mark.parametrize(
    ("choice", "own", "expected"),
    [
        ("best_of_n", {}, [[0, 1, 0], [1, 0, 0]]),  # the first of equal rewards
        ("high_reward", {"target_threshold": 0.5}, [[0, 1, 0], [1, 1, 0]]),
        (
            "reward_tilted",
            {"target_beta": 0.5},
            [[x / (1 + A + B) for x in (1, A, B)], [x / (2 + math.exp(-6)) for x in (1, 1, math.exp(-6))]],
        ),
    ],
)
def test_a_response_is_weighed_by_its_reward(choice, own, expected, monkeypatch):
    monkeypatch.setattr(target_model, "_tuned", lambda start, steps, lr_ratio, examples: examples())
    monkeypatch.setattr(target_model, "_samples", lambda start, prompts, samples, weigh: weigh(REWARDS))
    own = {**own, "target_prompts": 2, "target_samples": 3, "target_steps": 1, "target_lr_ratio": 1.0}
    weights = registry.target.of({"target": choice, **own})(None)
    torch.testing.assert_close(weights.float(), torch.tensor(expected, dtype=torch.float))

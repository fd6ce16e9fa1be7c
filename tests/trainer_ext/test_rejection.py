"""Rejection sampling on a policy and a target that are written down."""

from __future__ import annotations

import torch

from trainer_ext.sampling import draws


def test_responses_are_kept_in_proportion_to_the_targets_share():
    """Of four responses of one and two tokens, thousands of times: the best always, the others by their ratio."""
    times, mask = 4000, torch.tensor([[True, True], [True, False], [True, True], [True, False]])
    policy = torch.tensor([[-1.0, -2.0], [-1.0, 9.0], [-0.5, -0.5], [-3.0, 9.0]])
    target = torch.tensor([[-1.0, -1.0], [-2.0, -9.0], [-0.5, -0.5], [-3.0, 9.0]])
    expected = torch.tensor([1.0, -1.0, 0.0, 0.0]).sub(1.0).exp()  # of the log-ratios 1, -1, 0, 0
    many = [x.repeat(times, 1) for x in (policy, target, mask)]
    kept = draws.accepted(*many, 4, draws.keys(0, "accept", 1, range(4 * times))).reshape(times, 4)
    assert kept[:, 0].all()
    assert torch.allclose(kept.float().mean(dim=0), expected, atol=0.04)  # five standard errors

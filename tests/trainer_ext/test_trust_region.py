"""Trust regions: known cases, limits and gradients. That they equal their loops is in test_laws.py."""

from __future__ import annotations

import math

import pytest
import torch

from tests.trainer_ext.batches import batch
from trainer_ext.methods import trust_region


def test_the_gaussian_gate_has_no_gradient_unless_asked():
    b = batch(1)
    ratio = b.ratio.requires_grad_()
    trust_region.gaussian(ratio, b.advantages, sigma=0.5).sum().backward()
    gate = trust_region.trust_weight(ratio.detach(), 0.5)
    torch.testing.assert_close(ratio.grad, -gate * b.advantages)
    one = torch.full((1, 1), 1.4, dtype=torch.float64, requires_grad=True)
    trust_region.gaussian(one, torch.ones_like(one), sigma=0.2, differentiable=True).sum().backward()
    assert one.grad.item() == pytest.approx(-math.exp(-2.0) * (1 - 1.4 * 0.4 / 0.04)), (
        "r (r - 1) > sigma^2: of other sign"
    )


@pytest.mark.parametrize(
    "function",
    [
        trust_region.clip,
        trust_region.asymmetric_clip,
        lambda r, a: trust_region.clip(r, a, 0.2, 0.28, 10.0),
        lambda r, a: trust_region.gaussian(r, a, 0.5, differentiable=True),
    ],
)
def test_gradients(function):
    b = batch(2)
    assert torch.autograd.gradcheck(lambda r: function(r, b.advantages), b.ratio.requires_grad_())


def test_no_gradient_beyond_the_bounds():
    ratio = torch.tensor([[1.5, 0.5, 0.5, 3.5, 1.1]], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]], dtype=torch.float64)
    trust_region.clip(ratio, advantages).sum().backward()
    assert ratio.grad.tolist() == [[0, 0, -1, 0, -1]]

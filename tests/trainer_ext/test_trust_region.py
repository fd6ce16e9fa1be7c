"""Trust regions: known cases, limits and gradients. That they equal their loops is in test_laws.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer_ext.batches import BATCHES, batch
from trainer_ext.methods import trust_region


def test_a_known_case_of_each():
    ratio, advantages = torch.tensor([[1.5, 0.5, 1.5, 5.0]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    assert trust_region.clip(ratio, advantages).tolist() == [[pytest.approx(-1.2), -0.5, 1.5, 3.0]]
    assert trust_region.asymmetric_clip(ratio, advantages).tolist() == [[pytest.approx(-1.3), -0.5, 1.5, 5.0]]
    assert trust_region.gaussian(torch.ones(1, 1), torch.ones(1, 1)).tolist() == [[-1.0]]
    assert float(trust_region.trust_weight(torch.tensor(1.2), 0.2)) == pytest.approx(math.exp(-0.5))


@settings(max_examples=20)
@given(BATCHES, st.floats(0.05, 0.5))
def test_asymmetric_clip_with_equal_bounds_is_clip_without_dual_clip(b, width):
    both = trust_region.asymmetric_clip(b.ratio, b.advantages, width, width)
    assert torch.equal(both, trust_region.clip(b.ratio, b.advantages, width, width, dual_clip=1e9))


@settings(max_examples=20)
@given(BATCHES)
def test_every_region_is_the_plain_surrogate_once_wide_enough(b):
    plain = -b.ratio * b.advantages
    torch.testing.assert_close(trust_region.gaussian(b.ratio, b.advantages, sigma=1e6), plain)
    torch.testing.assert_close(trust_region.clip(b.ratio, b.advantages, 1.0, 1e6, dual_clip=1e9), plain)
    torch.testing.assert_close(trust_region.asymmetric_clip(b.ratio, b.advantages, 1e6, 1e6), plain)


@settings(max_examples=20)
@given(BATCHES)
def test_clipping_is_pessimistic(b):
    plain = -b.ratio * b.advantages
    assert (trust_region.clip(b.ratio, b.advantages, dual_clip=1e9) >= plain).all()
    assert (trust_region.asymmetric_clip(b.ratio, b.advantages) >= plain).all()
    assert (trust_region.clip(b.ratio, b.advantages)[b.advantages < 0] <= -3 * b.advantages[b.advantages < 0]).all()


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

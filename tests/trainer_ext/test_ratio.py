"""Importance ratios: smoothing, and one ratio a response. That they equal their loops is in test_laws.py."""

from __future__ import annotations

import math

import pytest
import torch

from tests.trainer_ext.batches import batch
from tests.trainer_ext.equations import ema
from trainer_ext.methods import ratio

BETAS = [0.9, 0.5, 0.05, 0.001]
DIFFERENTIABLE = {
    "ema": lambda x, mask: ratio.ema(x, mask, 0.7),
    "sequence_arithmetic": ratio.sequence_arithmetic,
    "sequence_geometric": lambda x, mask: ratio.sequence_geometric(x.log(), mask),
}


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.1, math.nan])
def test_a_weight_that_is_none_is_refused(beta):
    with pytest.raises(ValueError, match="beta="):
        ratio.ema(torch.ones(1, 2), torch.ones(1, 2), beta)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("beta", BETAS)
def test_smoothing_is_exact_along_a_long_response(beta, kind):
    generator = torch.Generator().manual_seed(0)
    w = (torch.randn(1, 16384, generator=generator, dtype=torch.float64) * 0.5).exp().to(kind)
    mask = torch.rand(1, 16384, generator=generator) < 0.9
    expected = torch.tensor([ema(w[0].tolist(), mask[0].tolist(), beta)], dtype=torch.float64)
    assert (ratio.ema(w, mask, beta).double() - expected).abs().max() < (1e-5 if kind is torch.float32 else 1e-12)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize(("kind", "digits"), [(torch.bfloat16, 8), (torch.float16, 11)], ids=str)
def test_half_precision_rounds_once_however_long_the_response(name, kind, digits):
    generator = torch.Generator().manual_seed(0)
    w = (torch.randn(3, 3000, generator=generator) * 0.5).exp().to(kind)
    mask = torch.rand(3, 3000, generator=generator) < 0.9
    if name == "sequence_geometric":
        found, expected = (ratio.sequence_geometric(x, mask) for x in (w.log(), w.log().double()))
    else:
        found, expected = (DIFFERENTIABLE[name](x, mask) for x in (w, w.double()))
    assert found.dtype == kind
    assert (found.double() / expected - 1).abs().max() <= 1.01 * 2.0**-digits


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name):
    b = batch(2)
    assert torch.autograd.gradcheck(lambda x: DIFFERENTIABLE[name](x, b.mask), b.ratio.requires_grad_())


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("rubbish", [math.nan, math.inf])
def test_rubbish_where_the_mask_is_false_has_no_gradient_and_gives_none(name, rubbish):
    b = batch(2)
    gradients = []
    for x in (b.ratio, torch.where(b.mask, b.ratio, rubbish)):
        x = x.clone().requires_grad_()
        (DIFFERENTIABLE[name](x, b.mask) * b.advantages)[b.mask].sum().backward()
        gradients.append(x.grad[b.mask])
    torch.testing.assert_close(*gradients)

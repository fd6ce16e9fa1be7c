"""Credit assignment: weights of a response's tokens. That they equal their loops is in test_laws.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.trainer_ext.batches import batch
from tests.trainer_ext.conftest import refusal
from tests.trainer_ext.subjects import EXACT, PROXY
from trainer_ext.methods import credit


def test_the_norm_is_that_of_the_gradient_in_the_logits():
    b = batch(3, density=1)
    logits = b.logits.clamp_min(-30).requires_grad_()
    scores = logits.log_softmax(-1)
    chosen = (scores - b.logp[..., None]).abs().argmin(-1, keepdim=True)
    logp = scores.gather(-1, chosen)[..., 0]
    logp.sum().backward()
    collision = (scores.detach().exp() ** 2).sum(-1)
    torch.testing.assert_close(credit.score_norm(logp, collision), logits.grad.norm(dim=-1))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rest", [1e-2, 1e-4, 1e-6, 1e-9, 1e-14])
def test_the_norm_of_a_nearly_certain_token_keeps_its_size(rest, kind):
    # p = 1 - rest; the others share the rest in halves: ((1 - p)^2 + 2 (rest / 2)^2) ^ 1/2
    logp = torch.tensor([[math.log1p(-rest)]], dtype=kind)
    collision = torch.tensor([[(1 - rest) ** 2 + rest**2 / 2]], dtype=kind)
    found = float(credit.score_norm(logp, collision))
    assert rest * (1 - 1e-6) <= found <= rest * math.sqrt(2) * (1 + 1e-6)
    if kind is torch.float64 and rest > 1e-5:
        assert found == pytest.approx(rest * math.sqrt(1.5), rel=1e-5)


def test_weights_have_no_gradient():
    b = batch(4)
    logp, logits = b.logp.requires_grad_(), b.logits.clamp_min(-30).requires_grad_()
    collision = (logits.softmax(-1) ** 2).sum(-1)
    for weights in (
        credit.gradient_adaptive(logp, b.mask),
        credit.gradient_adaptive(logp, b.mask, logits=logits),
        credit.score_norm(logp, collision),
        credit.softmax_weights(logp.abs(), b.mask, 1.0),
        credit.temporal_decay(b.mask.double().requires_grad_()),
        *(credit.credit_weights(chosen, logp, b.mask, collision)[0] for chosen in ({}, PROXY, EXACT)),
    ):
        assert not weights.requires_grad


@pytest.mark.parametrize("wrong", [{"gamma": 0.0}, {"gamma": 1.1}, {"schedule": "linear"}, {"normalize": "max"}])
def test_a_decay_that_makes_no_weights_is_refused(wrong, worded):
    worded(refusal(lambda: credit.temporal_decay(torch.ones(1, 2), **wrong)))


@pytest.mark.parametrize("tau", [0.0, math.inf])
def test_a_softmax_that_makes_no_weights_is_refused(tau):
    with pytest.raises(ValueError, match=f"tau={tau}"):
        credit.gradient_adaptive(-torch.ones(1, 2), torch.ones(1, 2), tau=tau)


def test_a_batch_without_a_token_has_no_credit_to_report():
    b = batch(6)
    empty = replace(b, mask=torch.zeros_like(b.mask))
    weights, metrics = credit.credit_weights(
        {**PROXY, "temporal_decay": {"gamma": 0.9, "schedule": "exponential", "normalize": "mean"}},
        empty.logp,
        empty.mask,
        empty.logp,
    )
    assert not weights.any() and metrics == {}

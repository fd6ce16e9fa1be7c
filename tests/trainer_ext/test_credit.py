"""Credit assignment: weights of a response's tokens. That they equal their loops is in test_laws.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer_ext.batches import BATCHES, batch
from tests.trainer_ext.subjects import EXACT, PROXY
from trainer_ext.methods import credit

SCHEDULES = ["exponential", "log_position"]
FEW = settings(max_examples=15)


@FEW
@given(BATCHES, st.sampled_from(SCHEDULES), st.floats(0.1, 1), st.floats(0.1, 10))
def test_weights_have_mean_one_or_sum_to_one(b, schedule, gamma, tau):
    lengths = b.mask.sum(dim=1).double()
    mask = b.mask.double()
    for weights in (
        credit.temporal_decay(mask, gamma, schedule),
        credit.gradient_adaptive(b.logp, mask, tau),
        credit.gradient_adaptive(b.logp, mask, tau, b.logits),
    ):
        torch.testing.assert_close(weights.sum(dim=1), lengths)
    sums = credit.temporal_decay(mask, gamma, schedule, "sum").sum(dim=1)
    torch.testing.assert_close(sums, (lengths > 0).double())


@FEW
@given(BATCHES)
def test_no_decay_and_a_warm_softmax_weigh_all_alike(b):
    mask = b.mask.double()
    assert torch.equal(credit.temporal_decay(mask, gamma=1.0), mask)
    torch.testing.assert_close(credit.gradient_adaptive(b.logp, mask, tau=1e9), mask)


@FEW
@given(BATCHES, st.sampled_from(SCHEDULES))
def test_decay_falls_along_the_valid_tokens(b, schedule):
    for weights, marks in zip(credit.temporal_decay(b.mask.double(), 0.9, schedule), b.mask, strict=True):
        assert (weights[marks].diff() < 0).all()


def test_known_cases():
    mask = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    assert credit.temporal_decay(mask, 0.5, normalize="none").tolist() == [
        [0, 1, 0, 0.5, 0.25],
        [0, 0, 1, 0, 0],
        [0] * 5,
    ]
    ends = credit.temporal_decay(mask.double(), schedule="log_position", normalize="none")
    assert ends[0, [1, 4]].tolist() == [1, pytest.approx(math.exp(-2))], "from 1 to exp(-2), whatever the length"
    assert ends[1, 2] == 1, "of one token, the first is the last"
    logp = torch.tensor([[-1.0, -9.0, -2.0]])
    first, last = 2 / (1 + math.e), 2 * math.e / (1 + math.e)
    found = credit.gradient_adaptive(logp, torch.tensor([[1, 0, 1]]))
    assert found.tolist() == [[pytest.approx(first), 0, pytest.approx(last)]]


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
    with pytest.raises(ValueError) as raised:
        credit.temporal_decay(torch.ones(1, 2), **wrong)
    worded(str(raised.value))


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

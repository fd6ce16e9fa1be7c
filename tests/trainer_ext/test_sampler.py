"""Sampling gives the same log-probabilities and sums as a forward pass over the whole response."""

from __future__ import annotations

import torch

from tests.trainer_ext.conftest import configuration
from trainer_ext.backends.in_process.trainer import InProcess


def test_what_sampling_says_of_a_token_equals_a_forward_pass(cache):
    trainer = InProcess(configuration("task.warm_start.steps=20"), cache)
    samples = trainer._rollout.draw(1).samples
    batch = samples.batch
    with torch.no_grad():
        logits = trainer._reference(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
        ).logits[:, -batch.responses.shape[1] - 1 : -1]
    p = logits.double().softmax(dim=-1)
    sampled = p.gather(-1, batch.responses.unsqueeze(-1))[..., 0]
    expected = {"log_probs": sampled.log(), "entropy": -(p * p.log()).sum(-1), "collision": (p**2).sum(-1)}
    for name, tensor in expected.items():
        torch.testing.assert_close(
            getattr(samples, name).double(), tensor * batch.mask, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )

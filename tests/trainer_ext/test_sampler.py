"""Sampling gives the same log-probabilities and sums as a forward pass over the whole response."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer_ext.conftest import configuration
from trainer_ext.backends.in_process import linear
from trainer_ext.backends.in_process.batch import Request, pad
from trainer_ext.backends.in_process.sampler import sample
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.sampling import draws


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


def test_equal_prompts_are_read_once_and_each_response_follows_its_own(cache):
    """Three prompts, of which two differ in the length alone, as six rows in any order, and with two responses each."""
    trainer = InProcess(configuration("task.warm_start.steps=20"), cache)
    module, pad_id, eos_id = trainer._reference, 0, 1
    texts = [[5, 6, 7], [0, 6, 7], [6, 7]]  # the third is padded with what the second has

    def request(rows: list[list[int]], n: int) -> Request:
        return Request(*pad(rows, pad_id, left=True), n, 6, 1.0, eos_id, pad_id)

    read: list[int] = []
    module.register_forward_pre_hook(lambda *called: read.append(len(called[2]["input_ids"])), with_kwargs=True)
    keys = draws.keys(0, "sample", 1, range(6))
    together = sample([module], request(texts, 2), keys)
    assert read[0] == 3
    order = [4, 0, 3, 1, 5, 2]
    read.clear()
    mixed = sample([module], request([texts[row // 2] for row in order], 1), [keys[row] for row in order])
    assert read[0] == 3
    assert torch.equal(mixed.batch.responses, together.batch.responses[order])
    assert torch.equal(mixed.batch.prompt_mask, together.batch.prompt_mask[order])
    torch.testing.assert_close(mixed.log_probs, together.log_probs[order], rtol=0, atol=1e-6)
    for row, text in enumerate(texts):  # alone
        alone = sample([module], request([text], 2), keys[2 * row : 2 * row + 2])
        torch.testing.assert_close(alone.log_probs, together.log_probs[2 * row : 2 * row + 2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_large_linear_layers_have_the_values_and_gradients_of_pytorch(bias):
    plain, ours = nn.Linear(512, 600, bias=bias), nn.Linear(512, 600, bias=bias)
    ours.load_state_dict(plain.state_dict())
    assert "forward" in vars(linear.use(ours)) and "forward" not in vars(linear.use(nn.Linear(64, 64)))
    found = []
    for layer in (plain, ours):
        inputs = torch.linspace(-1, 1, 3 * 5 * 512).view(3, 5, 512).requires_grad_()
        output = layer(inputs)
        output.square().sum().backward()
        found.append([output, inputs.grad, *(parameter.grad for parameter in layer.parameters())])
    for theirs, own in zip(*found, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_packed_weights_are_those_of_the_moment(bias):
    layer = linear.use(nn.Linear(512, 600, bias=bias))
    inputs = torch.linspace(-1, 1, 3 * 5 * 512).view(3, 5, 512)
    for _ in range(2):
        with torch.no_grad():
            layer.weight.add_(0.5)
            with linear.packed([layer], 64):
                assert layer.packed is not None
                expected = nn.functional.linear(inputs, layer.weight, layer.bias)
                torch.testing.assert_close(layer(inputs), expected, rtol=1e-4, atol=1e-3)
        assert layer.packed is None
    with linear.packed([layer], 1):  # it would not pay
        assert layer.packed is None

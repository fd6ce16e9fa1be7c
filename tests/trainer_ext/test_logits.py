"""Log-probabilities and entropies: those of the engines are verl's, those of sampling are a forward pass's."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import nn
from verl.utils import torch_functional

from tests.trainer_ext.conftest import configuration
from trainer_ext.backends.in_process import linear
from trainer_ext.backends.in_process import logits as ours
from trainer_ext.backends.in_process.batch import Request, pad
from trainer_ext.backends.in_process.sampler import sample
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.sampling import draws

WORDS, TOKENS = 50, 37


def verls() -> ModuleType:
    """verl's functions; those of torch_functional itself may be ours, since another test may have called use()."""
    spec = importlib.util.find_spec("verl.utils.torch_functional")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERLS = verls()


@pytest.fixture(params=[1, 8 * WORDS, 2**24])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A token, some tokens of which the last are fewer, or all of them at a time."""
    monkeypatch.setattr(ours, "BLOCK", request.param)
    yield


each_block = pytest.mark.usefixtures("block")


def drawn(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (5 * torch.randn(TOKENS, WORDS)).to(dtype).requires_grad_(), torch.randint(0, WORDS, (TOKENS,))


@each_block
def test_logits_in_half_precision_give_log_probabilities_in_single_precision() -> None:
    """The gradient has the precision of the logits."""
    logits, labels = drawn(torch.bfloat16)
    exact = logits.detach().double().requires_grad_()
    expected = exact.log_softmax(dim=-1).gather(1, labels[:, None])[:, 0]
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as verl's engines
        values = ours.log_probs(logits, labels)
        entropies = ours.entropy(logits)
    assert values.dtype == entropies.dtype == torch.float32 and logits.dtype == torch.bfloat16
    torch.testing.assert_close(values.double(), expected, atol=1e-5, rtol=0)
    own = torch.distributions.Categorical(logits=exact).entropy()
    torch.testing.assert_close(entropies.double(), own, atol=1e-5, rtol=0)
    values.sum().backward()
    expected.sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(logits.grad.double(), exact.grad, atol=4e-3, rtol=0)


@each_block
@pytest.mark.parametrize(
    ("name", "of", "near"),
    [("log_probs", "logprobs_from_logits", 1e-6), ("entropy", "entropy_from_logits", 1e-5),
     ("collision", "calculate_sum_pi_squared_from_logits", 1e-5)],
)  # fmt: skip
def test_the_numbers_of_tokens_and_their_gradients_are_those_of_verl(name: str, of: str, near: float) -> None:
    """Entropies and collisions of rows of tokens, too; methods with an entropy bonus train with the gradient."""
    found = []
    for function in (getattr(ours, name), getattr(VERLS, of)):
        logits, labels = drawn()
        values = function(logits, labels) if name == "log_probs" else function(logits[:36].view(4, 9, WORDS))
        (values * torch.linspace(-1, 2, values.numel()).view(values.shape)).sum().backward()
        found.append((values.detach(), logits.grad))
    torch.testing.assert_close(*(values for values, _ in found), atol=near, rtol=0)
    torch.testing.assert_close(*(gradient for _, gradient in found), atol=10 * near if near > 1e-6 else near, rtol=0)


@each_block
def test_nothing_of_the_size_of_the_logits_is_kept_for_the_gradient() -> None:
    kept: list[torch.Tensor] = []
    logits, labels = drawn()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        ours.log_probs(logits, labels)
    assert [one.data_ptr() for one in kept if one.numel() >= logits.numel()] == [logits.data_ptr()]


def test_verls_engines_use_these(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("logprobs_from_logits_v2", "entropy_from_logits", "calculate_sum_pi_squared_from_logits")
    for name in names:
        monkeypatch.setattr(torch_functional, name, getattr(VERLS, name))
    ours.use()
    assert [getattr(torch_functional, name) for name in names] == [ours.log_probs, ours.entropy, ours.collision]
    logits, labels = drawn()
    assert "_LogProbs" in str(torch_functional.logprobs_from_logits(logits, labels).grad_fn.next_functions)


@each_block
def test_what_sampling_says_of_a_token_equals_a_forward_pass(cache):
    trainer = InProcess(configuration("task.warm_start.steps=20"), cache)
    samples = trainer._rollout.draw(1).samples
    batch = samples.batch
    read = {name: getattr(batch, name) for name in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        logits = trainer._reference(**read).logits[:, -batch.responses.shape[1] - 1 : -1]
    p = logits.double().softmax(dim=-1)
    sampled = p.gather(-1, batch.responses.unsqueeze(-1))[..., 0]
    expected = {"log_probs": sampled.log(), "entropy": -(p * p.log()).sum(-1), "collision": (p**2).sum(-1)}
    for name, tensor in expected.items():
        assert (getattr(samples, name).double() - tensor * batch.mask).abs().max() <= 1e-5, name


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

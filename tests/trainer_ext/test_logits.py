"""Log-probabilities and entropies of the engines: verl's numbers, whatever the size of a block."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from verl.utils import torch_functional

from trainer_ext.backends.in_process import logits as ours

WORDS, TOKENS = 50, 37


def verls() -> ModuleType:
    """verl's functions; those of torch_functional itself may be ours, since another test may have called use()."""
    spec = importlib.util.find_spec("verl.utils.torch_functional")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERLS = verls()


@pytest.fixture(autouse=True, params=[1, 8 * WORDS, 2**24])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A token, some tokens of which the last are fewer, or all of them at a time."""
    monkeypatch.setattr(ours, "BLOCK", request.param)
    yield


def drawn(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (5 * torch.randn(TOKENS, WORDS)).to(dtype).requires_grad_(), torch.randint(0, WORDS, (TOKENS,))


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


@pytest.mark.parametrize(
    ("name", "of", "near"),
    [
        ("log_probs", "logprobs_from_logits", 1e-6),
        ("entropy", "entropy_from_logits", 1e-5),
        ("collision", "calculate_sum_pi_squared_from_logits", 1e-5),
    ],
)
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

"""Random numbers by key: exact, and the same for a row in every batch."""

from __future__ import annotations

import pytest
import torch

from tests.trainer_ext.conftest import SHORT, configuration
from trainer_ext.backends.in_process.batch import Request
from trainer_ext.backends.in_process.sampler import sample
from trainer_ext.backends.in_process.speculative import constant, sample_speculatively
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.sampling import draws
from trainer_ext.sampling.proposal import FromGeometric, proposal_of


def test_a_key_depends_on_each_of_its_parts_and_fits_a_signed_integer():
    parts = [(0, "sample", 1, 0), (1, "sample", 1, 0), (0, "accept", 1, 0), (0, "sample", 2, 0), (0, "sample", 1, 1)]
    found = [draws.key(*one) for one in parts]
    assert len(set(found)) == len(parts) and all(0 <= key < 2**63 for key in found)
    assert draws.keys(0, "sample", 1, range(2)) == [found[0], found[4]]


def test_the_numbers_of_a_key_are_the_same_in_every_batch_and_only_grow():
    keys = draws.keys(3, "sample", 7, range(40))
    whole = draws.uniforms(keys, 12)
    assert whole.shape == (40, 12) and whole.dtype == torch.float64 and bool(((whole >= 0) & (whole < 1)).all())
    assert torch.equal(draws.uniforms(keys[5:9], 6), whole[5:9, :6])
    assert draws.uniforms([], 6).shape == (0, 6)


def test_an_index_is_chosen_in_proportion_to_its_weight():
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 4.0, 0.0], dtype=torch.float64)
    n = 80_000
    chosen = draws.choose(weights.expand(n, 6), (torch.arange(n, dtype=torch.float64) + 0.5) / n)
    assert torch.bincount(chosen, minlength=6).tolist() == [0, 30_000, 0, 10_000, 40_000, 0]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_an_index_without_weight_is_never_chosen(kind):
    weights = torch.tensor([[0.0, 1e-30, 0.5, 0.0, 0.5, 0.0]], dtype=kind).expand(3, 6)
    below_one = torch.nextafter(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    found = draws.choose(weights, torch.stack([torch.zeros_like(below_one), 0.5 * below_one, below_one]))
    assert bool((weights.gather(1, found[:, None]) > 0).all())
    assert found.tolist()[::2] == [1, 4]


def part(request: Request, first: int, last: int) -> Request:
    """The request of only these prompts."""
    return Request(
        request.prompts[first:last],
        request.prompt_mask[first:last],
        request.n,
        request.length,
        request.temperature,
        request.eos_id,
        request.pad_id,
    )


@pytest.mark.parametrize("way", ["plain", "speculative"])
def test_a_response_does_not_depend_on_the_others_of_its_batch(way, cache):
    trainer = InProcess(configuration(*SHORT, "method=q_star", "method.target_steps=5"), cache)
    rollout = trainer._rollout
    request = rollout._request(rollout._prompts.of_step(1, 12), 4)
    keys = draws.keys(0, "sample", 1, range(48))

    def drawn(request: Request, keys: list[int]) -> torch.Tensor:
        proposal = proposal_of(rollout._method)
        assert isinstance(proposal, FromGeometric)
        if way == "plain":
            return sample(rollout.models, request, keys, proposal).batch.responses
        return sample_speculatively(*rollout.models, request, keys, proposal, constant(2))[0].batch.responses

    whole = drawn(request, keys)
    assert torch.equal(drawn(part(request, 3, 8), keys[12:32]), whole[12:32])
    assert len(set(map(tuple, whole[:4].tolist()))) > 1, "the responses to a prompt differ"

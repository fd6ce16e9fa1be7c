"""Random numbers by key, the geometric family, what a proposal reports, and which responses rejection keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainer_ext.conftest import SHORT, configuration
from trainer_ext import registry
from trainer_ext.backends.in_process import sampler
from trainer_ext.backends.in_process.batch import Request
from trainer_ext.backends.in_process.sampler import sample
from trainer_ext.backends.in_process.speculative import constant, sample_speculatively
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.sampling import alpha, draws
from trainer_ext.sampling.geometric import asymmetry, effective_sample_size, log_geometric_mean
from trainer_ext.sampling.proposal import FromGeometric, FromTarget, greedy_where, proposal_of


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
    assert whole[4].tolist() == np.random.Generator(np.random.Philox(key=keys[4])).random(12).tolist()


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
    return replace(request, prompts=request.prompts[first:last], prompt_mask=request.prompt_mask[first:last])


@pytest.mark.parametrize("way", ["plain", "speculative"])
def test_a_response_does_not_depend_on_the_others_of_its_batch(way, cache):
    rollout = InProcess(configuration(*SHORT, "method=q_star", "method.target_steps=5"), cache)._rollout
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


@pytest.mark.parametrize("few", [0, 4 * 16 * 7, 2**20], ids=["all have room", "room from the third token on", "copies"])
@torch.no_grad()
def test_reading_token_by_token_is_reading_the_whole(few, monkeypatch):
    monkeypatch.setattr(sampler._Room, "_FEW", few)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)).eval()
    prompts, mask = torch.randint(20, (2, 5)), torch.tensor([[0, 0, 1, 1, 1], [1] * 5]).bool()
    stream = sampler.Stream(model, Request(prompts, mask, 2, 6, 1.0, 1, 0))
    ids, attention = (x.repeat_interleave(2, dim=0) for x in (prompts, mask))
    for token in torch.randint(20, (6, 4, 1)):
        stream.read(token)
        ids, attention = torch.cat([ids, token], dim=1), torch.cat([attention, torch.ones(4, 1).bool()], dim=1)
        positions = (attention.long().cumsum(dim=1) - 1).clamp_min(0)
        whole = model(input_ids=ids, attention_mask=attention.long(), position_ids=positions).logits[:, -1]
        torch.testing.assert_close(stream.logits, whole, rtol=0, atol=1e-5)


def test_responses_are_kept_in_proportion_to_the_targets_share():
    """Of four responses of one and two tokens, thousands of times: the best always, the others by their ratio."""
    times, mask = 4000, torch.tensor([[True, True], [True, False], [True, True], [True, False]])
    policy = torch.tensor([[-1.0, -2.0], [-1.0, 9.0], [-0.5, -0.5], [-3.0, 9.0]])
    target = torch.tensor([[-1.0, -1.0], [-2.0, -9.0], [-0.5, -0.5], [-3.0, 9.0]])
    expected = torch.tensor([1.0, -1.0, 0.0, 0.0]).sub(1.0).exp()  # of the log-ratios 1, -1, 0, 0
    many = [x.repeat(times, 1) for x in (policy, target, mask)]
    kept = draws.accepted(*many, 4, draws.keys(0, "accept", 1, range(4 * times))).reshape(times, 4)
    assert kept[:, 0].all()
    assert torch.allclose(kept.float().mean(dim=0), expected, atol=0.04)  # five standard errors


ALIVE = torch.tensor([True, True, False, True])
SOLVER = {"qstar/solver_passes", "qstar/solver_residual"}


def pair(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 9, generator=generator).log_softmax(-1) for _ in range(3)]


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        ({"alpha": "fixed", "alpha_value": 0.3}, set()), ({"alpha": "entropy"}, set()),
        ({"alpha": "kl_symmetry", "solver": "newton"}, SOLVER), ({"alpha": "ess_balance"}, SOLVER),
        ({"alpha": "snr_max"}, {"qstar/solver_passes"}),
    ],
    ids=lambda value: value.get("alpha") if isinstance(value, dict) else None,
)  # fmt: skip
def test_a_solver_is_reported_only_where_one_ran(rule, written):
    proposal = FromGeometric(registry.alpha.choice(rule), temperature=1.0)
    proposal(pair(), ALIVE)
    assert SOLVER & proposal.metrics().keys() == written
    assert {name: len(values) for name, values in proposal.positions.items()} == {"alpha": 3, "ess_ratio": 3}


def test_the_error_of_the_entropy_formula_is_how_far_q_is_from_symmetry():
    theta, target, _ = pair()
    proposal = FromGeometric(registry.alpha.choice({"alpha": "entropy"}), temperature=0.7)
    proposal([theta, target], ALIVE)
    errors = []
    for row in (0, 1, 3):
        p, t = theta[row].double(), target[row].double()
        entropies = [-(x.exp() * x).sum() for x in (p, t)]
        q = (entropies[0] / sum(entropies) * (p - t) + t).log_softmax(-1)
        to_target, to_policy = ((q.exp() * (q - x)).sum() for x in (t, p))
        errors.append(float(abs(to_target - to_policy)))
    assert proposal.metrics()["qstar/entropy_residual"] == pytest.approx(sum(errors) / 3, rel=1e-4)
    assert min(errors) > 1e-3


def test_at_the_symmetric_point_there_is_no_error_and_masked_tokens_do_not_count():
    theta, target, _ = pair()
    theta[:, 0] = target[:, 1] = -torch.inf
    theta, target = theta.log_softmax(-1), target.log_softmax(-1)
    solution = alpha.solve(theta, target)
    error = asymmetry(theta, target, solution.log_q)
    torch.testing.assert_close(error, torch.zeros(4), rtol=0, atol=1e-5)


def test_samples_of_the_target_have_the_effective_sample_size_of_their_weights():
    proposal, (theta, target, _) = FromTarget(), pair()
    assert proposal([theta, target], ALIVE) is target
    proposal([theta, target], torch.zeros(4, dtype=torch.bool))
    rows = zip(theta.exp()[ALIVE].tolist(), target.exp()[ALIVE].tolist(), strict=True)
    expected = [1 / sum(p * p / q for p, q in zip(a, b, strict=True)) for a, b in rows]
    assert proposal.positions["ess_ratio"].tolist() == pytest.approx(expected, rel=1e-5)
    found = proposal.metrics()
    assert found["qstar/ess_theta"] == found["qstar/ess_ratio"] == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert found["qstar/ess_t"] == 1 and found["qstar/ess_ratio_std"] > 0


def test_the_first_of_every_few_rows_is_greedy():
    theta = pair()[0]
    log_q = greedy_where(torch.arange(len(theta)) % 2 == 0)([theta], ALIVE)
    assert torch.equal(log_q[1::2], theta[1::2])
    assert torch.equal(log_q[::2].exp(), torch.nn.functional.one_hot(theta[::2].argmax(-1), 9).float())


MANY = settings(max_examples=30)


def rows(seed, size, count=4):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(2, count, size, generator=generator, dtype=torch.float64) * 2).log_softmax(dim=-1)


PAIRS = st.builds(rows, st.integers(0, 10**6), st.integers(2, 30))


@MANY
@given(PAIRS, st.floats(0, 1))
def test_it_equals_a_loop(pair, a):
    log_q, log_z = log_geometric_mean(*pair, a)
    for i in range(pair.shape[1]):
        weights = [math.exp(p) ** a * math.exp(t) ** (1 - a) for p, t in zip(*pair[:, i].tolist(), strict=True)]
        z = math.fsum(weights)
        assert float(log_z[i]) == pytest.approx(math.log(z), abs=1e-12)
        assert log_q[i].exp().tolist() == pytest.approx([w / z for w in weights], abs=1e-12)


def test_each_row_has_its_own_alpha_and_the_ends_are_whole():
    theta = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]).log()
    target = torch.tensor([[0.0, 0.2, 0.8], [0.0, 0.2, 0.8]]).log()
    log_q, log_z = log_geometric_mean(theta, target, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(log_q, torch.stack([theta[0], target[1]]))
    torch.testing.assert_close(log_z, torch.zeros(2))
    # between them, what either excludes is excluded
    middle, log_z = log_geometric_mean(theta, target, 0.5)
    assert middle.exp()[0].tolist() == pytest.approx([0, 1, 0])
    torch.testing.assert_close(log_z.exp(), torch.full((2,), math.sqrt(0.1)))


@pytest.mark.parametrize("a", [0.0, 0.25, 1.0])
def test_nothing_in_common_is_the_mixture(a):
    theta, target = torch.tensor([0.5, 0.5, 0.0, 0.0]).log(), torch.tensor([0.0, 0.0, 0.1, 0.9]).log()
    log_q, log_z = log_geometric_mean(theta, target, a)
    torch.testing.assert_close(log_q.exp(), a * theta.exp() + (1 - a) * target.exp())
    assert float(log_z) == (-math.inf if 0 < a < 1 else pytest.approx(0, abs=1e-6))


@MANY
@given(PAIRS)
def test_effective_sample_size_is_one_over_the_second_moment(pair):
    p, q = pair
    found = effective_sample_size(p, q)
    for i in range(len(p)):
        square = math.fsum(math.exp(a) ** 2 / math.exp(b) for a, b in zip(p[i].tolist(), q[i].tolist(), strict=True))
        assert float(found[i]) == pytest.approx(1 / square, rel=1e-10)
    assert (found <= 1 + 1e-12).all()
    torch.testing.assert_close(effective_sample_size(p, p), torch.ones(len(p), dtype=torch.float64))


def test_effective_sample_size_where_a_token_is_excluded():
    p, q = torch.tensor([[0.5, 0.5, 0.0]] * 2).log(), torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]]).log()
    assert effective_sample_size(p, q).tolist() == pytest.approx([0.0, 0.5])

"""What a proposal reports: effective sample sizes where samples are weighted, and a solver's work where one ran."""

from __future__ import annotations

import pytest
import torch

from trainer_ext import registry
from trainer_ext.sampling import alpha
from trainer_ext.sampling.geometric import asymmetry
from trainer_ext.sampling.proposal import FromGeometric, FromTarget, greedy_where

ALIVE = torch.tensor([True, True, False, True])
SOLVER = {"qstar/solver_passes", "qstar/solver_residual"}


def pair(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 9, generator=generator).log_softmax(-1) for _ in range(3)]


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        ({"alpha": "fixed", "alpha_value": 0.3}, set()),
        ({"alpha": "entropy"}, set()),
        ({"alpha": "kl_symmetry", "solver": "newton"}, SOLVER),
        ({"alpha": "ess_balance"}, SOLVER),
        ({"alpha": "snr_max"}, {"qstar/solver_passes"}),
    ],
    ids=lambda value: value.get("alpha") if isinstance(value, dict) else None,
)
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
    sizes = [
        1 / sum(p * p / q for p, q in zip(a, b, strict=True))
        for a, b in zip(theta.exp().tolist(), target.exp().tolist(), strict=True)
    ]
    expected = [sizes[row] for row in (0, 1, 3)]
    assert proposal.positions["ess_ratio"].tolist() == pytest.approx(expected, rel=1e-5)
    found = proposal.metrics()
    assert found["qstar/ess_theta"] == found["qstar/ess_ratio"] == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert found["qstar/ess_t"] == 1 and found["qstar/ess_ratio_std"] > 0


def test_the_first_of_every_few_rows_is_greedy():
    theta = pair()[0]
    log_q = greedy_where(torch.arange(len(theta)) % 2 == 0)([theta], ALIVE)
    assert torch.equal(log_q[1::2], theta[1::2])
    assert torch.equal(log_q[::2].exp(), torch.nn.functional.one_hot(theta[::2].argmax(-1), 9).float())

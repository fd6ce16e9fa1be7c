"""The geometric family: log Z is the cumulant function of s, q its members, ESS its definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_ext.sampling.geometric import effective_sample_size, log_geometric_mean

MANY = settings(max_examples=60)


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

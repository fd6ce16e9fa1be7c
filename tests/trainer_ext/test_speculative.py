"""Speculative sampling yields q exactly: every draft, acceptance and residual draw enumerated."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.trainer_ext.conftest import refusal
from trainer_ext.sampling.alpha import solve
from trainer_ext.sampling.speculative import acceptance, residual, verify

WORDS, LENGTH = 5, 3


def policies(seed=0):
    """log p and log q of every prefix of up to LENGTH tokens, as dictionaries; q by KL symmetry with a third policy."""
    generator = torch.Generator().manual_seed(seed)
    p, q = {}, {}
    for length in range(LENGTH + 1):
        for prefix in itertools.product(range(WORDS), repeat=length):
            theta, target = (2 * torch.randn(2, WORDS, generator=generator, dtype=torch.float64)).log_softmax(dim=-1)
            p[prefix], q[prefix] = theta, solve(theta, target).log_q
    return p, q


def exactly(p, q, k, prefix=(), weight=1.0, found=None):
    """Probability of every sequence of LENGTH tokens that the scheme puts out, rounds of k drafted tokens each."""
    found = {} if found is None else found
    if len(prefix) >= LENGTH:
        head = prefix[:LENGTH]
        found[head] = found.get(head, 0.0) + weight
        return found

    def draft(at, drafted, weight):
        # a draft beyond the end would be cut off: it changes nothing that is seen
        if len(at) == LENGTH:
            exactly(p, q, k, at, weight, found)
            return
        log_p, log_q = p[at], q[at]
        if drafted == k:  # all stand, one more from q
            for token in range(WORDS):
                exactly(p, q, k, (*at, token), weight * math.exp(log_q[token]), found)
            return
        kept = (log_q - log_p).exp().clamp_max(1)
        for token in range(WORDS):
            draft((*at, token), drafted + 1, weight * math.exp(log_p[token]) * float(kept[token]))
        rejected = 1 - float(acceptance(log_p, log_q))
        for token, chance in enumerate(residual(log_p, log_q).tolist()):
            exactly(p, q, k, (*at, token), weight * rejected * chance, found)

    draft(prefix, 0, weight)
    return found


@pytest.mark.parametrize("k", range(1, LENGTH + 2))
def test_the_output_is_distributed_as_q(k):
    p, q = policies()
    found = exactly(p, q, k)
    assert math.fsum(found.values()) == pytest.approx(1, abs=1e-12)
    for sequence in itertools.product(range(WORDS), repeat=LENGTH):
        expected = math.exp(math.fsum(float(q[sequence[:i]][token]) for i, token in enumerate(sequence)))
        assert found.get(sequence, 0.0) == pytest.approx(expected, rel=0, abs=1e-12)


def batch(rows, k, seed=0):
    """One row of random p (k, V), q (k + 1, V), repeated, and drafts from p."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (1.5 * torch.randn(2, k + 1, WORDS, generator=generator, dtype=torch.float64)).log_softmax(dim=-1)
    draft = torch.stack([torch.multinomial(x.exp(), rows, True, generator=generator) for x in p[:k]], dim=1)
    uniform = torch.rand(rows, k + 1, 2, generator=generator, dtype=torch.float64)
    return draft, p[:k].expand(rows, k, WORDS), q.expand(rows, k + 1, WORDS), uniform


def test_verify_keeps_and_corrects_with_the_right_probabilities():
    rows, k = 200_000, 3
    draft, log_p, log_q, uniform = batch(rows, k)
    accepted, following = verify(draft, log_p, log_q, uniform)
    stand = acceptance(log_p[0], log_q[0, :k]).tolist()
    chances = [math.prod(stand[:n]) * (1 - stand[n] if n < k else 1) for n in range(k + 1)]
    for n, chance in enumerate(chances):
        ended = accepted == n
        assert abs(float(ended.double().mean()) - chance) < 5 * math.sqrt(chance / rows)
        next_one = residual(log_p[0, n], log_q[0, n]) if n < k else log_q[0, n].exp()
        share = torch.bincount(following[ended], minlength=WORDS) / ended.sum()
        assert (share - next_one).abs().max() < 5 * math.sqrt(0.25 / float(ended.sum()))
        # never what the residual excludes
        assert not share[next_one == 0].any()
    # the first token put out is q's
    first = torch.where(accepted > 0, draft[:, 0], following)
    share = torch.bincount(first, minlength=WORDS) / rows
    assert (share - log_q[0, 0].exp()).abs().max() < 5 * math.sqrt(0.25 / rows)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_equal_policies_keep_all_and_disjoint_ones_none(kind):
    draft, log_p, log_q, uniform = batch(500, 4)
    log_p = log_p.to(kind)
    same = torch.cat([log_p, log_q[:, -1:].to(kind)], dim=1)
    assert (verify(draft, log_p, same, uniform)[0] == 4).all()
    low = torch.full((500, 4, WORDS), -math.inf, dtype=kind)
    low[..., :2] = math.log(0.5)
    high = torch.full((500, 5, WORDS), -math.inf, dtype=kind)
    high[..., 2:] = math.log(1 / 3)
    accepted, following = verify(torch.randint(2, (500, 4)), low, high, uniform)
    assert (accepted == 0).all() and (following >= 2).all()


def test_a_row_is_verified_with_its_own_numbers_alone():
    draft, log_p, log_q, uniform = batch(50, 3)
    whole = verify(draft, log_p, log_q, uniform)
    part = verify(*(x[20:30] for x in (draft, log_p, log_q, uniform)))
    assert all(torch.equal(some, every[20:30]) for some, every in zip(part, whole, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda d, p, q: (d, p, q[:, :-1]),
        lambda d, p, q: (d, p[:, :2], q),
        lambda d, p, q: (d + 5, p, q),
        lambda d, p, q: (d, p.index_fill(0, torch.tensor(4), math.nan), q),
        lambda d, p, q: (d, p, q.index_fill(0, torch.tensor(2), math.nan)),
        lambda d, p, q: (d, p.index_fill(0, torch.tensor(3), -math.inf), q),
    ],
)
def test_what_cannot_be_verified_is_named(change, worded):
    draft, log_p, log_q, uniform = batch(6, 3)
    worded(refusal(lambda: verify(*change(draft, log_p.clone(), log_q.clone()), uniform)))

"""The analysis metrics: known cases and histograms. That they equal their loops is in test_laws.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_ext.batches import batch
from tests.trainer_ext.equations import chosen_of, mean
from trainer_ext import metrics
from trainer_ext.methods.continuing import histogram_interval

QUANTILES = {f"analysis/{name}_{point}" for name in ("entropy", "covariance") for point in ("p50", "p90")}


def test_without_a_token_there_are_no_quantiles_and_the_rest_is_zero():
    b = batch(6)
    found = metrics.analysis_metrics(b.logp, b.advantages, b.rewards, torch.zeros_like(b.mask))
    assert not QUANTILES & set(found) and len(found) == 7
    assert all(value == 0 for value in found.values())


def test_metrics_have_no_gradient_and_are_plain_numbers():
    b = batch(6)
    found = metrics.analysis_metrics(*(x.requires_grad_() for x in (b.logp, b.advantages, b.rewards)), b.mask)
    assert all(type(value) is float for value in found.values())


def test_the_explained_variance_of_a_known_case():
    returns, values = torch.tensor([[1.0, 2.0], [6.0, 9.0]]), torch.tensor([[1.0, 1.0], [4.0, -9.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    # the returns 1, 2, 6 have the variance 14/3, and the errors 0, 1, 2 have 2/3
    found = metrics.explained_variance(returns, values, mask)
    assert found == {"critic/explained_variance": pytest.approx(1 - 2 / 14)}
    assert metrics.explained_variance(torch.ones(2, 2), values, mask) == {}
    small = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    assert metrics.explained_variance(1e-7 * small, values, mask) == {}  # advantage + value, of equal returns
    assert metrics.explained_variance(1 + 1e-3 * small, values, mask)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_histograms_count_every_token_once(kind):
    b = batch(5).to(kind)
    logp, advantages = (torch.where(b.mask, x, math.nan) for x in (b.logp, b.advantages))
    found = metrics.histograms(logp, advantages, b.mask)
    assert set(found) == {"entropy", "covariance"}
    lps, advs = (chosen_of(x, b.valid) for x in (b.floats.logp, b.floats.advantages))
    surprise = [-math.exp(x) * x for x in lps]
    products = [(a - mean(advs)) * (x - mean(lps)) for x, a in zip(lps, advs, strict=True)]
    for name, values in (("entropy", surprise), ("covariance", products)):
        edges, counts = found[name]
        assert len(edges) == len(counts) + 1 == 65
        assert sum(counts) == int(b.mask.sum())
        assert edges == pytest.approx([min(values) + k / 64 * (max(values) - min(values)) for k in range(65)])
        assert sum(counts[:32]) == sum(x < edges[32] for x in values)


def test_ratios_above_3_are_in_the_last_bin_of_their_histogram():
    b, ratios = batch(5), {"ess_ratio": torch.tensor([0.5, 1.0, 200.0])}
    edges, counts = metrics.histograms(b.logp, b.advantages, b.mask, ratios)["ess_ratio"]
    assert (edges[0], edges[-1], counts[-1], sum(counts)) == (0, 3, 1, 3)


@given(st.floats(1e-6, 0.125), st.integers(1, 30_000))
def test_every_run_has_at_least_eight_histograms_or_one_a_step(share, steps):
    every = histogram_interval(share, steps)
    assert len(range(every, steps + 1, every)) >= min(8, steps)
    assert every <= max(1, share * steps)

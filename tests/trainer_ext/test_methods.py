"""Trust regions, advantages and analysis metrics against plain loops in float64."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_ext import metrics
from trainer_ext.methods import advantage, trust_region

SEEDS = st.integers(0, 2**31)


def batch(seed: int, rows: int = 4, length: int = 7):
    """Ragged rows with holes, one of them empty: logp, ratio, advantages, mask; (rows, length), float64."""
    generator = torch.Generator().manual_seed(seed)
    logp = -torch.rand(rows, length, generator=generator, dtype=torch.float64) * 4
    ratio = (torch.randn(rows, length, generator=generator, dtype=torch.float64) * 0.5).exp()
    advantages = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=generator) < 0.7
    mask[0] = False
    return logp, ratio, advantages, mask


def each(function, *tensors):
    rows, length = tensors[0].shape
    return torch.tensor([[function(*(float(x[i, t]) for x in tensors)) for t in range(length)] for i in range(rows)])


def clip_of(r, a, low=0.2, high=0.2, dual=3.0):
    loss = -min(r * a, min(max(r, 1 - low), 1 + high) * a)
    return min(loss, -dual * a) if a < 0 else loss


def asymmetric_of(r, a, positive=0.3, negative=0.1):
    width = positive if a > 0 else negative
    return -min(r * a, min(max(r, 1 - width), 1 + width) * a)


def gaussian_of(r, a, sigma=0.2):
    return -math.exp(-((r - 1) ** 2) / (2 * sigma**2)) * r * a


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_trust_regions_equal_loops_over_tokens(seed):
    _, ratio, advantages, _ = batch(seed)
    for function, reference in (
        (trust_region.clip, clip_of),
        (trust_region.asymmetric_clip, asymmetric_of),
        (trust_region.gaussian, gaussian_of),
    ):
        torch.testing.assert_close(
            function(ratio, advantages), each(reference, ratio, advantages), rtol=1e-6, atol=1e-9, check_dtype=False
        )


def test_a_known_case_of_each_trust_region():
    ratio, advantages = torch.tensor([[1.5, 0.5, 1.5, 5.0]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    assert trust_region.clip(ratio, advantages).tolist() == [[pytest.approx(-1.2), -0.5, 1.5, 3.0]]
    assert trust_region.asymmetric_clip(ratio, advantages).tolist() == [[pytest.approx(-1.3), -0.5, 1.5, 5.0]]
    assert trust_region.gaussian(torch.ones(1, 1), torch.ones(1, 1)).tolist() == [[-1.0]]


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.floats(0.05, 0.5))
def test_asymmetric_clip_with_equal_bounds_is_clip_without_dual_clip(seed, width):
    _, ratio, advantages, _ = batch(seed)
    both = trust_region.asymmetric_clip(ratio, advantages, width, width)
    torch.testing.assert_close(both, trust_region.clip(ratio, advantages, width, width, dual_clip=1e9))


def test_gaussian_becomes_the_plain_surrogate_as_sigma_grows():
    _, ratio, advantages, _ = batch(1)
    torch.testing.assert_close(trust_region.gaussian(ratio, advantages, sigma=1e6), -ratio * advantages)


def test_gaussian_gate_has_no_gradient_unless_asked():
    advantages = torch.ones(1, 1, dtype=torch.float64)
    for differentiable, expected in ((False, -math.exp(-2.0)), (True, -math.exp(-2.0) * (1 - 1.4 * 0.4 / 0.04))):
        ratio = torch.full((1, 1), 1.4, dtype=torch.float64, requires_grad=True)
        trust_region.gaussian(ratio, advantages, sigma=0.2, differentiable=differentiable).sum().backward()
        assert ratio.grad.item() == pytest.approx(expected)


@pytest.mark.parametrize("function", [trust_region.clip, trust_region.asymmetric_clip])
def test_gradients_of_the_clips(function):
    _, ratio, advantages, _ = batch(2)
    assert torch.autograd.gradcheck(lambda r: function(r, advantages), ratio.requires_grad_())


def test_gradient_of_the_differentiable_gaussian():
    _, ratio, advantages, _ = batch(3)
    assert torch.autograd.gradcheck(
        lambda r: trust_region.gaussian(r, advantages, 0.5, differentiable=True), ratio.requires_grad_()
    )


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.permutations(range(9)))
def test_grpo_normalises_within_the_group(seed, order):
    rewards = torch.rand(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 0, 5, 5, 5, 5, 7])
    result = advantage.grpo(rewards, groups)
    for name in (0, 5):
        values = rewards[groups == name].tolist()
        mean, std = statistics.mean(values), statistics.stdev(values)
        expected = [(value - mean) / (std + 1e-6) for value in values]
        assert result[groups == name].tolist() == pytest.approx(expected, abs=1e-9)
    assert result[8] == 0, "a group of one has no advantage"
    index = torch.tensor(order)
    torch.testing.assert_close(advantage.grpo(rewards[index], groups[index]), result[index])


@pytest.mark.parametrize("reward", [1.0, 0.1, 0.7])
def test_a_group_that_agrees_has_no_advantage(reward):
    rewards, group = torch.full((8,), reward), torch.zeros(8, dtype=torch.long)
    assert advantage.grpo(rewards, group).tolist() == [0.0] * 8


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_analysis_metrics_equal_loops_over_tokens(seed):
    logp, _, advantages, mask = batch(seed)
    rewards = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    found = metrics.analysis_metrics(logp, advantages, rewards, mask)
    tokens = [(float(logp[i, t]), float(advantages[i, t])) for i in range(4) for t in range(7) if mask[i, t]]
    if not tokens:
        assert found["analysis/wH_sum"] == 0 and "analysis/entropy_p50" not in found
        return
    lps, advs = [x for x, _ in tokens], [a for _, a in tokens]
    surprise = [-math.exp(x) * x for x in lps]
    products = [(a - statistics.fmean(advs)) * (x - statistics.fmean(lps)) for x, a in tokens]
    weighted = [math.exp(x) * (1 - math.exp(x)) * abs(a) * h for (x, a), h in zip(tokens, surprise, strict=True)]
    totals = [sum(float(rewards[i, t]) for t in range(7) if mask[i, t]) for i in range(4)]
    covariance = statistics.fmean(products)
    expected = {
        "entropy_per_token_mean": statistics.fmean(surprise),
        "covariance_mean": covariance,
        "correlation": covariance / (statistics.pstdev(advs) * statistics.pstdev(lps) + 1e-8),
        "wH_sum": sum(weighted),
        "wH_per_token": sum(weighted) / len(tokens),
        "reward_sum_mean": statistics.fmean(totals),
        "reward_sum_std": statistics.pstdev(totals),
        "entropy_p50": statistics.median(surprise),
        "covariance_p50": statistics.median(products),
    }
    for name, value in expected.items():
        assert found[f"analysis/{name}"] == pytest.approx(value, abs=1e-9), name


def test_padding_and_the_order_of_rows_change_no_metric():
    logp, _, advantages, mask = batch(4)
    plain = metrics.analysis_metrics(logp, advantages, advantages, mask)
    more = torch.full((4, 3), -9.0, dtype=torch.float64)
    wide = [torch.cat([x, more], dim=1) for x in (logp, advantages, advantages)]
    padded = metrics.analysis_metrics(*wide, torch.cat([mask, torch.zeros(4, 3, dtype=torch.bool)], dim=1))
    turned = metrics.analysis_metrics(logp.flip(0), advantages.flip(0), advantages.flip(0), mask.flip(0))
    for other in (padded, turned):
        assert other == {key: pytest.approx(value, abs=1e-12) for key, value in plain.items()}


def test_histograms_count_every_token_once():
    logp, _, advantages, mask = batch(5)
    for edges, counts in metrics.histograms(logp, advantages, mask).values():
        assert len(edges) == len(counts) + 1 == 65
        assert sum(counts) == int(mask.sum())


def test_a_trust_region_of_ones_own_needs_an_entry_and_nothing_else():
    from types import SimpleNamespace

    from trainer_ext.methods import composition

    _, ratio, advantages, mask = batch(6)
    own = composition.TrustRegion(lambda ratio, advantages, power: -(ratio**power) * advantages, ("power",))
    composition.TRUST_REGIONS["own"] = own
    try:
        settings_ = composition.policy_loss_config({"trust_region": "own", "power": 0.5})
        config = SimpleNamespace(policy_loss=SimpleNamespace(**settings_), global_batch_info={})
        loss, found = composition.policy_loss(ratio.log() * 0, ratio.log(), advantages, mask, config=config)
    finally:
        del composition.TRUST_REGIONS["own"]
    assert float(loss) == pytest.approx(float((-(ratio**0.5) * advantages)[mask].mean()))
    assert set(found) == {"actor/ppo_kl"}

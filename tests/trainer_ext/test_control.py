"""The dual controller, step by step against a plain re-computation."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_ext.methods.control import (
    DualController,
    DualSettings,
    DualStatistics,
    statistics,
    token_weight,
)

STEPS = st.lists(
    st.tuples(st.floats(0, 0.1), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.5)),
    min_size=8,
    max_size=40,
)


def fed(controller, steps):
    history = []
    for weighted, kl, gap, mean, std in steps:
        batch = DualStatistics(weighted, kl, gap, mean, std)
        controller.update(batch)
        history.append((controller.coefficients, controller.metrics(batch)))
    return history


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_usage_decay_follows_the_formulas(steps):
    s = DualSettings(warmup_steps=3, rho=0.5, alpha_lambda=0.1, beta_lr=0.1, target_kl=0.05)
    history = fed(DualController(s, total_steps=40), steps)
    beta, lam, usage, top = s.beta_init, 0.0, 1.0, 0.0
    telling: list[float] = []  # steps of the warm-up that had any weighted entropy
    for number, ((weighted, kl, _, _, std), (coefficients, values)) in enumerate(zip(steps, history, strict=True), 1):
        beta = max(0.0, beta + 0.1 * (kl - 0.05))
        if number <= 4:  # the first 10% of 40 steps
            top = max(top, std)
        if len(telling) == 3:
            start = 0.5 * sum(telling) / 3
            spread = min(std / top, 1.0) if top else 1.0
            budget = start * max(0.1, 0.5 * spread + 0.5 * min(usage, 1.0))
            usage = weighted / max(budget, 1e-8)
            lam = max(0.0, lam + 0.1 * (weighted - budget))
            assert values["dual_game/B_token"] == pytest.approx(budget)
            assert values["dual_game/usage_ratio"] == pytest.approx(usage)
        else:
            assert "dual_game/B_token" not in values, "no budget before the warm-up is over"
            telling += [weighted] if weighted > 0 else []
        assert coefficients == (pytest.approx(lam), pytest.approx(beta))


def test_plateau_decay_shrinks_the_budget_once_a_plateau():
    s = DualSettings(warmup_steps=1, rho=1.0, decay="plateau", patience=5)
    controller = DualController(s, total_steps=100)
    rewards = [0.1 * k for k in range(1, 11)] + [1.0] * 60  # rises, then stays
    history = fed(controller, [(0.02, 0.0, 0.0, reward, 0.1) for reward in rewards])
    plateaus = [values["dual_game/plateaus"] for _, values in history]
    assert plateaus[9] == 0, "no plateau while the reward rises"
    assert plateaus[-1] > 3
    assert history[-1][1]["dual_game/B_token"] == pytest.approx(0.02 * max(0.1, 0.9 ** plateaus[-1]))


def test_the_gated_warm_up_waits_for_the_policy_to_move():
    controller = DualController(DualSettings(weight="kl_gated", warmup_steps=2), total_steps=100)
    still, moved = (0.0, 0.0, 1e-4, 0.5, 0.1), (0.01, 0.01, 1e-2, 0.5, 0.1)
    assert not any("dual_game/B_token" in values for _, values in fed(controller, [still] * 5 + [moved] * 2))
    assert fed(controller, [moved])[0][1]["dual_game/B_token"] > 0


def test_relative_lambda_divides_by_the_budget():
    absolute, relative = (
        DualController(DualSettings(warmup_steps=1, rho=1.0, lambda_scale=scale), total_steps=10)
        for scale in ("absolute", "relative")
    )
    steps = [(0.01, 0, 0, 0.5, 0.1), (0.05, 0, 0, 0.5, 0.1)]
    plain, scaled = fed(absolute, steps)[-1], fed(relative, steps)[-1]
    assert scaled[0][0] == pytest.approx(plain[0][0] / plain[1]["dual_game/B_token"])


@settings(max_examples=30, deadline=None)
@given(STEPS, st.integers(1, 7), st.sampled_from(["usage", "plateau"]), st.sampled_from(["entropy", "kl_gated"]))
def test_a_restored_controller_goes_on_with_the_same_numbers(steps, cut, decay, weight):
    s = DualSettings(warmup_steps=3, decay=decay, weight=weight, patience=2)
    whole = DualController(s, 40)
    expected = fed(whole, steps)
    first, second = DualController(s, 40), DualController(s, 40)
    fed(first, steps[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert fed(second, steps[cut:]) == expected[cut:]
    assert second.state_dict() == whole.state_dict()


def test_the_advantage_of_a_token_by_hand():
    controller = DualController(DualSettings(gamma=1.5, beta_init=0.0), total_steps=10)
    controller.load_state_dict({**controller.state_dict(), "lam": 2.0, "beta": 0.5})
    logp, reference = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.5, -0.5]])
    plain = torch.tensor([[1.0, -1.0]])
    p = math.exp(-1)
    u = p * (1 - p)
    expected = [1.0 - 2.0 * u * 0.0 - 0.5 * 0.5, -1.5 - 2.0 * u * 0.0 + 0.5 * 0.5]
    assert controller.advantages(logp, reference, plain)[0].tolist() == pytest.approx(expected)
    gated = token_weight(logp, plain, reference, "kl_gated")
    assert gated[0].tolist() == pytest.approx([u * 0.5, u * 0.5])


def test_statistics_equal_a_loop_over_tokens():
    generator = torch.Generator().manual_seed(0)
    logp, reference = (-torch.rand(3, 5, generator=generator, dtype=torch.float64) * 3 for _ in range(2))
    advantages = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 5, generator=generator) < 0.6
    rewards = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    found = statistics(logp, reference, advantages, mask, rewards, "kl_gated")
    weighted = kl = gap = 0.0
    for i in range(3):
        for t in range(5):
            if mask[i, t]:
                lp, d = float(logp[i, t]), float(reference[i, t] - logp[i, t])
                p = math.exp(lp)
                weighted += p * (1 - p) * abs(float(advantages[i, t])) * abs(d) * -p * lp
                kl += math.exp(d) - d - 1
                gap += abs(d)
    count = int(mask.sum())
    assert found.weighted_entropy == pytest.approx(weighted / count)
    assert found.kl == pytest.approx(kl / count)
    assert found.reference_gap == pytest.approx(gap / count)
    assert (found.reward_mean, found.reward_std) == (pytest.approx(2 / 3), pytest.approx(math.sqrt(2) / 3))

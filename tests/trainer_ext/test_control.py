"""The dual controller, step by step against a plain re-computation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.configuration import configuration
from tests.trainer_ext.batches import batch
from tests.trainer_ext.subjects import dual_settings
from trainer_ext.methods import control
from trainer_ext.methods.continuing import spread_steps
from trainer_ext.methods.control import DualController, DualSettings, DualStatistics, KLController, KLSettings

# weighted entropy, KL, gap to the reference, mean and spread of the reward; a budget near 0 would magnify rounding
WEIGHTED, SPREAD = (st.just(0.0) | st.floats(1e-3, most) for most in (0.1, 0.5))
GAP = st.sampled_from([1e-4, 9.9e-4, 1e-3, 0.5])
STEPS = st.lists(st.tuples(WEIGHTED, st.floats(0, 0.5), GAP, st.floats(-1, 1), SPREAD), min_size=8, max_size=40)

METHODS: dict[str, dict[str, Any]] = {}


def dual(method: str, total: int) -> DualController:
    """The controller of a method file."""
    if method not in METHODS:
        METHODS[method] = configuration(f"method={method}")["method"]
    made = control.controller(METHODS[method], total)
    assert isinstance(made, DualController)
    return made


def fed(controller, steps):
    """Its metrics after each step."""
    history = []
    for step in steps:
        batch = DualStatistics(*step)
        controller.update(batch)
        history.append(controller.metrics(batch))
    return history


def loop(s: DualSettings, total: int, steps) -> list[dict[str, float]]:
    """The controller's metrics after each step, from the formulas of docs/methods.md."""
    lam, beta, usage, top, telling, start = 0.0, s.beta_init, 1.0, 0.0, [], None
    smooth = best = None
    waited = plateaus = 0
    found = []
    for number, (weighted, kl, gap, mean, std) in enumerate(steps, 1):
        beta = max(0.0, beta + s.beta_lr * (kl - s.target_kl))
        if number <= min(100, max(1, math.ceil(total / 10))):
            top = max(top, std)
        smooth = mean if smooth is None else 0.9 * smooth + 0.1 * mean
        if best is None or smooth - best > 0.01 * abs(best):
            best, waited = smooth, 0
        else:
            waited += 1
            if waited == s.patience:
                plateaus, waited = plateaus + 1, 0
        values = {"beta": beta, "KL_per_token": kl, "plateaus": plateaus}
        if start is None:
            moved = s.weight != "kl_gated" or telling or gap >= 1e-3
            # ours: a step whose groups all agree says nothing about what entropy is usual
            telling += [weighted] if moved and weighted > 0 else []
            if len(telling) == s.warmup_steps:
                start = s.rho * sum(telling) / s.warmup_steps
        else:
            if s.decay == "plateau":
                share = 0.9**plateaus
            else:
                spread = min(std / top, 1.0) if top else 1.0
                share = s.usage_mix * spread + (1 - s.usage_mix) * min(usage, 1.0)
            budget = start * max(s.budget_floor, share)
            usage = weighted / max(budget, 1e-8)
            lam = max(
                0.0, lam + s.alpha_lambda * (weighted - budget) / (budget if s.lambda_scale == "relative" else 1.0)
            )
            values |= {"B_token": budget, "usage_ratio": usage}
        found.append({f"dual_game/{key}": value for key, value in {"lambda": lam, **values}.items()})
    return found


@pytest.mark.parametrize("method", ["bnto_minimal", "bnto_plateau", "bnto_kl_gated"])
@pytest.mark.parametrize("scale", ["absolute", "relative"])
@settings(max_examples=30)
@given(STEPS, st.integers(1, 4), st.integers(1, 6), st.floats(0, 1), st.sampled_from([0.1, 0.5]), st.integers(1, 200))
def test_each_method_follows_the_formulas(method, scale, steps, warmup, patience, mix, floor, total):
    controller = dual(method, total)
    changes = {"warmup_steps": warmup, "patience": patience, "usage_mix": mix, "budget_floor": floor}
    changes |= {"lambda_scale": scale, "alpha_lambda": 0.1, "beta_lr": 0.1}
    controller.settings = replace(controller.settings, **changes)
    history = fed(controller, steps)
    for values, expected in zip(history, loop(controller.settings, total, steps), strict=True):
        assert values == {key: pytest.approx(value) for key, value in expected.items()}
    assert controller.coefficients == (values["dual_game/lambda"], values["dual_game/beta"])


def test_the_shipped_methods_have_the_numbers_of_the_design():
    for method, weight, decay in (
        ("bnto_minimal", "entropy", "usage"),
        ("bnto_plateau", "entropy", "plateau"),
        ("bnto_kl_gated", "kl_gated", "usage"),
    ):
        assert dual(method, 10).settings == DualSettings(
            gamma=1.2, rho=0.45, alpha_lambda=0.02, beta_lr=0.01, beta_init=1e-3, target_kl=0.05, warmup_steps=10,
            weight=weight, decay=decay, budget_floor=0.1, usage_mix=0.5, patience=50, lambda_scale="absolute",
        )  # fmt: skip
    assert control.controller(configuration("method=c0_grpo")["method"], 10) is None


def test_a_misspelt_setting_is_refused_with_the_one_that_is_meant():
    with pytest.raises(ValueError, match=r"method\.rho, .*: missing; .*gamma, rho.* Fix: write rho in place of roh"):
        control.controller({"control": "dual", "gamma": 1.5, "roh": 0.9}, 100)


@settings(max_examples=30)
@given(STEPS, st.integers(1, 7), st.sampled_from(["usage", "plateau"]), st.sampled_from(["entropy", "kl_gated"]))
def test_a_restored_controller_goes_on_with_the_same_numbers(steps, cut, decay, weight):
    s = dual_settings(warmup_steps=3, decay=decay, weight=weight, patience=2)
    whole = DualController(s, 40)
    expected = fed(whole, steps)
    first, second = DualController(s, 40), DualController(s, 40)
    fed(first, steps[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert fed(second, steps[cut:]) == expected[cut:]
    assert second.state_dict() == whole.state_dict()


@settings(max_examples=30)
@given(STEPS, st.integers(1, 60), st.integers(1, 400), st.sampled_from(["usage", "plateau"]))
def test_a_shorter_run_is_the_beginning_of_a_longer_one_where_the_plan_says_so(steps, short, more, decay):
    """Whatever the rewards: its whole state, which a continued run takes over."""
    s = dual_settings(warmup_steps=3, decay=decay)
    short, long = DualController(s, short), DualController(s, short + more)
    found, expected = fed(short, steps), fed(long, steps)
    if decay == "plateau" or spread_steps(short.total_steps) == spread_steps(long.total_steps):
        assert found == expected and short.state_dict() == long.state_dict()


def test_without_drift_there_is_no_kl_and_a_small_one_keeps_its_digits():
    logp = -torch.rand(3, 5, dtype=torch.float64)
    mask = torch.ones(3, 5)
    assert control.kl_per_token(logp, logp, mask) == 0
    assert control.kl_per_token(logp, logp + 1e-7, mask) == pytest.approx(0.5e-14, rel=1e-5, abs=0)
    assert control.kl_per_token(logp, logp - 1, mask) == pytest.approx(math.exp(-1))


def test_nothing_of_the_control_has_a_gradient():
    b = batch(3)
    logp, reference = b.logp.requires_grad_(), b.reference.requires_grad_()
    for weight in ("entropy", "kl_gated"):
        controller = DualController(dual_settings(weight=weight), total_steps=10)
        assert not controller.advantages(logp, reference, b.advantages.requires_grad_()).requires_grad
        assert not control.token_weight(logp, b.advantages, reference, weight).requires_grad


@settings(max_examples=30)
@given(STEPS, st.integers(1, 7))
def test_the_price_on_kl_alone_is_that_of_the_dual_controller(steps, cut):
    s = dual_settings(beta_lr=0.5, target_kl=0.1)
    first, second = (KLController(KLSettings(s.beta_lr, s.beta_init, s.target_kl)) for _ in range(2))
    found = fed(first, steps[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found += fed(second, steps[cut:])
    keys = ("dual_game/beta", "dual_game/KL_per_token")
    assert found == [{key: values[key] for key in keys} for values in fed(DualController(s, 40), steps)]


def test_the_price_on_kl_changes_the_advantage_by_its_gradient_alone():
    alone = KLController(KLSettings(0.01, 0.5, 0.05))
    logp, reference = torch.tensor([[-1.0, -1.0]], requires_grad=True), torch.tensor([[-1.5, -0.5]])
    found = alone.advantages(logp, reference, torch.tensor([[1.0, -1.0]]))
    assert found[0].tolist() == pytest.approx([1.0 - 0.5 * 0.5, -1.0 + 0.5 * 0.5]) and not found.requires_grad


def test_grpo_at_the_same_kl_has_the_values_of_the_dual_control():
    alone, dual_section = (configuration(f"method={name}")["method"] for name in ("c0_kl", "bnto_minimal"))
    assert isinstance(control.controller(alone, 10), KLController)
    keys = ("beta_lr", "beta_init", "target_kl")
    assert {key: alone[key] for key in keys} == {key: dual_section[key] for key in keys}
    plain = configuration("method=c0_grpo")["method"]
    assert {key for key in alone if alone[key] != plain.get(key)} == {"name", "control", *keys}

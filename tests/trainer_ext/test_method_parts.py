"""The parts of a method: credit, ratios, weights, trust regions, pairs. That they equal loops is in test_laws.py."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu

from tests.configuration import CONF, configuration
from tests.trainer_ext.batches import Batch, batch
from tests.trainer_ext.conftest import refusal
from tests.trainer_ext.equations import ema
from tests.trainer_ext.subjects import EXACT, PROXY
from trainer_ext import registry
from trainer_ext.methods import advantage, credit, losses, ratio, trust_region
from trainer_ext.methods.update import importance_weights, weight_metrics


def test_the_norm_is_that_of_the_gradient_in_the_logits():
    b = batch(3, density=1)
    logits = b.logits.clamp_min(-30).requires_grad_()
    scores = logits.log_softmax(-1)
    chosen = (scores - b.logp[..., None]).abs().argmin(-1, keepdim=True)
    logp = scores.gather(-1, chosen)[..., 0]
    logp.sum().backward()
    collision = (scores.detach().exp() ** 2).sum(-1)
    torch.testing.assert_close(credit.score_norm(logp, collision), logits.grad.norm(dim=-1))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rest", [1e-2, 1e-4, 1e-6, 1e-9, 1e-14])
def test_the_norm_of_a_nearly_certain_token_keeps_its_size(rest, kind):
    # p = 1 - rest; the others share the rest in halves: ((1 - p)^2 + 2 (rest / 2)^2) ^ 1/2
    logp = torch.tensor([[math.log1p(-rest)]], dtype=kind)
    collision = torch.tensor([[(1 - rest) ** 2 + rest**2 / 2]], dtype=kind)
    found = float(credit.score_norm(logp, collision))
    assert rest * (1 - 1e-6) <= found <= rest * math.sqrt(2) * (1 + 1e-6)
    if kind is torch.float64 and rest > 1e-5:
        assert found == pytest.approx(rest * math.sqrt(1.5), rel=1e-5)


def test_weights_have_no_gradient():
    b = batch(4)
    logp, logits = b.logp.requires_grad_(), b.logits.clamp_min(-30).requires_grad_()
    collision = (logits.softmax(-1) ** 2).sum(-1)
    for weights in (
        credit.gradient_adaptive(logp, b.mask),
        credit.gradient_adaptive(logp, b.mask, logits=logits),
        credit.score_norm(logp, collision),
        credit.softmax_weights(logp.abs(), b.mask, 1.0),
        credit.temporal_decay(b.mask.double().requires_grad_()),
        *(credit.credit_weights(chosen, logp, b.mask, collision)[0] for chosen in ({}, PROXY, EXACT)),
    ):
        assert not weights.requires_grad


@pytest.mark.parametrize("wrong", [{"gamma": 0.0}, {"gamma": 1.1}, {"schedule": "linear"}, {"normalize": "max"}])
def test_a_decay_that_makes_no_weights_is_refused(wrong, worded):
    worded(refusal(lambda: credit.temporal_decay(torch.ones(1, 2), **wrong)))


ONES = torch.ones(1, 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *((lambda tau=tau: credit.gradient_adaptive(-ONES, ONES, tau=tau), f"tau={tau}") for tau in (0.0, math.inf)),
        *((lambda beta=beta: ratio.ema(ONES, ONES, beta), f"beta={beta}") for beta in (0.0, -0.1, 1.1, math.nan)),
        (lambda: losses.pair_losses(*[torch.zeros(3, 2)] * 3, beta=0.1), "3 responses do not form pairs"),
    ],
)
def test_what_gives_no_weight_of_a_token_and_no_pair_is_refused(call, said):
    assert said in refusal(call)


def test_a_batch_without_a_token_has_no_credit_to_report():
    b = batch(6)
    empty = replace(b, mask=torch.zeros_like(b.mask))
    weights, metrics = credit.credit_weights(
        {**PROXY, "temporal_decay": {"gamma": 0.9, "schedule": "exponential", "normalize": "mean"}},
        empty.logp,
        empty.mask,
        empty.logp,
    )
    assert not weights.any() and metrics == {}


DIFFERENTIABLE = {
    "ema": lambda x, mask: ratio.ema(x, mask, 0.7),
    "sequence_arithmetic": ratio.sequence_arithmetic,
    "sequence_geometric": lambda x, mask: ratio.sequence_geometric(x.log(), mask),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("beta", [0.9, 0.5, 0.05, 0.001])
def test_smoothing_is_exact_along_a_long_response(beta, kind):
    generator = torch.Generator().manual_seed(0)
    w = (torch.randn(1, 16384, generator=generator, dtype=torch.float64) * 0.5).exp().to(kind)
    mask = torch.rand(1, 16384, generator=generator) < 0.9
    expected = torch.tensor([ema(w[0].tolist(), mask[0].tolist(), beta)], dtype=torch.float64)
    assert (ratio.ema(w, mask, beta).double() - expected).abs().max() < (1e-5 if kind is torch.float32 else 1e-12)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize(("kind", "digits"), [(torch.bfloat16, 8), (torch.float16, 11)], ids=str)
def test_half_precision_rounds_once_however_long_the_response(name, kind, digits):
    generator = torch.Generator().manual_seed(0)
    w = (torch.randn(3, 3000, generator=generator) * 0.5).exp().to(kind)
    mask = torch.rand(3, 3000, generator=generator) < 0.9
    if name == "sequence_geometric":
        found, expected = (ratio.sequence_geometric(x, mask) for x in (w.log(), w.log().double()))
    else:
        found, expected = (DIFFERENTIABLE[name](x, mask) for x in (w, w.double()))
    assert found.dtype == kind
    assert (found.double() / expected - 1).abs().max() <= 1.01 * 2.0**-digits


@pytest.mark.parametrize(
    "function",
    [
        *(lambda r, b, own=own: own(r, b.mask) for own in DIFFERENTIABLE.values()),
        *(lambda r, b, own=own: own(r, b.advantages) for own in (trust_region.clip, trust_region.asymmetric_clip)),
        lambda r, b: trust_region.clip(r, b.advantages, 0.2, 0.28, 10.0),
        lambda r, b: trust_region.gaussian(r, b.advantages, 0.5, differentiable=True),
    ],
)
def test_gradients_are_those_of_the_values(function):
    b = batch(2)
    assert torch.autograd.gradcheck(lambda r: function(r, b), b.ratio.requires_grad_())


OF_VERL = yaml.safe_load((CONF / "method" / "advantage" / "verl.yaml").read_text())
ESTIMATORS = OF_VERL["allowed"]["adv_estimator"]["enum"]


def masked(b: Batch) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """What verl's own functions take: rewards that are 0 where nothing counts, a mask of numbers, names of groups."""
    return b.rewards * b.mask, b.mask.double(), np.array([f"prompt {int(g)}" for g in b.group], dtype=object)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reward", [1.0, 0.1, 0.7])
def test_a_group_that_agrees_has_no_advantage(reward, kind):
    rewards, group = torch.full((8,), reward, dtype=kind), torch.zeros(8, dtype=torch.long)
    found = advantage.grpo(rewards, group)
    assert found.dtype == kind
    # the mean of equal numbers is exact where double precision is wider than they are
    assert found.tolist() == pytest.approx([0.0] * 8, abs=1e-9 if kind is torch.float64 else 0)


def gae_config(gamma: float, lam: float) -> AlgoConfig:
    method = configuration("method=c0_ppo", f"method.gae_gamma={gamma}", f"method.gae_lambda={lam}")["method"]
    return registry.advantage.choice(method)()


def test_the_method_files_choose_the_estimators():
    plain, centred = (
        registry.advantage.choice(configuration(f"method={name}")["method"])() for name in ("c0_grpo", "dr_grpo")
    )
    assert plain.adv_estimator == centred.adv_estimator == "rlsweep_grpo"
    assert plain.norm_adv_by_std_in_grpo and not centred.norm_adv_by_std_in_grpo
    config = gae_config(0.9, 0.8)
    assert (config.adv_estimator, config.gamma, config.lam) == ("gae", 0.9, 0.8)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("normalize", [True, False])
def test_an_estimator_of_verls_gives_what_it_gives_in_verl(name, normalize):
    b = batch(7, rows=6, length=5)
    b = type(b)(**{**vars(b), "group": torch.tensor([3, 1, 3, 1, 1, 3])})
    rewards, counts, index = masked(b)
    config = AlgoConfig(adv_estimator=name, gamma=1.0, lam=1.0, norm_adv_by_std_in_grpo=normalize)
    expected = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=rewards.clone(), response_mask=counts, index=index, config=config
    )
    rubbish = torch.where(b.mask, b.rewards, math.nan)
    found = advantage.advantages(config, rubbish, b.mask, b.group)
    for ours, verls in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, verls * counts)
    assert found[0].abs().max() > 0.01
    assert registry.advantage.choice({"advantage": "verl", "adv_estimator": name})().adv_estimator == name


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [1.0, 0.8])
def test_gae_is_verls(gamma, lam):
    b = batch(8)
    rewards, counts, _ = masked(b)
    config = gae_config(gamma, lam)
    expected = core_algos.compute_gae_advantage_return(rewards, b.logp * counts, counts, gamma, lam)
    rubbish, values = (torch.where(b.mask, x, math.nan) for x in (b.rewards, b.logp))
    found = advantage.advantages(config, rubbish, b.mask, b.group, values)
    for ours, verls in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, verls * counts)


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 4), st.floats(0.01, 2))
def test_dpo_equals_a_loop_over_pairs(seed, pairs, beta):
    generator = torch.Generator().manual_seed(seed)
    logp, ref = (-torch.rand(2 * pairs, 5, generator=generator, dtype=torch.float64) * 4 for _ in range(2))
    mask = torch.rand(2 * pairs, 5, generator=generator) < 0.7
    loss, margin = losses.pair_losses(logp.masked_fill(~mask, math.nan), ref, mask, beta)
    for pair in range(pairs):
        gain = [sum(float(logp[i, t] - ref[i, t]) for t in range(5) if mask[i, t]) for i in (2 * pair, 2 * pair + 1)]
        expected = beta * (gain[0] - gain[1])
        assert float(margin[pair]) == pytest.approx(expected, abs=1e-9)
        assert float(loss[pair]) == pytest.approx(math.log(1 + math.exp(-expected)), abs=1e-9)


def test_best_and_worst_of_each_group():
    rows, differ = losses.best_and_worst(torch.tensor([0.0, 1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 0.2, 0.0]), 3)
    assert rows.tolist() == [1, 0, 3, 3, 6, 8]
    assert differ.tolist() == [True, False, True]


def test_the_mean_of_the_ranks_losses_is_that_of_the_whole_mini_batch():
    """FSDP takes the mean of the ranks' gradients, whatever pairs a rank has."""
    generator = torch.Generator().manual_seed(0)
    logp, ref = (-torch.rand(8, 5, generator=generator) for _ in range(2))
    weight = torch.tensor([0.0, 0.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0])
    mask = torch.ones(8, 5, dtype=torch.bool)

    def loss(rows: slice, ranks: int) -> float:
        columns = {"ref_log_prob": ref[rows], "response_mask": mask[rows], "pair_weight": weight[rows]}
        data = TensorDict(columns, batch_size=len(ref[rows]))
        tu.assign_non_tensor(data, dp_size=ranks, global_batch_size=8)
        return float(losses.dpo(0.5, {"log_probs": logp[rows]}, data)[0])

    assert (loss(slice(0, 4), 2) + loss(slice(4, 8), 2)) / 2 == pytest.approx(loss(slice(0, 8), 1), rel=1e-6)


@pytest.mark.parametrize(("apart", "ranked"), [(1e-6, 0.0), (-1e-6, 0.0), (0.1, 1.0)])
def test_a_pair_is_not_ranked_while_policy_and_reference_differ_by_rounding(apart: float, ranked: float) -> None:
    """The sign of rounding depends on the order of sums, and so on the backend."""
    ref = -torch.ones(2, 3)
    data = TensorDict({"ref_log_prob": ref, "response_mask": ref < 0, "pair_weight": torch.ones(2)}, batch_size=2)
    logp = ref + torch.tensor([[apart], [0.0]])
    assert losses.dpo(0.5, {"log_probs": logp}, data)[1]["actor/dpo_accuracy"].aggregate() == ranked


def test_the_gaussian_gate_has_no_gradient_unless_asked():
    b = batch(1)
    ratio = b.ratio.requires_grad_()
    trust_region.gaussian(ratio, b.advantages, sigma=0.5).sum().backward()
    gate = trust_region.trust_weight(ratio.detach(), 0.5)
    torch.testing.assert_close(ratio.grad, -gate * b.advantages)
    one = torch.full((1, 1), 1.4, dtype=torch.float64, requires_grad=True)
    trust_region.gaussian(one, torch.ones_like(one), sigma=0.2, differentiable=True).sum().backward()
    # r (r - 1) > sigma^2: of other sign
    assert one.grad.item() == pytest.approx(-math.exp(-2.0) * (1 - 1.4 * 0.4 / 0.04))


LOOPS = {
    "none": lambda w, mean: 1.0,
    "raw": lambda w, mean: w,
    "clipped": lambda w, mean: min(max(w, 0.5), 2.0),
    "normalized": lambda w, mean: w / mean,
}


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from(sorted(LOOPS)))
def test_weights_equal_a_loop_over_tokens(seed, treatment):
    generator = torch.Generator().manual_seed(seed)
    logp, behaviour = (-torch.rand(3, 5, generator=generator, dtype=torch.float64) * 4 for _ in range(2))
    mask = torch.rand(3, 5, generator=generator) < 0.7
    mask[0, 0] = True
    bounds = {"weight_low": 0.5, "weight_high": 2.0} if treatment == "clipped" else {}
    weigh = registry.weights.choice({"weights": treatment, **bounds})
    found = importance_weights(logp, behaviour.masked_fill(~mask, math.nan), mask, weigh)
    raw = [math.exp(float(logp[i, t] - behaviour[i, t])) for i in range(3) for t in range(5) if mask[i, t]]
    mean = sum(raw) / len(raw)
    expected = [LOOPS[treatment](w, mean) for w in raw]
    assert found[mask].tolist() == pytest.approx(expected)
    assert not found[~mask].any()
    center = sum(expected) / len(expected)
    spread = math.sqrt(sum((w - center) ** 2 for w in expected) / len(expected))
    numbers = {"max": max(expected), "min": min(expected), "mean": center, "cv": spread / center}
    expected = {f"qstar/weight_{name}": value for name, value in numbers.items()}
    assert weight_metrics(found, mask) == pytest.approx(expected, abs=1e-9)

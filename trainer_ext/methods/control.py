"""BNTO: prices on weighted entropy (lambda) and on KL to the reference (beta), set by dual ascent; or on KL alone.

Pure: no files, no globals, no clock. Notation: p = exp(logp) of the sampled token, A advantages, M mask, all (B, T).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer_ext import registry
from trainer_ext.methods import continuing

#: Mean |logp - logp_ref| from which the KL-gated weight's warm-up counts: before any drift the weight is 0.
GATE_START = 1e-3
#: Share by which the smoothed reward must exceed its best to end a wait for a plateau.
RISE = 0.01
#: Weight of the newest reward in the smoothed one.
SMOOTHING = 0.1


@registry.control("dual")
@dataclass(frozen=True)
class DualSettings:
    """Hyper-parameters; conf/method/control/dual.yaml documents each and holds its default."""

    gamma: float
    rho: float
    alpha_lambda: float
    beta_lr: float
    beta_init: float
    target_kl: float
    warmup_steps: int
    weight: str
    decay: str
    budget_floor: float
    usage_mix: float
    patience: int
    lambda_scale: str


@registry.control("kl")
@dataclass(frozen=True)
class KLSettings:
    """Hyper-parameters of the price on KL, as in DualSettings; conf/method/control/kl.yaml holds their defaults."""

    beta_lr: float
    beta_init: float
    target_kl: float


registry.control.declare("none")


@dataclass(frozen=True)
class DualStatistics:
    """Statistics of a step's whole batch, at the policy that scored it."""

    weighted_entropy: float  # wH_per_token, nats, with the weight of the method
    kl: float  # KL_per_token, nats
    reference_gap: float  # mean |logp - logp_ref|, nats
    reward_mean: float
    reward_std: float


def token_weight(logp: Tensor, advantages: Tensor, logp_ref: Tensor, weight: str) -> Tensor:
    """u = p (1 - p) |A|, times |logp - logp_ref| for weight="kl_gated"; (B, T), no gradient."""
    p = logp.detach().exp()
    u = p * (1 - p) * advantages.detach().abs()
    return u * (logp - logp_ref).detach().abs() if weight == "kl_gated" else u


def kl_per_token(logp: Tensor, logp_ref: Tensor, mask: Tensor, weights: Tensor | None = None) -> float:
    """mean_M(exp(d) - d - 1), d = logp_ref - logp, in nats: never negative, of low variance (Schulman 2020, "k3").

    weights: (B, T), the importance weights of tokens that another policy drew.
    """
    valid = mask.bool()
    d = (logp_ref - logp).detach()[valid].double()
    terms = torch.expm1(d) - d
    return float((terms if weights is None else terms * weights[valid]).sum() / max(d.numel(), 1))


def statistics(
    logp: Tensor, logp_ref: Tensor, advantages: Tensor, mask: Tensor, rewards: Tensor, weight: str
) -> DualStatistics:
    """The batch's statistics. logp, logp_ref, advantages (raw), mask: (B, T); rewards: (B,) one for each response."""
    valid = mask.bool()
    lp, ref, adv = (x.detach()[valid].double() for x in (logp, logp_ref, advantages))
    count = max(lp.numel(), 1)
    u = token_weight(lp, adv, ref, weight)
    return DualStatistics(
        weighted_entropy=float((u * -lp.exp() * lp).sum() / count),
        kl=kl_per_token(logp, logp_ref, mask),
        reference_gap=float((ref - lp).abs().sum() / count),
        reward_mean=float(rewards.double().mean()),
        reward_std=float(rewards.double().std(unbiased=False)),
    )


@dataclass
class KLController:
    """beta over a run, as a DualController sets it: GRPO that spends the same KL, for a comparison at the same KL."""

    settings: KLSettings
    weight = "entropy"  # of the statistics' weighted entropy, on which this controller has no price

    def __post_init__(self) -> None:
        self._beta = self.settings.beta_init

    def update(self, batch: DualStatistics) -> None:
        """Dual ascent from the whole batch's KL; the price counts for this same step."""
        self._beta = max(0.0, self._beta + self.settings.beta_lr * (batch.kl - self.settings.target_kl))

    def advantages(self, logp: Tensor, logp_ref: Tensor, advantages: Tensor) -> Tensor:
        """A' = A - beta (logp - logp_ref), the score-function form of the gradient of KL; all (B, T), no gradient."""
        return (advantages - self._beta * (logp - logp_ref)).detach()

    def metrics(self, batch: DualStatistics) -> dict[str, float]:
        """The step's dual_game/* values of KL."""
        return {"dual_game/beta": self._beta, "dual_game/KL_per_token": batch.kl}

    def state_dict(self) -> dict[str, Any]:
        """The state of the controller as JSON values."""
        return {"beta": self._beta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._beta = state["beta"]


@dataclass
class _State:
    lam: float = 0.0
    beta: float = 0.0
    step: int = 0
    warm_steps: int = 0  # steps averaged into the warm-up so far
    warm_sum: float = 0.0
    budget_start: float | None = None  # B_0
    budget: float | None = None  # B_token
    usage: float = 1.0  # of the step before
    reward_std_max: float = 0.0
    reward_smooth: float | None = None  # E
    reward_best: float | None = None
    waited: int = 0
    plateaus: int = 0  # m


@dataclass
class DualController:
    """lambda and beta over a run: `update` once a step, then `coefficients` and `advantages` for that step's update."""

    settings: DualSettings
    total_steps: int
    _state: _State = field(default_factory=_State)

    def __post_init__(self) -> None:
        self._state.beta = self.settings.beta_init
        self.weight = self.settings.weight  # of the weighted entropy that the method's statistics have

    @property
    def coefficients(self) -> tuple[float, float]:
        """(lambda, beta) of the current step, the same on every rank."""
        return self._state.lam, self._state.beta

    def update(self, batch: DualStatistics) -> None:
        """Dual ascent from the whole batch's statistics; they become this same step's coefficients."""
        state, s = self._state, self.settings
        state.step += 1
        state.beta = max(0.0, state.beta + s.beta_lr * (batch.kl - s.target_kl))
        if s.decay == "usage" and state.step <= continuing.spread_steps(self.total_steps):
            state.reward_std_max = max(state.reward_std_max, batch.reward_std)
        self._watch_reward(batch.reward_mean)
        if state.budget_start is None:
            self._warm_up(batch)
            return
        state.budget = state.budget_start * max(s.budget_floor, self._decay(batch))
        state.usage = batch.weighted_entropy / max(state.budget, 1e-8)
        gap = batch.weighted_entropy - state.budget
        if s.lambda_scale == "relative":
            gap /= max(state.budget, 1e-8)
        state.lam = max(0.0, state.lam + s.alpha_lambda * gap)

    def _warm_up(self, batch: DualStatistics) -> None:
        state, s = self._state, self.settings
        if s.weight == "kl_gated" and state.warm_steps == 0 and batch.reference_gap < GATE_START:
            return
        if batch.weighted_entropy <= 0:  # all groups agree: no information, and a budget of 0 could never be met
            return
        state.warm_steps += 1
        state.warm_sum += batch.weighted_entropy
        if state.warm_steps == s.warmup_steps:
            state.budget_start = s.rho * state.warm_sum / s.warmup_steps

    def _decay(self, batch: DualStatistics) -> float:
        state, s = self._state, self.settings
        if s.decay == "plateau":
            return float(0.9**state.plateaus)
        spread = batch.reward_std / state.reward_std_max if state.reward_std_max > 0 else 1.0
        return s.usage_mix * min(spread, 1.0) + (1 - s.usage_mix) * min(state.usage, 1.0)

    def _watch_reward(self, reward: float) -> None:
        """E <- 0.9 E + 0.1 mean(R); `patience` steps in which E has not risen by 1% of its best are a plateau."""
        state = self._state
        old = reward if state.reward_smooth is None else state.reward_smooth
        state.reward_smooth = (1 - SMOOTHING) * old + SMOOTHING * reward
        best = state.reward_best
        if best is None or state.reward_smooth > best + RISE * abs(best):
            state.reward_best, state.waited = state.reward_smooth, 0
            return
        state.waited += 1
        if state.waited >= self.settings.patience:
            state.plateaus, state.waited = state.plateaus + 1, 0

    def advantages(self, logp: Tensor, logp_ref: Tensor, advantages: Tensor) -> Tensor:
        """A' = A+ - lambda u (-logp - 1) - beta (logp - logp_ref), with A+ = max(A, 0) + gamma min(A, 0).

        All (B, T), logp at the policy that scored the batch; no gradient. The second term is the score-function form of
        the gradient of weighted entropy, the third of KL to the reference.
        """
        lam, beta = self.coefficients
        amplified = advantages.clamp_min(0) + self.settings.gamma * advantages.clamp_max(0)
        u = token_weight(logp, advantages, logp_ref, self.settings.weight)
        return (amplified - lam * u * (-logp - 1) - beta * (logp - logp_ref)).detach()

    def metrics(self, batch: DualStatistics) -> dict[str, float]:
        """The step's dual_game/* values; those of the budget only once there is one."""
        state = self._state
        values = {
            "dual_game/lambda": state.lam,
            "dual_game/beta": state.beta,
            "dual_game/KL_per_token": batch.kl,
            "dual_game/plateaus": float(state.plateaus),
        }
        if state.budget is not None:
            values |= {"dual_game/B_token": state.budget, "dual_game/usage_ratio": state.usage}
        return values

    def state_dict(self) -> dict[str, Any]:
        return asdict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = _State(**state)


Controller = DualController | KLController


def controller(method: Mapping[str, Any], total_steps: int) -> Controller | None:
    """The method's controller; None without control. ValueError: a hyper-parameter is missing."""
    settings = registry.control.choice(method)()
    if isinstance(settings, KLSettings):
        return KLController(settings)
    return None if settings is None else DualController(settings, total_steps)

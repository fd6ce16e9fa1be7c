"""The distributions to draw the next token from: policy, target, or a point of the geometric family between them.

A proposal takes the log-probabilities (rows, V) of the policy and, for all but the first, of the target, and which rows
(rows,) still grow; it gives those to draw from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer_ext import registry
from trainer_ext.sampling import alpha
from trainer_ext.sampling.geometric import asymmetry, effective_sample_size

Proposal = Callable[[Sequence[Tensor], Tensor], Tensor]

for _name in ("policy", "target", "rejection"):
    registry.sampler.declare(_name)
registry.sampler.declare("geometric", "temperature")


def from_policy(log_probs: Sequence[Tensor], alive: Tensor) -> Tensor:
    """pi_theta."""
    return log_probs[0]


def from_target(log_probs: Sequence[Tensor], alive: Tensor) -> Tensor:
    """pi_t."""
    return log_probs[1]


@dataclass
class FromTarget:
    """pi_t for samples that are weighted by pi_theta / pi_t; remembers the effective sample sizes.

    seen: a row of one number for each position that counts.
    """

    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, log_probs: Sequence[Tensor], alive: Tensor) -> Tensor:
        theta, target = log_probs[0], log_probs[1]
        self.seen.append(effective_sample_size(theta, target).double()[alive, None])
        return target

    @property
    def positions(self) -> dict[str, Tensor]:
        """Values of every position seen, (positions,), by the name of their histogram."""
        return {"ess_ratio": torch.cat(self.seen)[:, 0]}

    def metrics(self) -> dict[str, float]:
        """The qstar/* values of the positions seen (docs/metrics.md); a sample of pi_t counts whole for pi_t."""
        theta = torch.cat(self.seen)[:, 0]
        return _ess_metrics(theta, torch.ones_like(theta))


def _ess_metrics(theta: Tensor, target: Tensor) -> dict[str, float]:
    ratio = theta / target
    return {
        "qstar/ess_theta": float(theta.mean()),
        "qstar/ess_t": float(target.mean()),
        "qstar/ess_ratio": float(ratio.mean()),
        "qstar/ess_ratio_std": float(ratio.std(unbiased=False)),
    }


def greedy_where(which: Tensor) -> Proposal:
    """pi_theta, but in the rows where `which` (rows,) is true the most likely token."""

    def propose(log_probs: Sequence[Tensor], alive: Tensor) -> Tensor:
        log_p = log_probs[0]
        best = torch.full_like(log_p, -torch.inf).scatter(-1, log_p.argmax(dim=-1, keepdim=True), 0.0)
        return torch.where(which[:, None], best, log_p)

    return propose


@dataclass
class FromGeometric:
    """q_alpha, tempered, with alpha solved at each position; remembers what it saw of the positions that count.

    rule: a choice of the part `alpha`; its reference is the third of the log-probabilities. temperature: draws are from
    q^(1/T), normalised. Newton starts at the token before's alpha. seen: a row for each position that counts.
    """

    rule: registry.Choice
    temperature: float
    seen: list[Tensor] = field(default_factory=list)
    _last: Tensor | None = None

    def __call__(self, log_probs: Sequence[Tensor], alive: Tensor) -> Tensor:
        theta, target = log_probs[0], log_probs[1]
        initial = self._last if self._last is not None and self._last.shape == theta.shape[:1] else None
        reference = log_probs[2] if self.rule.name == "snr_max" else None
        solution = alpha.solve(
            theta, target, self.rule.name, initial=initial, log_p_ref=reference, **self.rule.settings
        )
        self._last = solution.alpha
        log_q, residual = solution.log_q, solution.residual
        if self.rule.name == "entropy":  # a formula for the alpha that kl_symmetry solves for
            residual = asymmetry(theta, target, log_q)
        if self.temperature != 1.0:
            log_q = (log_q / self.temperature).log_softmax(dim=-1)
        ess = [effective_sample_size(p, log_q) for p in (theta, target)]
        columns = [solution.alpha, *ess, solution.passes, residual.abs(), solution.degenerate]
        self.seen.append(torch.stack([column.double() for column in columns], dim=1)[alive])
        return log_q

    def keep(self, which: Tensor) -> None:
        """Count only the positions `which`, (positions,) bool, of the last call."""
        self.seen[-1] = self.seen[-1][which]

    @property
    def positions(self) -> dict[str, Tensor]:
        """Values of every position seen, (positions,), by the name of their histogram."""
        alphas, theta, target, *_ = torch.cat(self.seen).unbind(dim=1)
        return {"alpha": alphas, "ess_ratio": theta / target}

    def metrics(self) -> dict[str, float]:
        """The qstar/* values of the positions seen (docs/metrics.md); those of a solver only where one ran."""
        alphas, theta, target, passes, residual, degenerate = torch.cat(self.seen).unbind(dim=1)
        values = {
            "qstar/alpha_mean": float(alphas.mean()),
            "qstar/alpha_std": float(alphas.std(unbiased=False)),
            "qstar/alpha_median": float(alphas.median()),
            **_ess_metrics(theta, target),
            "qstar/degenerate_fraction": float(degenerate.mean()),
        }
        if self.rule.name in alpha.SEARCHED:
            values["qstar/solver_passes"] = float(passes.mean())
        if self.rule.name in alpha.SOLVED:
            values["qstar/solver_residual"] = float(residual.mean())
        if self.rule.name == "entropy":
            values["qstar/entropy_residual"] = float(residual.mean())
        return values


#: Those of samples that are weighted: they remember what they saw.
Weighted = FromGeometric | FromTarget


def proposal_of(method: Mapping[str, Any]) -> Proposal:
    """What the method's sampler draws tokens from; it takes the log-probabilities of `registry.models_read`."""
    sampler = registry.sampler.choice(method)
    if sampler.name == "geometric":
        return FromGeometric(registry.alpha.choice(method), **sampler.settings)
    if sampler.name != "target":
        return from_policy
    # likelihood has no importance weights, and so no effective sample size
    return from_target if method.get("loss") == "sft" else FromTarget()

"""The health of a run: what ends it as diverged, and what is counted as a warning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

GRAD_NORM_FACTOR = 100.0  # times its running median
GRAD_NORM_WINDOW = 50  # steps
ENTROPY_SHARE = 0.01  # collapse: entropy below this share of its first value
FLAT_REWARD_STEPS = 20  # steps in a row with a reward std of 0
DIVERSITY_SHARE = 0.5  # collapse: below this share of its first value, while the reward is not above its first
LOSS_WINDOW = 20  # steps
WEIGHT_FACTOR = 100.0  # limit of the largest weight over the mean weight
#: Losses that training makes smaller on the data that it sees; a policy gradient's is no such loss.
LOSSES = ("actor/sft_loss", "actor/dpo_loss")
#: Above these.
LIMITS = {"actor/kl_init": 10.0, "eval/empty": 0.1, "eval/repetition": 0.5, "rollout/probs_diff_max": 0.1}
#: Beyond these bounds q* is almost one of its two policies, or fits one of them far better than the other.
RANGES = {"qstar/alpha_mean": (0.1, 0.9), "qstar/ess_ratio": (0.5, 2.0)}


@dataclass
class Health:
    """Checks each step's metrics. Its fields are JSON values, which travel with the checkpoint."""

    warnings: dict[str, int] = field(default_factory=dict)
    grad_norms: list[float] = field(default_factory=list)  # the newest GRAD_NORM_WINDOW
    first_entropy: float | None = None
    flat: int = 0  # steps in a row with a reward std of 0
    first_losses: list[float] = field(default_factory=list)  # the first LOSS_WINDOW
    losses: list[float] = field(default_factory=list)  # the newest LOSS_WINDOW after these
    first_evaluation: dict[str, float] | None = None

    def check(self, metrics: Mapping[str, float]) -> None:
        """Count this step's warnings. A metric that is missing is not judged."""
        if (norm := metrics.get("actor/grad_norm")) is not None:
            if len(self.grad_norms) >= 5 and norm > GRAD_NORM_FACTOR * median(self.grad_norms):
                self._warn("grad_norm above 100 times its running median")
            self.grad_norms = [*self.grad_norms, norm][-GRAD_NORM_WINDOW:]
        if (entropy := metrics.get("analysis/entropy_full_mean")) is not None:
            if self.first_entropy is None:
                self.first_entropy = entropy
            elif entropy < ENTROPY_SHARE * self.first_entropy:
                self._warn("entropy below 1% of its first value")
        if (reward_std := metrics.get("analysis/reward_sum_std")) is not None:
            self.flat = self.flat + 1 if reward_std == 0 else 0
            if self.flat >= FLAT_REWARD_STEPS:
                self._warn("reward std 0 for 20 steps")
        self._check_loss(metrics)
        self._check_diversity(metrics)
        weight = metrics.get("qstar/weight_max")
        if weight is not None and weight > WEIGHT_FACTOR * metrics["qstar/weight_mean"]:
            self._warn("largest weight above 100 times the mean weight")
        for key, limit in LIMITS.items():
            if metrics.get(key, 0.0) > limit:
                self._warn(f"{key} above {limit:g}")
        for key, (low, high) in RANGES.items():
            if key in metrics and not low <= metrics[key] <= high:
                self._warn(f"{key.removeprefix('qstar/')} outside [{low:g}, {high:g}]")

    def _check_loss(self, metrics: Mapping[str, float]) -> None:
        """Whether the newest losses are below the first ones, on average."""
        for loss in (metrics[key] for key in LOSSES if key in metrics):
            if len(self.first_losses) < LOSS_WINDOW:
                self.first_losses = [*self.first_losses, loss]
                continue
            self.losses = [*self.losses, loss][-LOSS_WINDOW:]
            if len(self.losses) == LOSS_WINDOW and fmean(self.losses) >= fmean(self.first_losses):
                self._warn("loss over 20 steps not below that of the first 20")

    def _check_diversity(self, metrics: Mapping[str, float]) -> None:
        """Whether the responses to a prompt have become alike, although the reward is not better."""
        if "eval/distinct_2" not in metrics or "eval/reward_mean" not in metrics:
            return
        now = {key: metrics[key] for key in ("eval/distinct_2", "eval/reward_mean")}
        if self.first_evaluation is None:
            self.first_evaluation = now
        elif (
            now["eval/distinct_2"] < DIVERSITY_SHARE * self.first_evaluation["eval/distinct_2"]
            and now["eval/reward_mean"] <= self.first_evaluation["eval/reward_mean"]
        ):
            self._warn("eval/distinct_2 below half of its first value, without a better reward")

    def _warn(self, what: str) -> None:
        self.warnings[what] = self.warnings.get(what, 0) + 1


def not_finite(metrics: Mapping[str, float]) -> str | None:
    """The first key whose value is NaN or infinite, or None."""
    return next((key for key, value in metrics.items() if not math.isfinite(value)), None)

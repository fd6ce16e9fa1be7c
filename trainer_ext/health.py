"""Watching a run: what ends it as diverged, and what is counted as a warning and never fatal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

GRAD_NORM_FACTOR = 100.0  # times its running median
GRAD_NORM_WINDOW = 50  # steps
ENTROPY_SHARE = 0.01  # of its first value
FLAT_REWARD_STEPS = 20  # steps in a row with a reward std of 0
#: Of q*: beyond these ends q is all but one of the two policies, or serves one of them far better.
RANGES = {"qstar/alpha_mean": (0.1, 0.9), "qstar/ess_ratio": (0.5, 2.0)}


class Health:
    """Checks each step's metrics; its state travels with the checkpoint."""

    def __init__(self) -> None:
        self.warnings: dict[str, int] = {}
        self._grad_norms: deque[float] = deque(maxlen=GRAD_NORM_WINDOW)
        self._first_entropy: float | None = None
        self._flat = 0

    def not_finite(self, metrics: Mapping[str, float]) -> str | None:
        """The first key whose value is NaN or infinite, or None."""
        return next((key for key, value in metrics.items() if not math.isfinite(value)), None)

    def check(self, metrics: Mapping[str, float]) -> None:
        """Count this step's warnings. A metric that is missing is not judged."""
        norm = metrics.get("actor/grad_norm")
        if norm is not None:
            if len(self._grad_norms) >= 5 and norm > GRAD_NORM_FACTOR * median(self._grad_norms):
                self._warn("grad_norm above 100 times its running median")
            self._grad_norms.append(norm)
        entropy = metrics.get("analysis/entropy_full_mean")
        if entropy is not None:
            if self._first_entropy is None:
                self._first_entropy = entropy
            elif entropy < ENTROPY_SHARE * self._first_entropy:
                self._warn("entropy below 1% of its first value")
        spread = metrics.get("analysis/reward_sum_std")
        if spread is not None:
            self._flat = self._flat + 1 if spread == 0 else 0
            if self._flat >= FLAT_REWARD_STEPS:
                self._warn("reward std 0 for 20 steps")

        for key, (low, high) in RANGES.items():
            if key in metrics and not low <= metrics[key] <= high:
                self._warn(f"{key.removeprefix('qstar/')} outside [{low:g}, {high:g}]")

    def _warn(self, what: str) -> None:
        self.warnings[what] = self.warnings.get(what, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "warnings": self.warnings,
            "grad_norms": list(self._grad_norms),
            "first_entropy": self._first_entropy,
            "flat": self._flat,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.warnings = dict(state["warnings"])
        self._grad_norms = deque(state["grad_norms"], maxlen=GRAD_NORM_WINDOW)
        self._first_entropy, self._flat = state["first_entropy"], state["flat"]

"""A threshold that a metric is to reach."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from analysis.spec.validation import Metric, Section, refusal


class Target(Section):
    """One item of analysis.time_to: `at` in the metric's unit, or `baseline_final` times the baseline's final value.

    metric: the primary one where the item names none.
    """

    metric: Metric = ""
    at: float | None = Field(None, description="a number")
    baseline_final: float | None = Field(None, description="a number")

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.at is None) == (self.baseline_final is None):
            raise refusal("must have either `at` or `baseline_final`", "write {at: 0.8} or {baseline_final: 0.9}")
        return self

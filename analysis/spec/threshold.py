"""A threshold that a metric is to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.spec import validation


@dataclass(frozen=True)
class Target:
    """`at` in the metric's unit, or `baseline_final` times the baseline's final value."""

    metric: str
    at: float | None
    baseline_final: float | None


def target(file: str, place: int, given: Any, metric: str) -> Target:
    """Read one item of analysis.time_to."""
    key = f"time_to[{place}]"
    if not isinstance(given, Mapping):
        raise validation.refuse(file, key, given, "a mapping such as {baseline_final: 0.9}")
    validation.only(file, f"analysis.{key}", given, ("metric", "at", "baseline_final"))
    return threshold(file, key, given, validation.metric(file, f"{key}.metric", given.get("metric", metric)))


def threshold(file: str, key: str, given: Mapping[str, Any], metric: str) -> Target:
    """The threshold of a mapping that has either `at` or `baseline_final`."""
    if ("at" in given) == ("baseline_final" in given):
        raise validation.refuse(file, key, dict(given), "either at or baseline_final")
    name = "at" if "at" in given else "baseline_final"
    value = validation.number(file, f"{key}.{name}", given[name])
    return Target(metric, value, None) if name == "at" else Target(metric, None, value)

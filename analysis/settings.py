"""What an experiment asks of its analysis: the `analysis` section of plan.json, checked, with its defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.metrics import describe
from analysis.read import BadPlan

REWARD = "analysis/reward_sum_mean"


@dataclass(frozen=True)
class Target:
    """A threshold for time-to: `at` in the metric's unit, or `baseline_final` times the baseline's final value."""

    metric: str
    at: float | None
    baseline_final: float | None


@dataclass(frozen=True)
class Settings:
    """How the runs are summarised and compared. direction is that of the primary metric.

    metrics are compared and drawn; figures are only drawn, the metrics of one item in one figure.
    """

    metric: str
    summary: str
    direction: str
    metrics: tuple[str, ...]
    figures: tuple[tuple[str, ...], ...]
    time_to: tuple[Target, ...]
    alpha: float
    test: str
    family: str
    incomplete: str
    window: int
    seed: int

    def direction_of(self, metric: str) -> str | None:
        """Which way is better for a metric; None where nobody said."""
        return self.direction if metric == self.metric else describe(metric).direction

    @property
    def drawn(self) -> tuple[tuple[str, ...], ...]:
        """The metrics of each figure of curves: those of `metrics`, in the place of one that begins combined figures
        these, then the other `figures`; none twice."""
        wanted: list[tuple[str, ...]] = []
        for metric in self.metrics:
            wanted += [keys for keys in self.figures if len(keys) > 1 and keys[0] == metric] or [(metric,)]
        return tuple(dict.fromkeys([*wanted, *self.figures]))


_CHOICES = {
    "test": ("paired_t", "signflip", "wilcoxon"),
    "family": ("max_t", "holm", "bh"),
    "incomplete": ("exclude", "carry"),
}
_KEYS = ("primary", "metrics", "figures", "time_to", "alpha", "window", "seed", *_CHOICES)
_METRIC = re.compile(r"[a-z_]+/[A-Za-z0-9_@]+")  # as in conf/config.yaml
_MOST = 6  # metrics of one figure: beyond that no line style is told from another


def settings(section: Mapping[str, Any] | None, file: str = "plan.json") -> Settings:
    """Read the section. Raises BadPlan with file, key, value and what is allowed."""
    given = dict(section or {})
    _only(file, "analysis", given, _KEYS)
    primary = given.get("primary") or {}
    if not isinstance(primary, Mapping):
        raise _refuse(file, "primary", primary, "a mapping of metric, summary, direction")
    _only(file, "analysis.primary", primary, ("metric", "summary", "direction"))
    metric = str(primary.get("metric", REWARD))
    summary = _choice(file, "primary.summary", primary.get("summary", "final"), ("final", "auc", "best", "time_to"))
    default = describe(metric).direction or "higher"
    direction = _choice(file, "primary.direction", primary.get("direction") or default, ("higher", "lower"))
    chosen = {key: _choice(file, key, given.get(key, allowed[0]), allowed) for key, allowed in _CHOICES.items()}
    alpha = given.get("alpha", 0.05)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < 1:
        raise _refuse(file, "alpha", alpha, "a number between 0 and 1")
    metrics = given.get("metrics", [])
    if not isinstance(metrics, (list, tuple)):
        raise _refuse(file, "metrics", metrics, "a list of metric names")
    figures = given.get("figures", [])
    if not isinstance(figures, (list, tuple)):
        raise _refuse(file, "figures", figures, "a list such as [[dual_game/lambda, dual_game/beta], actor/lr]")
    targets = given.get("time_to", [])
    if not isinstance(targets, (list, tuple)):
        raise _refuse(file, "time_to", targets, "a list such as [{baseline_final: 0.9}]")
    time_to = tuple(_target(file, place, target, metric) for place, target in enumerate(targets))
    if summary == "time_to" and not any(target.metric == metric for target in time_to):
        raise _refuse(file, "time_to", targets, f"a threshold for {metric}, because it is the primary summary")
    return Settings(
        metric=metric,
        summary=summary,
        direction=direction,
        metrics=tuple(dict.fromkeys([metric, *map(str, metrics)])),
        figures=tuple(_figure(file, place, item) for place, item in enumerate(figures)),
        time_to=time_to,
        alpha=float(alpha),
        test=chosen["test"],
        family=chosen["family"],
        incomplete=chosen["incomplete"],
        window=_whole(file, "window", given.get("window", 20), 1),
        seed=_whole(file, "seed", given.get("seed", 0), 0),
    )


def _figure(file: str, place: int, item: Any) -> tuple[str, ...]:
    keys = (item,) if isinstance(item, str) else tuple(item) if isinstance(item, (list, tuple)) else ()
    several = isinstance(item, str) or 2 <= len(keys) <= _MOST
    if not several or not all(isinstance(key, str) and _METRIC.fullmatch(key) for key in keys):
        needed = f"a metric's key such as actor/grad_norm, or a list of 2 to {_MOST} of them,"
        raise _refuse(file, f"figures[{place}]", item, needed)
    if len(set(keys)) < len(keys):
        raise _refuse(file, f"figures[{place}]", item, "a list that names each metric once")
    return keys


def _target(file: str, place: int, target: Any, metric: str) -> Target:
    key = f"time_to[{place}]"
    if not isinstance(target, Mapping):
        raise _refuse(file, key, target, "a mapping such as {baseline_final: 0.9}")
    _only(file, f"analysis.{key}", target, ("metric", "at", "baseline_final"))
    if ("at" in target) == ("baseline_final" in target):
        raise _refuse(file, key, dict(target), "either at or baseline_final")
    name = "at" if "at" in target else "baseline_final"
    value = target[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refuse(file, f"{key}.{name}", value, "a number")
    at, share = (float(value), None) if name == "at" else (None, float(value))
    return Target(str(target.get("metric", metric)), at, share)


def _only(file: str, place: str, given: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in given:
        if key not in allowed:
            raise BadPlan(f"{file}: {place} has the key {key!r}; allowed are {', '.join(allowed)}")


def _choice(file: str, key: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise _refuse(file, key, value, " or ".join(map(repr, allowed)))
    return str(value)


def _whole(file: str, key: str, value: Any, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise _refuse(file, key, value, f"a whole number from {lowest}")
    return value


def _refuse(file: str, key: str, value: Any, needed: str) -> BadPlan:
    return BadPlan(f"{file}: analysis.{key} = {value!r}: {needed} is needed")

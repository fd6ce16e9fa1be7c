"""What an experiment asks of its analysis: the `analysis` section of plan.json, checked, with its defaults."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.spec import derived_metric, validation
from analysis.spec.figure_spec import Picture, curves, picture
from analysis.spec.hypothesis import Hypothesis, hypotheses
from analysis.spec.metric_catalog import describe
from analysis.spec.threshold import Target, target

REWARD = "analysis/reward_sum_mean"


@dataclass(frozen=True)
class Settings:
    """How the runs are summarised and compared. direction is that of the primary metric.

    metrics are compared and drawn; figures are only drawn. axis: what curves and times are over.
    """

    metric: str
    summary: str
    direction: str
    metrics: tuple[str, ...]
    figures: tuple[Picture, ...]
    time_to: tuple[Target, ...]
    hypotheses: tuple[Hypothesis, ...]
    alpha: float
    test: str
    family: str
    incomplete: str
    axis: str
    window: int
    seed: int

    def direction_of(self, metric: str) -> str | None:
        """Which way is better for a metric; None where nobody said."""
        return self.direction if metric == self.metric else describe(metric).direction

    @property
    def drawn(self) -> tuple[Picture, ...]:
        """Each figure but that of the differences: the curves of `metrics`, in the place of one that begins combined
        figures these, then the other `figures`; none twice."""
        wanted: list[Picture] = []
        for metric in self.metrics:
            combined = [f for f in self.figures if f.kind == "curves" and len(f.metrics) > 1 and f.metrics[0] == metric]
            wanted += combined or [curves(metric)]
        return tuple(dict.fromkeys([*wanted, *self.figures]))

    def keys(self) -> tuple[str, ...]:
        """The recorded metrics that anything here is about, each once."""
        drawn = [metric for figure in self.figures if figure.kind != "histogram" for metric in figure.metrics]
        claimed = [metric for hypothesis in self.hypotheses for metric in hypothesis.metrics]
        timed = [target.metric for target in self.time_to]
        every = [self.metric, *self.metrics, *drawn, *timed, *claimed]
        return tuple(dict.fromkeys(key for metric in every for key in derived_metric.keys(metric)))


_CHOICES = {
    "test": ("paired_t", "signflip", "wilcoxon"),
    "family": ("max_t", "holm", "bh"),
    "incomplete": ("exclude", "carry"),
    "axis": ("steps", "samples"),
}
_KEYS = ("primary", "metrics", "figures", "time_to", "hypotheses", "alpha", "window", "seed", *_CHOICES)


def settings(
    section: Mapping[str, Any] | None,
    file: str = "plan.json",
    groups: Collection[str] | None = None,
    baseline: str | None = None,
) -> Settings:
    """Read the section; groups and baseline are the plan's, None where they are not known.

    Raises BadPlan with file, key, value and what is allowed.
    """
    given = dict(section or {})
    validation.only(file, "analysis", given, _KEYS)
    primary = given.get("primary") or {}
    if not isinstance(primary, Mapping):
        raise validation.refuse(file, "primary", primary, "a mapping of metric, summary, direction")
    validation.only(file, "analysis.primary", primary, ("metric", "summary", "direction"))
    metric = str(primary.get("metric", REWARD))
    allowed = ("final", "auc", "best", "time_to")
    summary = validation.choice(file, "primary.summary", primary.get("summary", "final"), allowed)
    default = describe(metric).direction or "higher"
    direction = validation.choice(file, "primary.direction", primary.get("direction") or default, ("higher", "lower"))
    chosen = {key: validation.choice(file, key, given.get(key, words[0]), words) for key, words in _CHOICES.items()}
    alpha = given.get("alpha", 0.05)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < 1:
        raise validation.refuse(file, "alpha", alpha, "a number between 0 and 1")
    metrics = given.get("metrics", [])
    if not isinstance(metrics, (list, tuple)):
        raise validation.refuse(file, "metrics", metrics, "a list of metric names")
    figures = given.get("figures", [])
    if not isinstance(figures, (list, tuple)):
        raise validation.refuse(
            file, "figures", figures, "a list such as [[dual_game/lambda, dual_game/beta], actor/lr]"
        )
    targets = given.get("time_to", [])
    if not isinstance(targets, (list, tuple)):
        raise validation.refuse(file, "time_to", targets, "a list such as [{baseline_final: 0.9}]")
    time_to = tuple(target(file, place, item, metric) for place, item in enumerate(targets))
    if summary == "time_to" and not any(item.metric == metric for item in time_to):
        raise validation.refuse(
            file, "time_to", targets, f"a threshold for {metric}, because it is the primary summary"
        )
    return Settings(
        metric=metric,
        summary=summary,
        direction=direction,
        metrics=tuple(dict.fromkeys([metric, *map(str, metrics)])),
        figures=tuple(picture(file, place, item) for place, item in enumerate(figures)),
        time_to=time_to,
        hypotheses=hypotheses(file, given.get("hypotheses"), groups, baseline),
        alpha=float(alpha),
        test=chosen["test"],
        family=chosen["family"],
        incomplete=chosen["incomplete"],
        axis=chosen["axis"],
        window=validation.whole(file, "window", given.get("window", 20), 1),
        seed=validation.whole(file, "seed", given.get("seed", 0), 0),
    )

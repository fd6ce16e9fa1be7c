"""A claim that an experiment declares before its runs exist, in a form that numbers can decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.spec import derived_metric, validation
from analysis.spec.figure_spec import ways_of
from analysis.spec.threshold import Target, threshold
from analysis.spec.validation import BadValue

WORST = ("lowest_relative", "largest_change")  # summaries that speak of every step, and so of every seed
_SUMMARIES = ("final", "auc", "best", "mean", "early", "early_variance", "slope", "trend", *WORST)
_TIMES = {"ratio": ("time_to", "efficiency"), "greater": ("time_to",), "less": ("time_to",)}
_ONE = ("group", "metric", "summary")
_THRESHOLD = ("at", "baseline_final")
_KEYS = {
    "range": (*_ONE, "low", "high"),
    "ratio": (*_ONE, "against", "at_least", "at_most", *_THRESHOLD),
    "extreme": (*_ONE, "which"),
    "between": (*_ONE, "groups"),
    "pareto": ("group", "metrics", "summary", "directions"),
    "greater": (*_ONE, "against", "margin", *_THRESHOLD),
    "less": (*_ONE, "against", "margin", *_THRESHOLD),
    "spread": (*_ONE, "against", "at_most"),
    "variation": (*_ONE, "at_most"),
    "count": ("of", "at_least"),
    "all": ("of",),
    "any": ("of",),
}
_JOINT = ("count", "all", "any")
_WAYS = {"least": ("lower",), "greatest": ("higher",)}


@dataclass(frozen=True)
class Hypothesis:
    """A claim about the summary of a metric (of two: pareto) of a group.

    kind      range: within [low, high]; ratio: over that of `against` within [low, high]; greater, less: than that of
              `against`; between: within the range that the two groups `against` span; extreme: of all groups the
              best by `ways`; pareto: no group is better by both `ways`; spread: its seeds scatter at most `high` times
              as much as those of `against`; variation: standard deviation over mean of its seeds is at most `high`;
              count, all, any: at least `low` of the hypotheses `of` hold
    metrics   recorded ones, or derived from them (derived_metric.py)
    summary   final, auc, best, mean, early, early_variance, slope, trend, lowest_relative, largest_change, time_to, or
              efficiency: the time of `against` over that of the group
    target    the threshold of time_to and efficiency
    margin    of greater and less: a difference surely smaller than this is none that matters, in the summary's unit
    """

    id: str
    claim: str
    kind: str
    group: str = ""
    metrics: tuple[str, ...] = ()
    summary: str = "final"
    against: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    ways: tuple[str, ...] = ()
    target: Target | None = None
    of: tuple[str, ...] = ()
    margin: float | None = None


def hypotheses(
    file: str, given: Any, groups: Collection[str] | None = None, baseline: str | None = None
) -> tuple[Hypothesis, ...]:
    """Read analysis.hypotheses, id -> claim, kind and what the kind needs; groups: those of the plan, None: not known.

    Raises BadValue with file, key, value and what is needed.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise validation.refuse(file, "hypotheses", given, "a mapping such as {H1: {claim: ..., kind: range, ...}}")
    found = tuple(_Section(file, str(name), item, groups, baseline).read() for name, item in given.items())
    known = [hypothesis.id for hypothesis in found if hypothesis.kind not in _JOINT]
    for hypothesis in found:
        for name in hypothesis.of:
            if name not in known:
                rule = f"those that it may name are {', '.join(known) or 'none'}"
                raise BadValue(file, f"analysis.hypotheses.{hypothesis.id}.of", repr(name), rule)
        if hypothesis.kind in _JOINT:
            known.append(hypothesis.id)  # after its own: none can name itself, or be named in a circle
    return found


class _Section:
    """One hypothesis as written in the plan."""

    def __init__(self, file: str, name: str, given: Any, groups: Collection[str] | None, baseline: str | None) -> None:
        self._file, self._name, self._key = file, name, f"hypotheses.{name}"
        if not isinstance(given, Mapping):
            raise validation.refuse(file, self._key, given, "a mapping of claim, kind and what the kind needs")
        self._given, self._groups, self._baseline = given, groups, baseline

    def read(self) -> Hypothesis:
        kind = validation.choice(self._file, f"{self._key}.kind", self._given.get("kind"), tuple(_KEYS))
        validation.only(self._file, f"analysis.{self._key}", self._given, ("claim", "kind", *_KEYS[kind]))
        claim = self._needed("claim", kind)
        if not isinstance(claim, str) or not claim.strip():
            raise validation.refuse(self._file, f"{self._key}.claim", claim, "the claim in words")
        if kind in _JOINT:
            return self._joint(claim, kind)
        group = self._group("group", self._needed("group", kind))
        if kind == "pareto":
            metrics = validation.distinct(
                self._file, f"{self._key}.metrics", self._needed("metrics", kind), "a list of two metrics' keys", 2, 2
            )
            for metric in metrics:
                self._metric("metrics", metric)
        else:
            metrics = (self._metric("metric", self._needed("metric", kind)),)
        allowed = (*_SUMMARIES, *_TIMES.get(kind, ()))
        summary = validation.choice(self._file, f"{self._key}.summary", self._given.get("summary", "final"), allowed)
        low, high = self._bounds(kind)
        against = self._against(kind)
        if group in against:
            raise validation.refuse(
                self._file, f"{self._key}.group", group, "a group other than those it is held against"
            )
        return Hypothesis(
            self._name, claim, kind, group, metrics, summary, against, low, high, self._ways(kind, metrics),
            self._target(summary, metrics[0]), margin=self._margin(),
        )  # fmt: skip

    def _joint(self, claim: str, kind: str) -> Hypothesis:
        of = self._needed("of", kind)
        names = validation.distinct(self._file, f"{self._key}.of", of, "a list of hypotheses such as [H1, H2]", 1, 99)
        least = {"all": len(names), "any": 1}.get(kind)
        if least is None:
            least = validation.whole(self._file, f"{self._key}.at_least", self._needed("at_least", kind), 1)
        if least > len(names):
            raise validation.refuse(
                self._file, f"{self._key}.at_least", least, f"at most {len(names)}, as many as `of`,"
            )
        return Hypothesis(self._name, claim, kind, low=float(least), of=names)

    def _metric(self, key: str, value: Any) -> str:
        if isinstance(value, str) and derived_metric.parse(value) is not None:
            return value
        return validation.metric(self._file, f"{self._key}.{key}", value)

    def _needed(self, key: str, kind: str) -> Any:
        if key not in self._given:
            raise self._lacks(f"the key {key!r}, which {kind} needs")
        return self._given[key]

    def _lacks(self, what: str) -> BadValue:
        return BadValue(self._file, f"analysis.{self._key}", None, f"lacks {what}")

    def _group(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise validation.refuse(self._file, f"{self._key}.{key}", value, "the name of a group")
        if self._groups is not None and value not in self._groups:
            rule = f"the groups are {', '.join(self._groups)}"
            raise BadValue(self._file, f"analysis.{self._key}.{key}", repr(value), rule)
        return value

    def _against(self, kind: str) -> tuple[str, ...]:
        if kind == "between":
            names = self._needed("groups", kind)
            pair = validation.distinct(self._file, f"{self._key}.groups", names, "a list of two groups", 2, 2)
            return tuple(self._group("groups", name) for name in pair)
        if "against" not in _KEYS[kind]:
            return ()
        if "against" in self._given:
            return (self._group("against", self._given["against"]),)
        if self._baseline is None and self._groups is not None:
            raise self._lacks("the key 'against': the plan has no baseline")
        return (self._baseline or "",)

    def _bounds(self, kind: str) -> tuple[float | None, float | None]:
        if kind in ("spread", "variation"):
            most = validation.number(self._file, f"{self._key}.at_most", self._needed("at_most", kind))
            if most <= 0:
                raise validation.refuse(self._file, f"{self._key}.at_most", most, "a number above 0")
            return None, most
        names = {"range": ("low", "high"), "ratio": ("at_least", "at_most")}.get(kind)
        if names is None:
            return None, None
        low, high = (
            validation.number(self._file, f"{self._key}.{name}", self._given[name]) if name in self._given else None
            for name in names
        )
        if low is None and high is None:
            raise self._lacks(f"{names[0]!r}, {names[1]!r} or both")
        if low is not None and high is not None and low > high:
            raise validation.refuse(self._file, f"{self._key}.{names[0]}", low, f"a number up to {names[1]}, {high:g},")
        return low, high

    def _margin(self) -> float | None:
        if "margin" not in self._given:
            return None
        margin = validation.number(self._file, f"{self._key}.margin", self._given["margin"])
        if margin <= 0:
            raise validation.refuse(self._file, f"{self._key}.margin", margin, "a number above 0")
        return margin

    def _ways(self, kind: str, metrics: Sequence[str]) -> tuple[str, ...]:
        if kind == "extreme":
            which = self._needed("which", kind)
            return _WAYS[validation.choice(self._file, f"{self._key}.which", which, tuple(_WAYS))]
        if kind == "pareto":
            return ways_of(self._file, self._key, tuple(metrics), self._given.get("directions"))
        return ()

    def _target(self, summary: str, metric: str) -> Target | None:
        if summary in ("time_to", "efficiency"):
            return threshold(self._file, self._key, self._given, metric)
        for key in _THRESHOLD:
            if key in self._given:
                raise validation.refuse(self._file, f"{self._key}.{key}", self._given[key], "a summary that is a time")
        return None

"""A claim that an experiment declares before its runs exist, in a form that numbers can decide.

A declaration in YAML has a model for each kind of claim, which holds the keys of that kind; `Hypothesis` is the
common form of all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from analysis.spec import metric_catalog, registry
from analysis.spec.figure_spec import Direction, Directions
from analysis.spec.validation import (
    METRIC_SCHEMA,
    Distinct,
    Metric,
    Pair,
    Section,
    check_metric,
    check_written,
    closest,
    context_of,
    refusal,
    refusals,
)

_TIMES = ("time_to", "efficiency")


class Target(Section):
    """One item of analysis.time_to: `at` in the metric's unit, or `baseline_final` times the baseline's final value.

    metric: the primary one where the item names none. direction: which way is better; None is what is known of the
    metric, and higher where nothing is.
    """

    metric: Metric = ""
    at: float | None = Field(None, description="a number")
    baseline_final: float | None = Field(None, description="a number")
    direction: Direction | None = Field(None, description="higher, lower or null (as is known of the metric)")

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.at is None) == (self.baseline_final is None):
            raise refusal("must have either `at` or `baseline_final`", "write {at: 0.8} or {baseline_final: 0.9}")
        return self


@dataclass(frozen=True)
class Hypothesis:
    """A claim about the summary of a metric (for pareto: of two metrics) of a group.

    kind      range: within [low, high]; ratio: over that of `against` within [low, high]; greater, less: than that of
              `against`; between: within the range that the two groups `against` span; extreme: of all groups the
              best by `ways`; pareto: no group is better by both `ways`; spread: its seeds scatter at most `high` times
              as much as those of `against`; variation: standard deviation over mean of its seeds is at most `high`;
              count, all, any: at least `low` of the hypotheses `of` hold
    metrics   recorded ones, or derived from them (metric_catalog.py)
    summary   a registered one, time_to, or efficiency: the time of `against` over that of the group
    target    the threshold of time_to and efficiency
    margin    of greater and less: a smaller difference does not matter, in the summary's unit
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

    @property
    def compared(self) -> str:
        """The summary whose values are compared: an efficiency is a ratio of times."""
        return "time_to" if self.target is not None else self.summary


def described(h: Hypothesis, by_id: Mapping[str, Hypothesis]) -> bool:
    """Whether no result could support a hypothesis, because it is described and not judged: it is about the values of
    one group, has a summary that is not judged, or needs more hypotheses than are judged. by_id: those of its plan."""
    if h.of:
        return sum(not described(by_id[name], by_id) for name in h.of) < int(h.low or 1)
    return h.kind in ("range", "variation") or not registry.is_judged(h.compared)


# ---------------------------------------------------------------- types of values


def _known_group(called: str, info: ValidationInfo) -> str:
    return context_of(info).group(called)


def _recorded(text: str, info: ValidationInfo) -> str:
    for key in metric_catalog.keys(text):
        check_metric(key, info)
        check_written(key, info.data.get("group", ""), info)
    return text


def _compared(other: str, info: ValidationInfo) -> None:
    """Raise a refusal if a group that is compared with will not write the metric."""
    for metric in info.data.get("metrics", ()):
        for key in metric_catalog.keys(metric):
            check_written(key, other, info)


def _other_group(name: str | None, info: ValidationInfo) -> tuple[str, ...]:
    context = context_of(info)
    if name is None and context.baseline is None and context.groups is not None:
        raise refusal("must name a group, because the plan has no baseline", "name the group to compare with")
    other = name or context.baseline or ""
    if other == info.data.get("group"):
        raise refusal("must not be the group itself", "name another group")
    _compared(other, info)
    return (other,)


_FORMS = "|KEY|, |KEY - NUMBER|, KEY - KEY or KEY + KEY"
_DERIVED = {"type": "string", "description": f"{METRIC_SCHEMA['description']}, {_FORMS}"}
_Group = Annotated[str, AfterValidator(_known_group), Field(description="the name of a group")]
_Metric = Annotated[str, AfterValidator(_recorded), WithJsonSchema(_DERIVED)]
_OneMetric = Annotated[_Metric, AfterValidator(lambda metric: (metric,))]
_Against = Annotated[_Group | None, AfterValidator(_other_group), Field(validate_default=True)]
_Positive = Annotated[float, Field(gt=0)]
_Hypotheses = Annotated[Distinct[str], Field(min_length=1, description="a list of hypotheses such as [H1, H2]")]


def _known_summary(*times: str) -> AfterValidator:
    """Accepts a registered summary, or one of these times."""

    def known(name: str) -> str:
        if name not in times and registry.summary_of(name) is None:
            names = [*registry.summary_names(), *times]
            raise refusal(f"must be one of {', '.join(names)}", closest(name, names, otherwise="name one of them"))
        return name

    return AfterValidator(known)


# The names are not in the schema, which would change with each new summary.
_Summary = Annotated[str, Field(description="the name of a summary (docs/report.md)")]
_AnySummary = Annotated[_Summary, _known_summary()]
_SummaryOrTime = Annotated[_Summary, _known_summary("time_to")]
_TimeOrEfficiency = Annotated[_Summary, _known_summary(*_TIMES)]


# ---------------------------------------------------------------- one model for each kind
# Attributes have the names of `Hypothesis`, and the validators bring values to its form; aliases are the keys in YAML.


class _Declaration(Section):
    claim: str = Field(pattern=r"\S", description="the claim in words")


class _OfMetric(_Declaration):
    group: _Group
    metrics: _OneMetric = Field(alias="metric")


class _Summarized(_OfMetric):
    summary: _AnySummary = "final"


class _Bounded(_OfMetric):
    """Within bounds, of which one is enough."""

    low: float | None
    high: float | None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = (type(self).model_fields[name].alias or name for name in ("low", "high"))
        if self.low is None and self.high is None:
            raise refusal(f"needs {low}, {high} or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise refusal(f"{low} must not be above {high}")
        return self


class _Timed(Section):
    """A claim whose summary may be a time, which a threshold goes with."""

    summary: str
    at: float | None = None
    baseline_final: float | None = None
    direction: Direction | None = None

    @model_validator(mode="after")
    def _has_threshold(self) -> Self:
        given = (self.at is not None) + (self.baseline_final is not None)
        if self.summary in _TIMES and given != 1:
            raise refusal(f"{self.summary} needs either `at` or `baseline_final`", "write baseline_final: 1.0")
        if self.summary not in _TIMES and (given or self.direction):
            raise refusal("`at`, `baseline_final` and `direction` need a summary that is a time", "remove them")
        return self


class _Range(_Bounded, _Summarized):
    kind: Literal["range"]
    low: float | None = None
    high: float | None = None


class _Ratio(_Bounded, _Timed):
    kind: Literal["ratio"]
    summary: _TimeOrEfficiency = "final"
    against: _Against = None
    low: float | None = Field(None, alias="at_least")
    high: float | None = Field(None, alias="at_most")


class _Difference(_OfMetric, _Timed):
    kind: Literal["greater", "less"]
    summary: _SummaryOrTime = "final"
    against: _Against = None
    margin: _Positive | None = None


class _Spread(_Summarized):
    kind: Literal["spread"]
    against: _Against = None
    high: _Positive = Field(alias="at_most")


class _Variation(_Summarized):
    kind: Literal["variation"]
    high: _Positive = Field(alias="at_most")


class _Extreme(_OfMetric, _Timed):
    kind: Literal["extreme"]
    summary: _SummaryOrTime = "final"
    ways: Annotated[
        Literal["least", "greatest"], AfterValidator(lambda which: ("lower" if which == "least" else "higher",))
    ] = Field(alias="which")


class _Between(_Summarized):
    kind: Literal["between"]
    against: Pair[_Group] = Field(alias="groups", description="a list of two groups")

    @field_validator("against")
    @classmethod
    def _others(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("group") in names:
            raise refusal("must be two groups other than `group`", "name two others")
        for name in names:
            _compared(name, info)
        return names


class _Pareto(_Declaration):
    kind: Literal["pareto"]
    group: _Group
    metrics: Pair[_Metric] = Field(description="a list of two metrics' keys")
    summary: _AnySummary = "final"
    directions: Directions = Field((), validate_default=True)


class _Count(_Declaration):
    kind: Literal["count"]
    of: _Hypotheses
    low: int = Field(alias="at_least", ge=1)

    @field_validator("low")
    @classmethod
    def _reachable(cls, least: int, info: ValidationInfo) -> int:
        most = len(info.data.get("of", ()))
        if least > most and "of" in info.data:
            raise refusal(f"must be at most {most}, as many as `of` names")
        return least


class _AllOrAny(_Declaration):
    kind: Literal["all", "any"]
    of: _Hypotheses


Declared = Annotated[
    _Range | _Ratio | _Difference | _Spread | _Variation | _Extreme | _Between | _Pareto | _Count | _AllOrAny,
    Field(discriminator="kind", description="a mapping of claim, kind and what the kind needs"),
]


def check_references(declared: Mapping[str, Declared] | None) -> Mapping[str, Declared] | None:
    """A joint hypothesis names those that are not joint, and joint ones above it: no circle is possible."""
    declared = declared or {}
    known = [name for name, claim in declared.items() if not isinstance(claim, _Count | _AllOrAny)]
    unknown = []
    for name, claim in declared.items():
        if isinstance(claim, _Count | _AllOrAny):
            none = "no hypothesis that it can count is declared above it"
            rule = f"must be one of {', '.join(known)}" if known else none
            error = refusal(rule, f"name hypotheses that stand above {name}, or declare this one there")
            unknown += [((name, claim.kind, "of"), other, error) for other in claim.of if other not in known]
            known.append(name)
    if unknown:
        raise refusals(unknown)
    return declared


def hypothesis(name: str, declared: Declared) -> Hypothesis:
    """A declaration in the form that all kinds have."""
    values: dict[str, Any] = dict(declared)
    threshold = {key: values.pop(key, None) for key in ("at", "baseline_final", "direction")}
    if values.get("summary") in _TIMES:
        values["target"] = Target.model_construct(metric=values["metrics"][0], **threshold)
    if isinstance(declared, _Pareto):
        values["ways"] = values.pop("directions")
    if isinstance(declared, _AllOrAny):
        values["low"] = len(declared.of) if declared.kind == "all" else 1
    if "of" in values:
        values["low"] = float(values["low"])
    return Hypothesis(id=name, **values)

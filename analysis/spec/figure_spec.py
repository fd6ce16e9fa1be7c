"""A figure that an experiment asks for: its kind and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, ValidationInfo, model_serializer, model_validator
from pydantic_core import CoreSchema

from analysis.spec import registry
from analysis.spec.cell import key_of
from analysis.spec.metric_catalog import DISTRIBUTIONS, describe
from analysis.spec.validation import (
    METRIC_SCHEMA,
    Distinct,
    Listed,
    Metric,
    Pair,
    Section,
    closest,
    context_of,
    refusal,
)

_MOST = 6  # metrics of one figure of curves: a seventh line style could not be told from the others
_KINDS = ("band", "histogram", "levels", "pareto", "scatter")
_OPTIONS = {"diagonal": "scatter", "directions": "pareto"}  # each of one kind
_FORMS = f"a metric's key, a list of 2 to {_MOST} of them, or a mapping such as {{scatter: [x, y]}}"

Direction = Literal["higher", "lower"]


def _known_directions(given: tuple[Direction, ...], info: ValidationInfo) -> tuple[Direction, ...]:
    """Which way is better for each of the two metrics of a front: as given, else as the catalog says. Raises a
    refusal."""
    metrics = info.data.get("pareto", info.data.get("metrics"))
    if metrics is None or len(given) == len(metrics):
        return given
    if given:
        raise refusal("must be a list such as [higher, lower]", "give one for each metric")
    known = [(metric, describe(metric).direction) for metric in metrics]
    for metric, direction in known:
        if direction is None:
            rule = f"needs directions, such as [higher, lower]: it is not known which direction of {metric} is better"
            raise refusal(rule, "add directions")
    return tuple(direction for _, direction in known if direction is not None)


Directions = Annotated[
    Listed[Direction],
    AfterValidator(_known_directions),
    Field(description="a list such as [higher, lower]", json_schema_extra={"minItems": 2, "maxItems": 2}),
]
_Metrics = Annotated[Pair[Metric] | None, Field(description="a list of two metrics' keys")]


def _written(name: str | None, info: ValidationInfo) -> str | None:
    known = list(DISTRIBUTIONS)
    if name is not None and context_of(info).own_metrics and name not in known:
        raise refusal("no run writes such a histogram", closest(name, known, otherwise=f"use {', '.join(known)}"))
    return name


class Picture(Section):
    """One item of analysis.figures: a metric, a list of them, or a mapping of a kind to its metrics.

    directions: for each metric of a pareto whether higher or lower is better; diagonal: whether a scatter has the line
    y = x.
    """

    curves: Distinct[Metric] | None = None
    band: _Metrics = None
    histogram: Annotated[
        str | None,
        Field(pattern="^[a-z_]+$", description="the name of a histogram, such as entropy"),
        AfterValidator(_written),
    ] = None
    levels: Metric | None = Field(None, description="a metric's key")
    pareto: _Metrics = None
    scatter: _Metrics = None
    registered: str | None = None  # another kind, with its metrics
    of: Distinct[Metric] | None = None
    diagonal: bool | None = Field(None, description="true or false")
    directions: Directions = Field((), validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, item: Any) -> Any:
        if isinstance(item, str):
            return {"curves": [item]}
        if isinstance(item, (list, tuple)):
            if not 2 <= len(item) <= _MOST:
                raise refusal(f"must be {_FORMS}", f"name 2 to {_MOST} metrics")
            return {"curves": item}
        if isinstance(item, Mapping) and list(item) == ["difference"]:  # of a plan of an older version
            return {"curves": [item["difference"]]}
        if isinstance(item, Mapping) and "curves" not in item:
            kinds = [kind for kind in _KINDS if kind in item]
            if not kinds and len(item) == 1 and registry.figure_of(kind := str(next(iter(item)))) is not None:
                return {"registered": kind, "of": item[kind]}
            if len(kinds) != 1:
                raise refusal(f"must have one of the keys {', '.join(_KINDS)}")
            for option, kind in _OPTIONS.items():
                if option in item and kinds[0] != kind:
                    raise refusal(f"{kinds[0]} does not take {option}", f"remove {option}")
        return item

    @model_validator(mode="after")
    def _has_metrics(self) -> Self:
        if not self.metrics:
            raise refusal(f"must be {_FORMS}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        mapping = handler.resolve_ref_schema(handler(core))
        for key in ("curves", "registered", "of"):
            del mapping["properties"][key]
        several = {"type": "array", "items": METRIC_SCHEMA, "minItems": 2, "maxItems": _MOST, "uniqueItems": True}
        return {"anyOf": [METRIC_SCHEMA, several, mapping], "description": _FORMS}

    @model_serializer
    def _record(self) -> dict[str, Any]:
        record = {"kind": self.kind, "metrics": self.metrics}
        return {**record, "diagonal": bool(self.diagonal), "directions": self.directions}

    @property
    def kind(self) -> str:
        """curves, band, histogram, levels, pareto, scatter, or another registered kind."""
        return self.registered or next((kind for kind in _KINDS if getattr(self, kind) is not None), "curves")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the figure; for a histogram, only its name."""
        metrics = self.of if self.registered else getattr(self, self.kind)
        return (metrics,) if isinstance(metrics, str) else metrics or ()

    @property
    def name(self) -> str:
        """The name of the figure's files, which several figures may have (canvas.save)."""
        keys = "__".join(map(key_of, self.metrics)).encode()[:200].decode(errors="ignore")  # a file's has at most 255
        return f"{'curve' if self.kind == 'curves' else self.kind}_{keys}"


def curves(*metrics: str) -> Picture:
    return Picture.model_construct(curves=metrics)

"""A figure that an experiment asks for: its kind and its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.spec import validation
from analysis.spec.metric_catalog import describe
from analysis.spec.validation import BadValue

MOST = 6  # metrics of one figure of curves: beyond that no line style is told from another
KINDS = {"band": (), "histogram": (), "pareto": ("directions",), "scatter": ("diagonal",)}
_NAME = re.compile(r"[a-z_]+")


@dataclass(frozen=True)
class Picture:
    """kind: curves, or one of KINDS. metrics: of a histogram its name alone. directions: which ways are better, of a
    pareto. diagonal: whether a scatter has the line y = x."""

    kind: str
    metrics: tuple[str, ...]
    diagonal: bool = False
    directions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its files."""
        keys = "__".join(re.sub(r"[^A-Za-z0-9]+", "_", key).strip("_") for key in self.metrics)
        return f"{'curve' if self.kind == 'curves' else self.kind}_{keys}"


def curves(*metrics: str) -> Picture:
    """The figure of these metrics' curves."""
    return Picture("curves", metrics)


def picture(file: str, place: int, item: Any) -> Picture:
    """Read one item of analysis.figures: a metric, a list of them, or a mapping of a kind to its metrics."""
    key = f"figures[{place}]"
    if isinstance(item, Mapping):
        return _mapping(file, key, dict(item))
    keys = (item,) if isinstance(item, str) else tuple(item) if isinstance(item, (list, tuple)) else ()
    several = isinstance(item, str) or 2 <= len(keys) <= MOST
    if not several or not all(isinstance(name, str) and validation.METRIC.fullmatch(name) for name in keys):
        needed = f"{validation.KEY}, a list of 2 to {MOST} of them, or a mapping such as {{scatter: [x, y]}},"
        raise validation.refuse(file, key, item, needed)
    if len(set(keys)) < len(keys):
        raise validation.refuse(file, key, item, "a list that names each metric once")
    return curves(*keys)


def _mapping(file: str, key: str, item: dict[str, Any]) -> Picture:
    kinds = [kind for kind in KINDS if kind in item]
    if len(kinds) != 1:
        raise validation.refuse(file, key, item, f"one of the keys {', '.join(KINDS)}")
    (kind,) = kinds
    validation.only(file, f"analysis.{key}", item, (kind, *KINDS[kind]))
    if kind == "histogram":
        name = item[kind]
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise validation.refuse(file, f"{key}.{kind}", name, "the name of a histogram such as entropy")
        return Picture(kind, (name,))
    metrics = validation.distinct(file, f"{key}.{kind}", item[kind], "a list of two metrics' keys", 2, 2)
    for metric in metrics:
        validation.metric(file, f"{key}.{kind}", metric)
    diagonal = item.get("diagonal", False)
    if not isinstance(diagonal, bool):
        raise validation.refuse(file, f"{key}.diagonal", diagonal, "true or false")
    ways = ways_of(file, key, metrics, item.get("directions")) if kind == "pareto" else ()
    return Picture(kind, metrics, diagonal, ways)


def ways_of(file: str, key: str, metrics: tuple[str, ...], given: Any) -> tuple[str, ...]:
    """Which way is better for each of two metrics: as given, else as is known of them."""
    if given is not None:
        ways = tuple(given) if isinstance(given, (list, tuple)) else ()
        if len(ways) != len(metrics) or any(way not in ("higher", "lower") for way in ways):
            raise validation.refuse(file, f"{key}.directions", given, "a list such as [higher, lower]")
        return ways
    known = [describe(metric).direction for metric in metrics]
    for metric, way in zip(metrics, known, strict=True):
        if way is None:
            rule = f"needs directions, such as [higher, lower]: which way is better is not known of {metric}"
            raise BadValue(file, f"analysis.{key}", None, rule)
    return tuple(way for way in known if way is not None)

"""The values behind a figure: what each of its lines and points shows, for a reader who points at them, for one who
does not see them, and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Array = NDArray[np.float64]
GID = re.compile(r"([a-z]+\d*)(?:\.(\d+))?--(.*)")  # of an artist: ROLE--GROUP, or ROLE.SEED--GROUP
_A_TRACE, _A_FIGURE = 400, 30_000  # points in a page: a screen shows no more, and a page stays small
_POINT = 72.0  # a drawing's units an inch, in SVG as matplotlib writes it


@dataclass(frozen=True)
class Panel:
    """A pair of axes. box: left, top, width, height in the SVG's units. x, y: name, low, high, whether logarithmic."""

    box: tuple[float, float, float, float]
    x: tuple[str, float, float, bool]
    y: tuple[str, float, float, bool]


@dataclass(frozen=True)
class Trace:
    """A line, or points of one kind. panel: its place among the panels. seed: None for all seeds together.

    what: in words. name: of what y shows, "" where y is only a place. x, y (n,); interval: (low, high), (n,) each, or
    None; steps (n,) where x is none.
    """

    panel: int
    group: str
    seed: int | None
    what: str
    name: str
    x: Array
    y: Array
    interval: tuple[Array, Array] | None
    steps: Array | None = None


@dataclass(frozen=True)
class Traces:
    """Of one figure: its panels and what is drawn there, means before seeds."""

    panels: tuple[Panel, ...]
    traces: tuple[Trace, ...]


NONE = Traces((), ())


def traces_of(
    canvas: Canvas,
    intervals: Mapping[str, tuple[Array, Array]],
    names: Mapping[str, str],
    steps: Mapping[str, Array],
) -> Traces:
    """What a drawing shows, once it is laid out: each of its lines that has both a group id and a label.

    intervals[gid]: low and high, one a point. names[role]: what y shows, where that is not the y axis' label.
    steps[gid]: of the points, where x is no step.
    """
    panels, traces = [], []
    for place, axes in enumerate(canvas.axes):
        panels.append(_panel(canvas, axes))
        for line in axes.lines:
            gid = line.get_gid() or ""
            found = GID.fullmatch(gid)
            what = str(line.get_label())
            if found is None or what.startswith("_"):
                continue
            role, seed, group = found.groups()
            x, y = (np.asarray(values, dtype=np.float64) for values in (line.get_xdata(), line.get_ydata()))
            name = names.get(role, panels[-1].y[0])
            number = None if seed is None else int(seed)
            traces.append(Trace(place, group, number, what, name, x, y, intervals.get(gid), steps.get(gid)))
    return Traces(tuple(panels), tuple(sorted(traces, key=lambda trace: trace.seed is not None)))


def _panel(canvas: Canvas, axes: Axes) -> Panel:
    width, height = canvas.get_figwidth() * _POINT, canvas.get_figheight() * _POINT
    at = axes.get_position()
    box = (at.x0 * width, (1 - at.y1) * height, at.width * width, at.height * height)
    x, y = (
        (" ".join(label.split()), float(low), float(high), scale == "log")
        for label, (low, high), scale in (
            (axes.get_xlabel(), axes.get_xlim(), axes.get_xscale()),
            (axes.get_ylabel(), axes.get_ylim(), axes.get_yscale()),
        )
    )
    return Panel(box, x, y)


def to_json(found: Traces, labels: Mapping[str, str]) -> dict[str, Any]:
    """For the page's script: five digits, and each x once. labels[group]: as a reader knows it."""
    xs: dict[tuple[float | None, ...], int] = {}
    traces = []
    most = max(20, min(_A_TRACE, _A_FIGURE // max(1, len(found.traces))))
    for trace in found.traces:
        kept = _places(trace.x.size, most)
        entry: dict[str, Any] = {
            "p": trace.panel, "g": trace.group, "s": trace.seed, "w": trace.what, "n": trace.name,
            "x": xs.setdefault(_short(trace.x[kept]), len(xs)), "y": _short(trace.y[kept]),
        }  # fmt: skip
        if trace.interval is not None:
            entry["i"] = [_short(end[kept]) for end in trace.interval]
        if trace.steps is not None:
            entry["t"] = _short(trace.steps[kept])
        traces.append(entry)
    panels = [
        {"box": [_round(v) for v in panel.box], "x": _axis(panel.x), "y": _axis(panel.y)} for panel in found.panels
    ]
    shown = {trace.group: labels.get(trace.group, trace.group) for trace in found.traces}
    return {"panels": panels, "xs": list(xs), "traces": traces, "labels": shown}


def _places(count: int, most: int) -> slice:
    """At most so many of `count` points, evenly spaced, the last one among them."""
    width = max(1, -(-count // most))
    return slice((count - 1) % width if count else 0, count, width)


def _axis(axis: tuple[str, float, float, bool]) -> list[Any]:
    return [axis[0], float(f"{axis[1]:.9g}"), float(f"{axis[2]:.9g}"), axis[3]]


def _short(values: Array) -> tuple[float | None, ...]:
    return tuple(_round(value) for value in values)


def _round(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}") if abs(value) < 1e4 else round(float(value))
    return int(short) if short == int(short) else short


def to_csv(found: Traces) -> str:
    """Everything drawn, full precision: one row a point. No field where there is no number."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("panel", "group", "seed", "what", "step", "x_name", "x", "y_name", "y", "low", "high"))
    for trace in found.traces:
        panel = found.panels[trace.panel]
        low, high = trace.interval or (np.full(trace.x.size, np.nan),) * 2
        steps = np.full(trace.x.size, np.nan) if trace.steps is None else trace.steps
        for step, x, y, *ends in zip(steps, trace.x, trace.y, low, high, strict=True):
            where = (trace.panel, trace.group, trace.seed, trace.what, _field(step), panel.x[0], _field(x))
            writer.writerow((*where, trace.name, _field(y) if trace.name else None, *map(_field, ends)))
    return out.getvalue()


def _field(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


SUMMARY = ("method", "what", "points", "first", "last", "lowest", "highest")


def summary(found: Traces, labels: Mapping[str, str]) -> list[tuple[str, ...]]:
    """A row, as SUMMARY names its cells, for what is drawn of each method: for a reader who does not see the drawing.

    Seeds stand here only where nothing is drawn of all seeds together.
    """
    together = {trace.group for trace in found.traces if trace.seed is None}
    rows: list[tuple[str, ...]] = []
    for trace in found.traces:
        usable = np.isfinite(trace.x) & np.isfinite(trace.y)
        if not usable.any() or (trace.seed is not None and trace.group in together):
            continue
        x, y = trace.x[usable], trace.y[usable]
        panel = f"panel {trace.panel + 1}: " if len(found.panels) > 1 else ""
        name = f"{trace.name}: " if len({t.name for t in found.traces}) > 1 else ""
        if not trace.name:  # y is only a place: x is what is shown
            cells = (_number(x[0]), _number(x[-1]), _number(x.min()), _number(x.max()))
        else:
            cells = (_at(x[0], y[0]), _at(x[-1], y[-1]), _at(x[y.argmin()], y.min()), _at(x[y.argmax()], y.max()))
        rows.append((labels.get(trace.group, trace.group), f"{panel}{name}{trace.what}", str(x.size), *cells))
    return rows


def _at(x: float, y: float) -> str:
    return f"{_number(y)} at {_number(x)}"


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"

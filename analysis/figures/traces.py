"""The values behind a figure: for a reader who points at a line, for one who cannot see it, and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from analysis.stats.numbers import Array
from analysis.tables.table import literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

GID = re.compile(r"([a-z]+\d*)(?:\.(\d+))?--(.*)")  # id of an artist: ROLE--GROUP, or ROLE.SEED--GROUP
_A_TRACE, _A_FIGURE = 400, 30_000  # points in a page: a screen shows no more, and a page stays small
_WHOLE = 1e15  # a number of this size has no digits after the point, and from 2^64 on JSON has no whole number for it
_POINT = 72.0  # a drawing's units an inch, in SVG as matplotlib writes it


@dataclass(frozen=True)
class Panel:
    """A pair of axes. box: left, top, width, height in the SVG's units. x, y: name, low, high, whether logarithmic."""

    box: tuple[float, float, float, float]
    x: tuple[str, float, float, bool]
    y: tuple[str, float, float, bool]


@dataclass(frozen=True)
class About:
    """What a line shows beside x and y (n,). interval: (low, high) of its points; steps: of its points, where x is not
    a step; values: what the points show, where x and y are only positions."""

    interval: tuple[Array, Array] | None = None
    steps: Array | None = None
    values: Array | None = None


def tell(lines: Sequence[Any], interval: tuple[Any, Any] | None = None, **about: Array) -> None:
    """Attach to each line the data that its figure's CSV file needs (see About). interval: (low, high), or None."""
    ends = None if interval is None else (np.atleast_1d(interval[0]), np.atleast_1d(interval[1]))
    for line in lines:
        line.about = About(ends, **about)


def tell_members(artist: Any, rows: Mapping[str, tuple[str, Array, Array]]) -> None:
    """Attach to an artist that draws many seeds at once the line that each would be on its own. rows[gid]: its label, x
    (n,) and y (n,)."""
    artist.rows = rows


@dataclass(frozen=True, slots=True)
class Trace:
    """A line, or points of one kind, (n,).

    panel: index of its panel. seed: None for all seeds together. what: in words. name: what y shows, "" where y is only
    a position (x is one where its axis has no name).
    """

    panel: int
    group: str
    seed: int | None
    what: str
    name: str
    x: Array
    y: Array
    about: About = About()

    @property
    def shown(self) -> Array:
        """The values of what `name` names."""
        return self.y if self.about.values is None else self.about.values


def intervals_of(axes: Axes) -> list[tuple[Array, Array]]:
    """The intervals of all lines that have some."""
    return [about.interval for line in axes.lines if (about := getattr(line, "about", About())).interval is not None]


@dataclass(frozen=True)
class Traces:
    """The panels of one figure and what is drawn there, means before seeds."""

    panels: tuple[Panel, ...]
    traces: tuple[Trace, ...]


def traces_of(canvas: Canvas, names: Mapping[str, str]) -> Traces:
    """What a drawing shows once it is laid out: each line that has a group id and a label. names: as in Sketch."""
    panels, traces = [], []
    for panel, axes in enumerate(canvas.axes):
        panels.append(_panel(canvas, axes))
        for gid, what, *drawn, about in _lines(axes):
            match = GID.fullmatch(gid)
            if match is None or what.startswith("_"):
                continue
            role, seed, group = match.groups()
            x, y = (np.asarray(column, dtype=np.float64) for column in drawn)
            name = names.get(role, panels[-1].y[0])
            traces.append(Trace(panel, group, None if seed is None else int(seed), what, name, x, y, about))
    return Traces(tuple(panels), tuple(sorted(traces, key=lambda trace: trace.seed is not None)))


def _lines(axes: Axes) -> Iterator[tuple[str, str, Any, Any, About]]:
    """Group id, label, x and y of every line, and of those that one artist draws together, and what more they show."""
    for line in axes.lines:
        about = getattr(line, "about", About())
        yield line.get_gid() or "", str(line.get_label()), line.get_xdata(), line.get_ydata(), about
    for artist in (*axes.lines, *axes.collections):
        for gid, row in getattr(artist, "rows", {}).items():
            yield gid, *row, About()


def _panel(canvas: Canvas, axes: Axes) -> Panel:
    width, height = canvas.get_figwidth() * _POINT, canvas.get_figheight() * _POINT
    at = axes.get_position()
    box = (at.x0 * width, (1 - at.y1) * height, at.width * width, at.height * height)
    x, y = (
        (" ".join(axis.get_label_text().split()), float(low), float(high), axis.get_scale() == "log")
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
    )
    return Panel(box, x, y)


def to_json(figure: Traces, labels: Mapping[str, str]) -> dict[str, Any]:
    """For the page's script: five digits, each x array once. labels: of the groups."""
    xs: dict[tuple[float | None, ...], int] = {}
    known: dict[bytes, int] = {}
    traces = []
    most = max(20, min(_A_TRACE, _A_FIGURE // max(1, len(figure.traces))))
    for trace in figure.traces:
        width = max(1, -(-trace.x.size // most))  # evenly spaced points, with the last one
        kept = slice((trace.x.size - 1) % width if trace.x.size else 0, None, width)
        key = trace.x[kept].tobytes()
        if key not in known:
            known[key] = xs.setdefault(_short(trace.x[kept]), len(xs))
        entry: dict[str, Any] = {
            "p": trace.panel, "g": trace.group, "s": trace.seed, "w": trace.what, "n": trace.name,
            "x": known[key], "y": _short(trace.y[kept]),
        }  # fmt: skip
        if trace.about.interval is not None:
            entry["i"] = [_short(end[kept]) for end in trace.about.interval]
        entry |= {key: _short(of[kept]) for key, of in (("t", trace.about.steps), ("v", trace.about.values))
                  if of is not None}  # fmt: skip
        traces.append(entry)
    panels = [{"box": _short(np.array(panel.box)), "x": _axis(panel.x), "y": _axis(panel.y)} for panel in figure.panels]
    shown = {trace.group: labels.get(trace.group, trace.group) for trace in figure.traces}
    return {"panels": panels, "xs": list(xs), "traces": traces, "labels": shown}


def _axis(axis: tuple[str, float, float, bool]) -> list[Any]:
    return [axis[0], float(f"{axis[1]:.9g}"), float(f"{axis[2]:.9g}"), axis[3]]


def _short(values: Array) -> tuple[float | None, ...]:
    """Each number with five digits, or all before its point; None for one that is not finite."""
    return tuple(_shortened(value) if math.isfinite(value) else None for value in values.tolist())


def _shortened(value: float) -> float:
    short = float(f"{value:.0f}" if 1e4 <= abs(value) < _WHOLE else f"{value:.5g}")
    # A whole number is shorter so. From 1e15 on JSON's readers might not know it.
    return int(short) if short.is_integer() and abs(short) < _WHOLE else short


_EXPONENTS = (1e-4, 1e16)  # Python writes numbers outside with one


def to_csv(figure: Traces) -> Iterator[str]:
    """All values drawn, in full precision: a row per point, empty fields for what does not exist. In parts, each of
    whole lines."""
    yield _cells("panel", "group", "seed", "what", "step", "x_name", "x", "y_name", "y", "low", "high") + "\n"
    for trace in figure.traces:
        names = _cells(figure.panels[trace.panel].x[0]), _cells(trace.name)
        low, high = trace.about.interval or (None, None)
        cells = zip(
            repeat(_cells(trace.panel, trace.group, trace.seed, trace.what)), _fields(trace.about.steps),
            repeat(names[0]), _fields(trace.x), repeat(names[1]), _fields(trace.shown if trace.name else None),
            _fields(low), _fields(high), strict=False,
        )  # fmt: skip
        lines = "\n".join(map(",".join, cells))
        yield f"{lines}\n" if lines else ""


def _cells(*cells: object) -> str:
    """Cells of a row of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(map(literal, cells))
    return "" if cells == ("",) else out.getvalue()


def _fields(values: Array | None) -> Iterable[str]:
    """Numbers as cells of a CSV file, as Python writes them; it has nothing for those that do not exist."""
    if values is None:
        return repeat("")
    if not values.size:
        return ()
    # orjson is ten times as fast as repr, and differs in exponents.
    cells = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode().split(",")
    size = np.abs(values)
    for index in np.flatnonzero(~((size == 0) | ((size >= _EXPONENTS[0]) & (size < _EXPONENTS[1])))).tolist():
        cells[index] = repr(float(values[index])) if np.isfinite(values[index]) else ""
    return cells


SUMMARY = ("method", "what", "points", "first", "last", "lowest", "highest")


def summary(figure: Traces, labels: Mapping[str, str]) -> list[tuple[str, ...]]:
    """A row per line drawn, with the cells of SUMMARY, for readers who cannot see the drawing. A method's
    seeds are listed only if it has no line for all of them."""
    together = {trace.group for trace in figure.traces if trace.seed is None}
    rows: list[tuple[str, ...]] = []
    for trace in figure.traces:
        usable = np.isfinite(trace.x) & np.isfinite(trace.y)
        if not usable.any() or (trace.seed is not None and trace.group in together):
            continue
        x, y = trace.x[usable], trace.shown[usable]
        panel = f"panel {trace.panel + 1}: " if len(figure.panels) > 1 else ""
        name = f"{trace.name}: " if len({t.name for t in figure.traces}) > 1 else ""
        alone = trace.about.values is not None or not (trace.name and figure.panels[trace.panel].x[0])
        shown = y if trace.name else x  # without a name, y is only a place
        places = (0, -1, shown.argmin(), shown.argmax())
        cells = [_number(shown[at]) + ("" if alone else f" at {_number(x[at])}") for at in places]
        rows.append((labels.get(trace.group, trace.group), f"{panel}{name}{trace.what}", str(x.size), *cells))
    return rows


def _number(value: float) -> str:
    return f"{value:.0f}" if 1e4 <= abs(value) < _WHOLE else f"{value:.4g}"

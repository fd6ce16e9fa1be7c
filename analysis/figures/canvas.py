"""How figures are drawn and saved: palette, canvas, legends, and what a page needs of a drawing.

Same input, same bytes: no dates, no random ids.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.figures.rendering import Files, rendering
from analysis.figures.traces import GID, Array, Traces, to_csv, traces_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette, told apart with any common colour blindness; the yellow is left out, it fades on white paper,
# and a dark red of Tol's, lightened for dark paper, added.
PALETTE = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B13A70")
Dash = str | tuple[int, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))
LINE = 76  # letters that fit a line of a figure of the page's width
_WIDTH = 7.0  # inches of a figure that fills the page's width
MANY = 100  # seeds of all methods in a figure: beyond that each method's are drawn as one, and a page stays small
TOGETHER = "The seeds of a method are drawn as one: the page hides them with the method, not seed by seed."
INK, GRID = "#1a1a1b", "#d8d8d9"  # replaced by the page's own colours where a figure stands in a page
MARKS = (None, "o", "s", "^")  # of groups of one colour, in the order of DASHES
NEUTRAL = "#77777a"  # ink that belongs to no method, to be read on white and on black paper
STYLE: dict[str, object] = {
    "svg.hashsalt": "rlsweep", "svg.fonttype": "none", "pdf.fonttype": 42, "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "axes.unicode_minus": False, "path.simplify_threshold": 0.2,
    "text.parse_math": False,  # a method's label is the reader's own: $ is a dollar in it
}  # fmt: skip


class Sketch(NamedTuple):
    """A figure as drawn, not yet in any format.

    intervals[gid]: (low, high) of an artist's points. names[role]: what y shows, where that is not the axis' label.
    steps[gid]: of its points, where x is no step. values[gid]: what they show where both x and y are only a place.
    """

    name: str
    title: str
    caption: str
    canvas: Canvas
    intervals: Mapping[str, tuple[Array, Array]] | None = None
    names: Mapping[str, str] | None = None
    steps: Mapping[str, Array] | None = None
    values: Mapping[str, Array] | None = None


@dataclass(frozen=True)
class Figure:
    """A drawn figure. caption says what is drawn and what is missing; traces: the values behind it; width in inches."""

    name: str
    title: str
    caption: str
    width: float
    traces: Traces
    csv: bytes
    rendered: Callable[[], Files]

    @cached_property
    def files(self) -> Files:
        """Its files by suffix; waits for those that are being rendered."""
        return {**self.rendered(), "csv": self.csv}

    @cached_property
    def inline(self) -> str:
        """The SVG to stand in a page."""
        return _inline(self.name, self.title, self.files["svg"].decode(), self.width)


def colours(groups: Sequence[str]) -> dict[str, tuple[str, Dash]]:
    """Colour and line style of each group, the baseline (first) in black; beyond eight groups the line styles
    change."""
    n = len(PALETTE)
    return {group: (PALETTE[i % n], DASHES[(i // n) % len(DASHES)]) for i, group in enumerate(groups)}


def look_of(groups: Sequence[str], group: str, markers: bool) -> dict[str, Any]:
    """A group's colour and line style; where line styles are needed for something else, it has markers instead."""
    colour, dash = colours(groups)[group]
    look: dict[str, Any] = {"color": colour, "linestyle": dash, "solid_capstyle": "round"}
    return {**look, "linestyle": "-", "marker": MARKS[DASHES.index(dash)], "markersize": 4} if markers else look


def canvas_of(width: float, height: float) -> tuple[Canvas, Axes]:
    """A figure of that size in inches, with one pair of axes, on no paper: a page shows through."""
    canvas, (axes,) = panels_of(width, height, 1)
    return canvas, axes


def panels_of(width: float, height: float, count: int, rows: int = 1, common: bool = True) -> tuple[Canvas, list[Axes]]:
    """The same with so many panels beside each other in each row, on common axes or each on its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height))  # without a layout engine: see lay_out
    FigureCanvasAgg(canvas)
    canvas.patch.set_alpha(0)
    panels = list(canvas.subplots(rows, count, sharex=common, sharey=common, squeeze=False).flat)
    for axes in panels:
        axes.patch.set_alpha(0)
    return canvas, panels


def legend(canvas: Canvas, side: str, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> int:
    """A legend above ("upper") or below ("lower") the axes, of text and line style each; the rows that it needs."""
    from matplotlib.lines import Line2D

    entries = [(textwrap.fill(text, LINE), style) for text, style in entries]
    handles = [Line2D([], [], label=text, **style) for text, style in entries]
    place: dict[str, Any] = {"loc": f"outside {side} left", "handlelength": 2.6, "columnspacing": 1.4}
    rows = 1
    made = canvas.legend(handles=handles, ncols=len(handles), **place)
    while made.get_window_extent().width > canvas.bbox.width and rows < len(handles):
        rows += 1
        made.remove()
        made = canvas.legend(handles=handles, ncols=-(-len(handles) // rows), **place)
    return rows + sum(text.count("\n") for text, _ in entries)


def brief(label: str, letters: int) -> str:
    """A label in so many letters; what is cut off stands as an ellipsis."""
    return label if len(label) <= letters else f"{label[: letters - 1].rstrip()}…"


def lay_out(canvas: Canvas) -> None:
    """Find each part of a drawing its place. Once: a canvas that has a layout engine does so, and is drawn once more,
    for every format."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    ConstrainedLayoutEngine().execute(canvas)


def save(sketches: Sequence[Sketch]) -> list[Figure]:
    """The drawings in every format, their values as CSV among them."""
    for sketch in sketches:
        lay_out(sketch.canvas)
    traces = [
        traces_of(one.canvas, one.intervals or {}, one.names or {}, one.steps or {}, one.values or {})
        for one in sketches
    ]
    points = sum(trace.x.size for found in traces for trace in found.traces)
    pictures = rendering([sketch.canvas for sketch in sketches], points)
    return [
        Figure(*sketch[:3], sketch.canvas.get_figwidth(), found, to_csv(found).encode(), files)
        for sketch, found, files in zip(sketches, traces, pictures, strict=True)
    ]


def _marked(found: re.Match[str]) -> str:
    _, seed, group = found.groups()
    return f'<g data-group="{group}"' + (f' data-seed="{seed}">' if seed else ">")


def _inline(name: str, title: str, svg: str, width: float) -> str:
    """The SVG, so many inches wide, for a page: ids made unique, ink and grid in the page's colours, groups marked for
    its script, named for a reader."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(rf'<g id="{GID.pattern[:-4]}([^"]*)">', _marked, svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    for colour in (INK, "#000000"):
        svg = svg.replace(colour, "currentColor")
    svg = svg.replace(GRID, "var(--grid)").replace("'DejaVu Sans'", "inherit")
    share = width / _WIDTH
    narrow = f' style="max-width: {100 * share:.0f}%"' if share < 1 else ""  # letters of one size in all figures
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf"\1{narrow}", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    # Matplotlib leaves a black fill out, as SVG's default: that of the baseline's band.
    return re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" fill="currentColor" ', svg, count=1)

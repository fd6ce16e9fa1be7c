"""How figures are drawn and saved: palette, canvas, legends, and what a page needs of a drawing.

Same input, same bytes: no dates, no random ids.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.traces import GID, Traces, traces_of
from analysis.stats.numbers import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, GRID = "#1a1a1b", "#d8d8d9"  # replaced by the page's own colours in a page
_SETTINGS: dict[str, object] = {
    "svg.hashsalt": "rlsweep", "svg.fonttype": "none", "pdf.fonttype": 42, "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "axes.unicode_minus": False, "path.simplify_threshold": 0.2,
    "text.parse_math": False,  # a method's label is the reader's own: $ is a dollar in it
}  # fmt: skip
# Okabe and Ito's palette, told apart with any common colour blindness; the yellow is left out, it fades on white paper,
# and a dark red of Tol's, lightened for dark paper, added.
PALETTE = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B13A70")
Dash = str | tuple[int, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))
LINE = 76  # characters that fit on a line of a figure as wide as the page
_WIDTH = 7.0  # inches: a figure as wide as the page
_SPAN = 100.0  # an axis whose values differ by more than this factor is logarithmic
_HIGHEST = 1e300  # limit of a logarithmic axis: its ticks, powers of 10, must be finite too
MANY = 100  # with more seeds in a figure, each method's are drawn as one artist, which keeps the page small
TOGETHER = "The seeds of a method are drawn as one: the page hides them with the method, not seed by seed."
MARKS = (None, "o", "s", "^")  # markers of groups with equal colours, in the order of DASHES
NEUTRAL = "#77777a"  # ink that belongs to no method, to be read on white and on black paper
DPI = 160  # of PNG files, and of images within SVG and PDF files
#: No dates, so that the same drawing has the same bytes.
_METADATA: dict[str, dict[str, None]] = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}
#: Names of the interval from low to high; {} is replaced by the level.
INTERVAL, SIMULTANEOUS = "{} interval", "simultaneous {} band"


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib without a display, with the settings of the figures."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # boxes in PNG and PDF
        yield


@dataclass(frozen=True)
class Sketch:
    """A figure as drawn.

    caption: what is drawn and what is missing. names[role]: what y shows, where that is not the axis' label. kind: as
    registered, or "differences" or "times". bounds: the name of its lines' intervals (traces.tell). The properties
    need a canvas that has been laid out.
    """

    name: str
    title: str
    caption: str
    canvas: Canvas
    names: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    bounds: str = INTERVAL

    @cached_property
    def traces(self) -> Traces:
        return traces_of(self.canvas, self.names)

    @cached_property
    def svg(self) -> bytes:
        """The SVG, which the page and the folder of figures share."""
        return self.rendered("svg")

    def rendered(self, suffix: str) -> bytes:
        """The figure as "svg", "pdf" or "png". Same figure, same bytes."""
        out = io.BytesIO()
        self.canvas.patch.set_alpha(float(suffix == "png"))  # white paper: what shows a PNG may have a dark one
        with styled():
            self.canvas.savefig(out, format=suffix, metadata=_METADATA.get(suffix), dpi=DPI)
        return out.getvalue()

    @cached_property
    def inline(self) -> str:
        """The SVG for the page: unique ids, ink and grid in the page's colours, groups marked for the script, and a
        label for screen readers."""
        svg = self.svg.decode()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
        svg = re.sub(rf'<g id="{GID.pattern[:-4]}([^"]*)">', _marked, svg)
        for reference in (' id="', "url(#", 'href="#'):
            svg = svg.replace(reference, f"{reference}{self.name}-")
        for colour in (INK, "#000000"):
            svg = svg.replace(colour, "currentColor")
        svg = svg.replace(GRID, "var(--grid)").replace("'DejaVu Sans'", "inherit")
        share = self.canvas.get_figwidth() / _WIDTH
        narrow = f' style="max-width: {100 * share:.0f}%"' if share < 1 else ""  # letters of one size in all figures
        svg = re.sub(r' width="[^"]*" height="[^"]*"', narrow, svg, count=1)
        label = self.title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
        # Matplotlib leaves a black fill out, as SVG's default: that of the baseline's band.
        return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" fill="currentColor" ', 1)


def colours(groups: Sequence[str]) -> dict[str, tuple[str, Dash]]:
    """Colour and line style of each group, the baseline (first) in black; beyond eight groups the line styles
    change."""
    n = len(PALETTE)
    return {group: (PALETTE[i % n], DASHES[(i // n) % len(DASHES)]) for i, group in enumerate(groups)}


def style_of(groups: Sequence[str], group: str, markers: bool) -> dict[str, Any]:
    """A group's colour and line style. With `markers`, groups differ by markers, because line styles have another
    meaning."""
    colour, dash = colours(groups)[group]
    style: dict[str, Any] = {"color": colour, "linestyle": dash, "solid_capstyle": "round"}
    return {**style, "linestyle": "-", "marker": MARKS[DASHES.index(dash)], "markersize": 4} if markers else style


def canvas_of(width: float, height: float) -> tuple[Canvas, Axes]:
    """A figure of this size in inches with one pair of axes, transparent for the page."""
    canvas, (axes,) = panels_of(width, height, 1)
    return canvas, axes


def panels_of(width: float, height: float, count: int, rows: int = 1, common: bool = True) -> tuple[Canvas, list[Axes]]:
    """A figure of this size with `count` panels in each row; common: all panels share their axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height))  # without a layout engine: see save
    FigureCanvasAgg(canvas)
    panels = list(canvas.subplots(rows, count, sharex=common, sharey=common, squeeze=False).flat)
    for axes in panels:
        axes.patch.set_alpha(0)
    return canvas, panels


def legend(canvas: Canvas, side: str, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> int:
    """Draw a legend above ("upper") or below ("lower") the axes, from texts and line styles; the number of its rows."""
    from matplotlib.lines import Line2D

    entries = [(textwrap.fill(text, LINE), style) for text, style in entries]
    handles = [Line2D([], [], label=text, **style) for text, style in entries]
    where: dict[str, Any] = {"loc": f"outside {side} left", "handlelength": 2.6, "columnspacing": 1.4}
    rows = 1
    made = canvas.legend(handles=handles, ncols=len(handles), **where)
    while made.get_window_extent().width > canvas.bbox.width and rows < len(handles):
        rows += 1
        made.remove()
        made = canvas.legend(handles=handles, ncols=-(-len(handles) // rows), **where)
    return rows + sum(text.count("\n") for text, _ in entries)


def counted_label(label: str, n: int, planned: int, noun: str, notes: list[str]) -> str:
    """A group's label, with "n of planned" if it lacks some, which is then added to the notes."""
    if n == planned:
        return label
    notes.append(f"{label}, {n} of {planned} {noun}")
    return notes[-1]


def gap_sentences(absent: Sequence[str], notes: Sequence[str]) -> list[str]:
    """Sentences for a caption: the groups that did not record the metric, and what the others lack."""
    texts = [f"Not recorded by {', '.join(absent)}."] if absent else []
    return texts + ([f"Incomplete: {'; '.join(notes)}."] if notes else [])


def brief(label: str, letters: int) -> str:
    """A label cut to a number of characters, with an ellipsis."""
    return label if len(label) <= letters else f"{label[: letters - 1].rstrip()}…"


def logarithmic(axes: Axes, direction: str, values: Array) -> bool:
    """Make the "x" or "y" axis logarithmic if its positive values (n,) span too much for a linear one, and return
    whether it is. A few values near zero, as of a distance at its start, make no axis logarithmic."""
    from matplotlib.ticker import NullFormatter

    low, most, high = np.nanquantile(values, (0.0, 0.05, 1.0))
    if not (low > 0 and _SPAN * most < high < _HIGHEST and most < _SPAN * low):
        return False
    axes.set(**{f"{direction}scale": "log"})
    axis = axes.xaxis if direction == "x" else axes.yaxis
    axis.set_major_formatter("{x:g}")  # the default formatter would write TeX
    axis.set_minor_formatter(NullFormatter())
    return True


def save(sketches: Sequence[Sketch]) -> list[Sketch]:
    """Lay the drawings out, so that they can be rendered, and return them, each with a name of its own. A canvas with a
    layout engine would be laid out again, with another drawing, for every format."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    laid: dict[str, Sketch] = {}  # by the names of their files, which may have no case
    for sketch in sketches:
        ConstrainedLayoutEngine().execute(sketch.canvas)
        name = next(name for n in count(1) if (name := sketch.name + f"_{n}" * (n > 1)).casefold() not in laid)
        laid[name.casefold()] = replace(sketch, name=name)
    return [*laid.values()]


def _marked(match: re.Match[str]) -> str:
    _, seed, group = match.groups()
    return f'<g data-group="{group}"' + (f' data-seed="{seed}">' if seed else ">")

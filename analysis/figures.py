"""The figures of a report: learning curves of each metric, and the paired differences. Drawn once, saved as SVG, PDF
and PNG.

Same input, same bytes: no dates, no random ids. Every method's artists carry a group id (gid), so that a page can hide
them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from analysis.metrics import describe
from analysis.read import Run
from analysis.study import Block, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Array = NDArray[np.float64]
# Okabe and Ito's palette, told apart with any common colour blindness; the yellow is left out, it fades on white paper.
PALETTE = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
Dash = str | tuple[int, tuple[float, ...]]
_DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))
_INK, _GRID = "#1a1a1b", "#d8d8d9"  # replaced by the page's own colours where a figure stands in a page
_POINTS = 400  # a curve of more points than that is averaged in bins: no screen or printer shows more
_LEGEND = 100  # letters in a line of the legend
_STYLE: dict[str, object] = {
    "svg.hashsalt": "rlsweep", "svg.fonttype": "none", "pdf.fonttype": 42, "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": _GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "axes.unicode_minus": False, "path.simplify_threshold": 0.2,
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A drawn figure.

    files: suffix -> bytes; caption says what is drawn and what is missing; inline: SVG to stand in a page.
    """

    name: str
    title: str
    caption: str
    files: Mapping[str, bytes]
    inline: str


@dataclass(frozen=True)
class Series:
    """A group's curves, averaged over the cells of each seed. whole: (seeds, steps); partial: curves that end early."""

    group: str
    label: str
    colour: str
    dash: Dash
    steps: Array
    whole: Array
    partial: tuple[tuple[Array, Array], ...]
    planned: int
    smoothing: int


def colours(groups: Sequence[str]) -> dict[str, tuple[str, Dash]]:
    """Colour and line style of each group, the baseline (first) in black; beyond seven groups the line styles
    change."""
    n = len(PALETTE)
    return {group: (PALETTE[i % n], _DASHES[(i // n) % len(_DASHES)]) for i, group in enumerate(groups)}


def figures(study: Study) -> list[Figure]:
    """Learning curves of every declared metric, then the differences on the primary measure."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_STYLE):
        drawn = [_curves(study, metric) for metric in study.settings.metrics]
        differences = _differences(study.primary, study)
        return [*([differences] if differences else []), *(figure for figure in drawn if figure is not None)]


def series(study: Study, metric: str) -> list[Series]:
    """The curves of one metric, a group each; a seed whose cells are not all there is no whole curve."""
    look = colours(study.sweep.groups)
    found = []
    for group in study.sweep.groups:
        runs = [run for run in study.sweep.runs if run.group == group]
        seeds = sorted({run.seed for run in runs})
        curves, partial = [], []
        for seed in seeds:
            members = [run for run in runs if run.seed == seed]
            inside = [study.ranges[metric].curves.get(run.id) for run in members]
            if all(curve is not None for curve in inside):
                curves.append(_average([curve for curve in inside if curve is not None]))
            elif len(members) == 1 and (cut := _recorded(members[0], metric)) is not None:
                partial.append(cut)
        steps = np.unique(np.concatenate([curve[0] for curve in curves])) if curves else np.empty(0)
        whole = np.array([_on(steps, curve) for curve in curves]).reshape(len(curves), steps.size)
        steps, whole = _thin(steps, whole)
        width = _smoothing(steps.size)
        whole = np.array([smooth(row, width) for row in whole]).reshape(whole.shape)
        ends = tuple((x, smooth(y, _smoothing(y.size))) for x, y in partial)
        found.append(Series(group, study.sweep.label(group), *look[group], steps, whole, ends, len(seeds), width))
    return found


def _average(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    steps = curves[0][0]
    for other, _ in curves[1:]:
        steps = np.intersect1d(steps, other)
    return steps, np.mean([values[np.isin(own, steps)] for own, values in curves], axis=0)


def _recorded(run: Run, metric: str) -> tuple[Array, Array] | None:
    values = run.curves.values.get(metric)
    if values is None or not np.isfinite(values).any():
        return None
    kept = np.isfinite(values)
    return run.curves.steps[kept], values[kept]


def _on(steps: Array, curve: tuple[Array, Array]) -> Array:
    """The curve on these steps, NaN where it has no point: a mean over fewer seeds is never drawn."""
    row = np.full(steps.size, np.nan)
    row[np.searchsorted(steps, curve[0])] = curve[1]
    return row


def _thin(steps: Array, whole: Array) -> tuple[Array, Array]:
    width = -(-steps.size // _POINTS)
    if width <= 1:
        return steps, whole
    n = steps.size // width * width
    return steps[:n].reshape(-1, width).mean(axis=1), whole[:, :n].reshape(len(whole), -1, width).mean(axis=2)


def _smoothing(points: int) -> int:
    """An odd number of points, about a thirtieth of the curve."""
    return max(1, points // 30) // 2 * 2 + 1


def smooth(row: Array, width: int) -> Array:
    """Centred mean over `width` points (odd), fewer near the ends, the same on both sides; a NaN spreads no further."""
    place = np.arange(row.size)
    reach = np.minimum(width // 2, np.minimum(place, row.size - 1 - place))
    total = np.zeros(row.size)
    for shift in range(-(width // 2), width // 2 + 1):
        inside = np.abs(shift) <= reach
        total[inside] += row[place[inside] + shift]
    return np.asarray(total / (2 * reach + 1))


def band(whole: Array, alpha: float) -> tuple[Array, Array | None]:
    """Mean (steps,) of whole (seeds, steps) and half width (steps,) of its t interval; None with fewer than two
    seeds."""
    mean = whole.mean(axis=0)
    n = len(whole)
    if n < 2:
        return mean, None
    return mean, float(special.stdtrit(n - 1, 1 - alpha / 2)) * whole.std(axis=0, ddof=1) / np.sqrt(n)


def _curves(study: Study, metric: str) -> Figure | None:
    found = series(study, metric)
    if not any(s.whole.size or s.partial for s in found):
        return None
    about = describe(metric)
    canvas, axes = _canvas(7.0, 3.9)
    gaps = []
    tops, bottoms = [], []
    for s in found:
        style: dict[str, Any] = {"color": s.colour, "linestyle": s.dash, "solid_capstyle": "round"}
        if len(s.whole):
            mean, half = band(s.whole, study.settings.alpha)
            tops.append(np.nanmax(s.whole))
            bottoms.append(np.nanmin(s.whole))
            if half is not None:
                axes.fill_between(
                    s.steps, mean - half, mean + half, color=s.colour, alpha=0.13, linewidth=0, gid=f"band--{s.group}"
                )
            for i, row in enumerate(s.whole):
                axes.plot(s.steps, row, linewidth=0.6, alpha=0.35, gid=f"seed{i}--{s.group}", **style)
            count = "" if len(s.whole) == s.planned else f", {len(s.whole)} of {s.planned} seeds"
            axes.plot(s.steps, mean, linewidth=1.9, label=f"{s.label}{count}", gid=f"mean--{s.group}", **style)
        for i, (steps, values) in enumerate(s.partial):
            tops.append(np.nanmax(values))
            bottoms.append(np.nanmin(values))
            axes.plot(steps, values, linewidth=0.9, gid=f"cut{i}--{s.group}", color=s.colour, linestyle=":")
            axes.plot(steps[-1:], values[-1:], "x", markersize=6, color=s.colour, gid=f"end{i}--{s.group}")
        if len(s.whole) < s.planned:
            gaps.append(f"{s.label}: {len(s.whole)} of {s.planned} seeds")
    # Bands of three seeds may reach far beyond all data in a noisy step: the axis follows the data, and cuts the bands.
    low, high = min(bottoms), max(tops)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlabel("step")
    axes.set_ylabel(about.axis)
    axes.margins(x=0.01)
    names = axes.get_legend_handles_labels()[1]
    if names:
        columns = max(1, min(len(names), _LEGEND // (max(map(len, names)) + 6)))
        canvas.legend(loc="outside upper left", ncols=columns, handlelength=2.2, columnspacing=1.4)
    level = f"{100 * (1 - study.settings.alpha):g}%"
    caption = (
        f"{about.axis[:1].upper()}{about.axis[1:]} against steps: mean over seeds (thick), its {level} t interval, "
    )
    caption += "each seed behind it (thin)."
    width = max((s.smoothing for s in found if s.whole.size), default=1)
    if width > 1:
        caption += f" Every point is a centred mean over {width} points."
    if gaps:
        caption += f" Missing: {'; '.join(gaps)}; a dotted line is a run without full result, the cross where it ends."
    if about.caveat:
        caption += f" {about.label[:1].upper()}{about.label[1:]}: {about.caveat}."
    return _save("curve_" + re.sub(r"[^A-Za-z0-9]+", "_", metric).strip("_"), about.axis, caption, canvas)


def _differences(block: Block, study: Study) -> Figure | None:
    shown = [c for c in block.comparisons if c.result.mean_difference is not None]
    if not shown:
        return None
    look = colours(study.sweep.groups)
    canvas, axes = _canvas(7.0, 1.15 + 0.42 * len(shown))
    axes.axvline(0, color=_INK, linewidth=0.9)
    labels = []
    for place, comparison in enumerate(reversed(shown)):
        colour, result, group = look[comparison.group][0], comparison.result, comparison.group
        d = np.subtract(comparison.a, comparison.b)
        dots: dict[str, Any] = {"markersize": 3.6, "markeredgewidth": 0, "alpha": 0.55}
        axes.plot(d, np.full(d.size, place - 0.16), "o", color=colour, gid=f"seeds--{group}", **dots)
        if result.interval is not None:
            axes.plot(result.interval, (place, place), color=colour, linewidth=2.0, gid=f"interval--{group}")
        axes.plot([result.mean_difference or 0.0], [place], "D", markersize=6, color=colour, gid=f"mean--{group}")
        count = "" if not comparison.gaps else f" (n = {result.n})"
        labels.append(study.sweep.label(group) + count)
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.grid(False, axis="y")
    measure = block.measure
    unit = f" ({measure.unit})" if measure.unit else ""
    baseline = study.sweep.label(shown[0].baseline)
    axes.set_xlabel(f"{measure.title}, difference to {baseline}{unit}")
    level = f"{100 * (1 - study.settings.alpha):g}%"
    sides = {"higher": " Right of the line is better.", "lower": " Left of the line is better."}
    caption = (
        f"{measure.title[:1].upper()}{measure.title[1:]}, difference to {baseline} over the same seeds: mean (diamond) "
        f"with its {level} t interval, each seed as a dot.{sides.get(measure.better or '', '')}"
    )
    return _save("differences", "Differences to the baseline", caption, canvas)


def _canvas(width: float, height: float) -> tuple[Canvas, Axes]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height), layout="constrained")
    canvas.patch.set_alpha(0)
    axes = canvas.add_subplot()
    axes.patch.set_alpha(0)
    return canvas, axes


def _save(name: str, title: str, caption: str, canvas: Canvas) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(canvas)
    canvas.canvas.draw()
    canvas.set_layout_engine("none")  # laid out once, not again for every format
    files = {}
    for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("pdf", {"CreationDate": None}), ("png", {})):
        out = io.BytesIO()
        if suffix == "svg":
            canvas.savefig(out, format=suffix, metadata=metadata)
            inline = _inline(name, title, out.getvalue().decode())
            files[suffix] = out.getvalue()
            continue
        canvas.savefig(out, format=suffix, metadata=metadata, dpi=160, facecolor="white")
        files[suffix] = out.getvalue()
    return Figure(name, title, caption, files, inline)


def _inline(name: str, title: str, svg: str) -> str:
    """The SVG for a page: ids made unique, ink and grid in the page's colours, groups marked for its script, named for
    a reader."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r'<g id="[a-z]+\d*--([^"]*)">', r'<g data-group="\1">', svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    for colour in (_INK, "#000000"):
        svg = svg.replace(colour, "currentColor")
    svg = svg.replace(_GRID, "var(--grid)").replace("'DejaVu Sans'", "inherit")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', svg, count=1)

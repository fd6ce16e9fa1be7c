"""The figures of a report: learning curves of one metric or of several together, and the paired differences.

Every method's artists carry a group id (gid), so that a page can hide them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.drawing import DASHES, INK, NEUTRAL, STYLE, Dash, Figure, canvas_of, colours, legend, save
from analysis.metrics import Metric, capital, caveats, describe
from analysis.series import Array, Series, band, series
from analysis.study import Block, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = (None, "o", "s", "^")  # of groups of one colour, in the order of DASHES
_Y_LABEL = 40  # letters in a line of the y axis' label


def figures(study: Study) -> list[Figure]:
    """The differences on the primary measure, then the curves of every metric to be drawn."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(STYLE):
        drawn = [_curves(study, keys) for keys in study.settings.drawn]
        differences = _differences(study.primary, study)
        return [*([differences] if differences else []), *(figure for figure in drawn if figure is not None)]


def _curves(study: Study, keys: Sequence[str]) -> Figure | None:
    """Of the first metric the seeds, interval and mean of every group, of each further one the mean; None if empty."""
    about = [describe(key) for key in keys]
    found = [series(study, key) for key in keys]
    canvas, axes = canvas_of(7.0, 3.9)
    shown: list[Array] = []
    entries: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for of in zip(*found, strict=True):
        look = _look(study, of[0].group, len(keys) > 1)
        for place, s in enumerate(of):
            drawn = _mean(axes, s, place, look) if place else _first(axes, s, look, study.settings.alpha)
            if drawn:
                count = f", {len(s.whole)} of {s.planned} seeds" if s.short else ""
                entries.setdefault(s.group, (f"{s.label}{count}", {**look, "linewidth": 1.9}))
            shown += drawn
    if not shown:
        return None
    # Bands of three seeds may reach far beyond all data in a noisy step: the axis follows the data, and cuts the bands.
    low, high = min(float(np.nanmin(values)) for values in shown), max(float(np.nanmax(values)) for values in shown)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlabel("step")
    axes.set_ylabel(_y_label(about))
    axes.margins(x=0.01)
    rows = legend(canvas, "upper", list(entries.values()))
    if len(keys) > 1:
        lines = [{"color": NEUTRAL, "linestyle": _dash(i), "linewidth": _width(i)} for i in range(len(keys))]
        rows += legend(canvas, "lower", [(metric.label, line) for metric, line in zip(about, lines, strict=True)])
    canvas.set_figheight(3.7 + 0.2 * rows)  # legends take nothing from the axes
    name = "__".join(re.sub(r"[^A-Za-z0-9]+", "_", key).strip("_") for key in keys)
    caption = _caption(about, found, study.settings.alpha)
    return save(f"curve_{name}", "; ".join(metric.axis for metric in about), caption, canvas)


def _look(study: Study, group: str, combined: bool) -> dict[str, Any]:
    """A group's colour and line style; a combined figure needs line styles for its metrics and has markers instead."""
    colour, dash = colours(study.sweep.groups)[group]
    look: dict[str, Any] = {"color": colour, "linestyle": dash, "solid_capstyle": "round"}
    return {**look, "linestyle": "-", "marker": _MARKS[DASHES.index(dash)], "markersize": 4} if combined else look


def _dash(place: int) -> Dash:
    """Of a combined figure's metrics: solid, dashed, then a dot more each; dots alone are a run without full result."""
    return (0, (4.0, 1.4, *(1.0, 1.4) * (place - 1))) if place else "-"


def _width(place: int) -> float:
    return 1.5 if place else 1.9


def _mean(axes: Axes, s: Series, place: int, look: Mapping[str, Any]) -> list[Array]:
    """Draw a group's mean over seeds of the metric in that place; what the y axis must include."""
    if not s.whole.size:
        return []
    mean = s.whole.mean(axis=0)
    style = {**look, "linestyle": _dash(place)} if place else look
    name = f"metric{place}" if place else "mean"
    every = max(1, s.steps.size // 10)
    axes.plot(s.steps, mean, linewidth=_width(place), gid=f"{name}--{s.group}", markevery=every, **style)
    return [mean] if np.isfinite(mean).any() else []


def _first(axes: Axes, s: Series, look: Mapping[str, Any], alpha: float) -> list[Array]:
    """Draw a group's seeds, interval, mean, and runs without full result; what the y axis must include."""
    if s.whole.size:
        mean, half = band(s.whole, alpha)
        if half is not None:
            low, high = mean - half, mean + half
            axes.fill_between(s.steps, low, high, color=look["color"], alpha=0.13, linewidth=0, gid=f"band--{s.group}")
        for i, row in enumerate(s.whole):
            thin = {**look, "linewidth": 0.6, "alpha": 0.35, "marker": None}
            axes.plot(s.steps, row, gid=f"seed{i}--{s.group}", **thin)
        _mean(axes, s, 0, look)
    for i, (steps, values) in enumerate(s.partial):
        axes.plot(steps, values, linewidth=0.9, gid=f"cut{i}--{s.group}", color=look["color"], linestyle=":")
        axes.plot(steps[-1:], values[-1:], "x", markersize=6, color=look["color"], gid=f"end{i}--{s.group}")
    return [values for values in (s.whole, *(values for _, values in s.partial)) if np.isfinite(values).any()]


def _y_label(about: Sequence[Metric]) -> str:
    """The unit that several metrics have in common, for a legend names them; else every metric with its unit."""
    units = {metric.unit for metric in about}
    common = len(about) > 1 and len(units) == 1 and units != {""}
    texts = units if common else [metric.axis for metric in about]
    whole = [re.sub(r"\([^()]+\)$", lambda unit: unit[0].replace(" ", "\N{NO-BREAK SPACE}"), text) for text in texts]
    return ";\n".join(textwrap.fill(text, _Y_LABEL, break_on_hyphens=False) for text in whole)


def _caption(about: Sequence[Metric], found: Sequence[Sequence[Series]], alpha: float) -> str:
    """What is drawn and how, which groups do not have it, what is missing, and what a reader must know."""
    texts = [
        f"{capital(about[0].axis)} against steps: mean over seeds (thick), its {100 * (1 - alpha):g}% t interval, "
        "each seed behind it (thin)."
    ]
    if len(about) > 1:
        texts.append(f"In broken lines, the mean over seeds alone: {'; '.join(metric.axis for metric in about[1:])}.")
    width = max((s.smoothing for of in found for s in of if s.whole.size), default=1)
    if width > 1:
        texts.append(f"Every point is a centred mean over {width} points.")
    texts += _absent(about, found)
    gaps = [_gaps(about, of) for of in zip(*found, strict=True)]
    if any(gaps):
        dotted = any(s.partial for s in found[0])
        how = "; a dotted line is a run without full result, the cross where it ends" if dotted else ""
        texts.append(f"Missing: {'; '.join(gap for of in gaps for gap in of)}{how}.")
    return " ".join([*texts, *caveats([metric.key for metric in about])])


def _absent(about: Sequence[Metric], found: Sequence[Sequence[Series]]) -> list[str]:
    """Which groups have not recorded a metric, a sentence for all metrics that the same groups lack."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for metric, of in zip(about, found, strict=True):
        lacking.setdefault(tuple(s.label for s in of if not s.recorded), []).append(metric.label)
    texts = []
    for labels, metrics in lacking.items():
        if labels:
            text = f"not recorded by {', '.join(labels)}."
            texts.append(capital(f"{'; '.join(metrics)}: {text}" if len(about) > 1 else text))
    return texts


def _gaps(about: Sequence[Metric], of: Sequence[Series]) -> list[str]:
    """The seeds that a group lacks: once where it is so for all metrics that it has, else with each metric's name."""
    texts = {}
    for metric, s in zip(about, of, strict=True):
        if s.recorded:
            silent = f", not recorded by seed {', '.join(map(str, s.silent))}" if s.silent else ""
            texts[metric.label] = f"{s.label}: {len(s.whole)} of {s.planned} seeds{silent}" if s.short else ""
    if len(set(texts.values())) == 1:
        return [text for text in set(texts.values()) if text]
    return [f"{label}, {text}" for label, text in texts.items() if text]


def _differences(block: Block, study: Study) -> Figure | None:
    shown = [c for c in block.comparisons if c.result.mean_difference is not None]
    if not shown:
        return None
    look = colours(study.sweep.groups)
    canvas, axes = canvas_of(7.0, 1.15 + 0.42 * len(shown))
    axes.axvline(0, color=INK, linewidth=0.9)
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
        f"{capital(measure.title)}, difference to {baseline} over the same seeds: mean (diamond) "
        f"with its {level} t interval, each seed as a dot.{sides.get(measure.better or '', '')}"
    )
    return save("differences", "Differences to the baseline", caption, canvas)

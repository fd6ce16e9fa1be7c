"""Learning curves: of one metric, of several together, and of a mean with the spread behind it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.data.run_values import CLOCK
from analysis.figures.canvas import MANY, NEUTRAL, TOGETHER, Dash, Sketch, canvas_of, legend, look_of
from analysis.figures.rendering import DPI
from analysis.figures.series import Array, Series, band, series
from analysis.findings.study import Study
from analysis.spec.figure_spec import Picture
from analysis.spec.metric_catalog import Metric, capital, caveats, describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Y_LABEL = 40  # letters in a line of the y axis' label
_MEAN = "mean over seeds"
_FEW = 20  # points of a curve, up to which each is marked


def curves(study: Study, picture: Picture) -> Sketch | None:
    """Of the first metric the seeds, interval and mean of every group, of each further one the mean; None if empty."""
    keys = picture.metrics
    about = [describe(key) for key in keys]
    found = [series(study, key) for key in keys]
    canvas, axes = canvas_of(7.0, 3.9)
    many = sum(len(s.seeds) for s in found[0]) > MANY
    thin = _bundle if many else _each
    shown: list[Array] = []
    entries: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for of in zip(*found, strict=True):
        look = look_of(study.sweep.groups, of[0].group, len(keys) > 1)
        for place, s in enumerate(of):
            drawn = _mean(axes, s, place, look) if place else _first(axes, s, look, study.settings.alpha, thin)
            if drawn:
                entries.setdefault(s.group, (_entry(s), {**look, "linewidth": 1.9}))
            shown += drawn
    if not shown:
        return None
    _frame(axes, shown, study, _y_label(about))
    rows = legend(canvas, "upper", list(entries.values()))
    if len(keys) > 1:
        lines = [{"color": NEUTRAL, "linestyle": _dash(i), "linewidth": _width(i)} for i in range(len(keys))]
        rows += legend(canvas, "lower", [(metric.label, line) for metric, line in zip(about, lines, strict=True)])
    canvas.set_figheight(3.7 + 0.2 * rows)  # legends take nothing from the axes
    intervals = {f"mean--{s.group}": span for s in found[0] if (span := _span(s, study.settings.alpha)) is not None}
    low, high = axes.get_ylim()
    cut = any((below < low).any() or (above > high).any() for below, above in intervals.values())
    caption = _caption(study, about, found, many, cut)
    names = {"seed": about[0].axis, "cut": about[0].axis, "mean": about[0].axis}
    names |= {f"metric{place}": metric.axis for place, metric in enumerate(about)}
    title = "; ".join(metric.axis for metric in about)
    return Sketch(picture.name, title, caption, canvas, intervals, names)


def _span(s: Series, alpha: float) -> tuple[Array, Array] | None:
    if not s.whole.size:
        return None
    mean, half = band(s.whole, alpha)
    return None if half is None else (mean - half, mean + half)


def spread(study: Study, picture: Picture) -> Sketch | None:
    """Of every group the mean of the first metric, and the second, a standard deviation, about it; None if empty."""
    about = [describe(key) for key in picture.metrics]
    found = [series(study, key) for key in picture.metrics]
    canvas, axes = canvas_of(7.0, 3.9)
    shown: list[Array] = []
    entries = []
    for centre, width in zip(*found, strict=True):
        shared = np.intersect1d(centre.steps, width.steps)
        if not shared.size:
            continue
        look = look_of(study.sweep.groups, centre.group, False)
        inside = np.isin(centre.steps, shared)
        x, mean = centre.axis[inside], centre.whole[:, inside].mean(axis=0)
        std = width.whole[:, np.isin(width.steps, shared)].mean(axis=0)
        fill: dict[str, Any] = {"color": look["color"], "alpha": 0.1, "linewidth": 0}
        axes.fill_between(x, mean - std, mean + std, gid=f"band--{centre.group}", **fill)
        for place, edge in enumerate((mean - std, mean + std)):
            side: dict[str, Any] = {
                **look,
                "linewidth": 0.7,
                "alpha": 0.7,
                "label": f"{'mean +' if place else 'mean -'} std",
            }
            axes.plot(x, edge, gid=f"edge{place}--{centre.group}", **side)
        axes.plot(x, mean, linewidth=1.9, gid=f"mean--{centre.group}", label=_MEAN, **_marked(look, x.size))
        entries.append((_entry(centre), {**look, "linewidth": 1.9}))
        shown += [mean - std, mean + std]
    if not shown:
        return None
    _frame(axes, shown, study, _y_label(about[:1]))
    canvas.set_figheight(3.7 + 0.2 * legend(canvas, "upper", entries))
    texts = [
        f"{capital(about[0].axis)} against {_passing(study)}: mean over seeds. The band is one standard deviation to "
        f"either side, {about[1].label}, mean over seeds: a spread within a step, not an interval of the mean.",
        *_missing(about, found, False),
        *caveats(picture.metrics),
    ]
    return Sketch(picture.name, f"{about[0].axis}, with {about[1].label}", " ".join(texts), canvas)


def _frame(axes: Axes, shown: Sequence[Array], study: Study, label: str) -> None:
    """Limits and labels. Bands of three seeds may reach far beyond all data in a noisy step: the axis follows the data,
    and cuts the bands."""
    low, high = min(float(np.nanmin(values)) for values in shown), max(float(np.nanmax(values)) for values in shown)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlabel("step" if study.settings.axis == "steps" else describe(CLOCK).label)
    axes.set_ylabel(label)
    axes.margins(x=0.01)


def _passing(study: Study) -> str:
    return "steps" if study.settings.axis == "steps" else describe(CLOCK).label


def _entry(s: Series) -> str:
    return s.label + (f", {len(s.whole)} of {s.planned} seeds" if s.short else "")


def _marked(look: Mapping[str, Any], points: int) -> dict[str, Any]:
    """A curve of few points shows where it was measured; of one, that it is there."""
    if points > _FEW or look.get("marker"):
        return dict(look)
    return {**look, "marker": ".", "markersize": 5}


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
    style = {**_marked(look, s.steps.size), **({"linestyle": _dash(place)} if place else {})}
    name = f"metric{place}" if place else "mean"
    every = max(1, s.steps.size // 10)
    named: dict[str, Any] = {**style, "gid": f"{name}--{s.group}", "label": _MEAN}
    axes.plot(s.axis, mean, linewidth=_width(place), markevery=every, **named)
    return [mean] if np.isfinite(mean).any() else []


_Thin = Callable[["Axes", Series, Mapping[str, Any]], None]  # draws the seeds of a group


def _each(axes: Axes, s: Series, look: Mapping[str, Any]) -> None:
    for seed, row in zip(s.seeds, s.whole, strict=True):
        thin = {**look, "linewidth": 0.6, "alpha": 0.35, "marker": None, "label": f"seed {seed}"}
        axes.plot(s.axis, row, gid=f"seed.{seed}--{s.group}", **thin)


def _bundle(axes: Axes, s: Series, look: Mapping[str, Any]) -> None:
    from analysis.figures.dense_artists import Bundle

    rows = {f"seed.{n}--{s.group}": (f"seed {n}", s.axis, row) for n, row in zip(s.seeds, s.whole, strict=True)}
    # Behind every mean, and so pale that these are seen.
    thin = {"color": look["color"], "linewidth": 0.6, "alpha": 0.35, "paleness": 0.4, "zorder": 1.5}
    axes.add_artist(Bundle(f"seeds--{s.group}", rows, thin, DPI))


def _first(axes: Axes, s: Series, look: Mapping[str, Any], alpha: float, thin: _Thin) -> list[Array]:
    """Draw a group's seeds, interval, mean, and runs without full result; what the y axis must include."""
    if s.whole.size:
        if (span := _span(s, alpha)) is not None:
            axes.fill_between(s.axis, *span, color=look["color"], alpha=0.13, linewidth=0, gid=f"band--{s.group}")
        thin(axes, s, look)
        _mean(axes, s, 0, look)
    for seed, (steps, values) in s.partial.items():
        cut: dict[str, Any] = {"color": look["color"], "linestyle": ":", "label": f"seed {seed}, without full result"}
        axes.plot(steps, values, linewidth=0.9, gid=f"cut.{seed}--{s.group}", **cut)
        axes.plot(steps[-1:], values[-1:], "x", markersize=6, color=look["color"], gid=f"end.{seed}--{s.group}")
    drawn = (s.whole, *(values for _, values in s.partial.values()))
    return [values for values in drawn if np.isfinite(values).any()]


def _y_label(about: Sequence[Metric]) -> str:
    """The unit that several metrics have in common, for a legend names them; else every metric with its unit."""
    units = {metric.unit for metric in about}
    common = len(about) > 1 and len(units) == 1 and units != {""}
    texts = units if common else [metric.axis for metric in about]
    whole = [re.sub(r"\([^()]+\)$", lambda unit: unit[0].replace(" ", "\N{NO-BREAK SPACE}"), text) for text in texts]
    return ";\n".join(textwrap.fill(text, _Y_LABEL, break_on_hyphens=False) for text in whole)


def _caption(study: Study, about: Sequence[Metric], found: Sequence[Sequence[Series]], many: bool, cut: bool) -> str:
    """What is drawn and how, which groups do not have it, what is missing, and what a reader must know; cut: whether
    an interval goes on beyond the axes."""
    whole = [s for s in found[0] if s.whole.size]
    lone = [s.label for s in whole if len(s.whole) == 1]
    interval = f"its {100 * (1 - study.settings.alpha):g}% t interval, " if len(lone) < len(whole) else ""
    texts = [
        f"{capital(about[0].axis)} against {_passing(study)}: mean over seeds (thick), {interval}each seed behind it "
        "(thin)."
    ]
    if lone:
        texts.append(f"One seed has no interval{': ' + ', '.join(lone) if interval else ''}.")
    if cut:
        texts.append("The axis follows the seeds: intervals that go beyond it are cut.")
    if len(about) > 1:
        texts.append(f"In broken lines, the mean over seeds alone: {'; '.join(metric.axis for metric in about[1:])}.")
    if many:
        texts.append(TOGETHER)
    width = max((s.smoothing for of in found for s in of if s.whole.size), default=1)
    if width > 1:
        texts.append(f"Every point is a centred mean over {width} points.")
    texts += _missing(about, found, any(s.partial for s in found[0]))
    return " ".join([*texts, *caveats([metric.key for metric in about])])


def _missing(about: Sequence[Metric], found: Sequence[Sequence[Series]], dotted: bool) -> list[str]:
    """Which groups do not have a metric, and which seeds are missing; dotted: whether what they have is drawn."""
    texts = _absent(about, found)
    gaps = [_gaps(about, of) for of in zip(*found, strict=True)]
    if any(gaps):
        how = "; a dotted line is a run without full result, the cross where it ends" if dotted else ""
        texts.append(f"Missing: {'; '.join(gap for of in gaps for gap in of)}{how}.")
    return texts


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

"""Figures of learning curves: of one metric or several, of each level of a factor, and of a mean with a band for its
spread."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.data import cells
from analysis.data.sweep import Run, Sweep
from analysis.figures.canvas import (
    MANY,
    NEUTRAL,
    SIMULTANEOUS,
    TOGETHER,
    Dash,
    Sketch,
    canvas_of,
    legend,
    logarithmic,
    style_of,
)
from analysis.figures.traces import intervals_of, tell, tell_members
from analysis.findings.study import Study
from analysis.spec.cell import grouped
from analysis.spec.figure_spec import Picture
from analysis.spec.figure_spec import curves as picture_of
from analysis.spec.metric_catalog import CLOCKS, Metric, capital, caveats, describe
from analysis.spec.registry import figure
from analysis.stats import strata
from analysis.stats.curve_summaries import LARGEST, block_means
from analysis.stats.mean_curves import on_grid, simultaneous
from analysis.stats.numbers import Array, format_level
from analysis.tables.levels import varied
from analysis.tables.wording import all_levels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Span = tuple[Array, Array] | None  # low and high of a band
_Y_LABEL = 40  # most letters in a line of the y axis' label
_MEAN = "mean over seeds"
_WIDTHS = (1.9, 1.5)  # line widths: the first metric of a figure, and the others
_DRAWN = 150  # most seeds drawn of a method: more show nothing new, and hundreds take a quarter of a report's time
_BAND = (
    "A band holds the whole true curve that its mean estimates, if luck is nearly normal; bands are not adjusted for "
    "the number of methods."
)
_CUT = "The axis follows the seeds: bands that go beyond it are cut."
_MOST = 8  # most curves that colours can tell apart
_FEW = 20  # most points of a curve each of which is marked


@figure("curves")
def curves(study: Study, picture: Picture) -> Sketch | None:
    """Seeds, band and mean of the first metric for every group, and the mean of each further metric; None if no group
    has any."""
    keys = picture.metrics
    about = [describe(key) for key in keys]
    each = [series(study, key) for key in keys]
    canvas, axes = canvas_of(7.0, 3.9)
    many = sum(len(s.seeds) for s in each[0]) > MANY
    shown: list[Array] = []
    entries: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for of_group in zip(*each, strict=True):
        look = style_of(study.sweep.groups, of_group[0].group, len(keys) > 1)
        for number, s in enumerate(of_group):
            drawn = _mean(axes, s, number, look) if number else _first(axes, s, look, study.settings.alpha, many)
            if drawn:
                entries.setdefault(s.group, (_entry(s), {**look, "linewidth": 1.9}))
            shown += drawn
    if not shown:
        return None
    _frame(axes, shown, study, _y_label(about))
    rows = legend(canvas, "upper", list(entries.values()))
    if len(keys) > 1:
        lines = [{"color": NEUTRAL, "linestyle": _dash(i), "linewidth": _WIDTHS[i > 0]} for i in range(len(keys))]
        rows += legend(canvas, "lower", [(metric.label, line) for metric, line in zip(about, lines, strict=True)])
    canvas.set_figheight(3.7 + 0.2 * rows)  # inches: the axes keep their height
    low, high = axes.get_ylim()
    cut = any(bool((below < low).any() or (above > high).any()) for below, above in intervals_of(axes))
    caption = _caption(study, about, each, many, cut)
    names = {"seed": about[0].axis, "cut": about[0].axis, "mean": about[0].axis}
    names |= {f"metric{number}": metric.axis for number, metric in enumerate(about)}
    title = "; ".join(metric.axis for metric in about)
    return Sketch(picture.name, title, caption, canvas, names, bounds=SIMULTANEOUS)


@figure("levels")
def levels(study: Study, picture: Picture) -> Sketch | None:
    """Seeds, band and mean of the first metric at each level of each method's only factor; a method with no or several
    factors has one curve. None if no method has exactly one factor of two levels or more, or with too many curves."""
    metric = picture.metrics[0]
    silent = study.ranges[metric].absent
    apart = by_level(replace(study.sweep, runs=tuple(run for run in study.sweep.runs if run.group not in silent)))
    if apart is None or len(set(apart.groups) - set(silent)) > _MOST:
        return None
    if (sketch := curves(replace(study, sweep=apart), picture_of(metric))) is None:
        return None
    return replace(sketch, name=picture.name, title=f"{sketch.title} by level", kind=picture.kind)


def by_level(sweep: Sweep) -> Sweep | None:
    """The sweep with each level of a method's only varied factor as a group of its own, whose cells lack that factor.
    Methods with no or several such factors stay as they are; None if all do."""
    groups: dict[str, Any] = {}
    runs: list[Run] = []
    split = False
    for group in sweep.groups:
        factors = varied(sweep, group)
        if len(factors) != 1:
            groups[group] = sweep.plan["groups"][group]
            runs += sweep.runs_of(group)
            continue
        split = True
        (factor,) = factors
        for run in sweep.runs_of(group):
            level = dict(run.cell)[factor]
            name = f"{group}.{factor}.{level}"
            groups.setdefault(name, {"label": f"{sweep.label(group)}, {factor} = {level}"})
            runs.append(replace(run, group=name, cell=tuple(item for item in run.cell if item[0] != factor)))
    return replace(sweep, plan={**sweep.plan, "groups": groups}, runs=tuple(runs)) if split else None


@figure("band")
def spread(study: Study, picture: Picture) -> Sketch | None:
    """The mean of the first metric for every group, with a band of the second, a standard deviation, to either side.
    None if no group has both at a step."""
    about = [describe(key) for key in picture.metrics]
    both = [series(study, key) for key in picture.metrics]
    canvas, axes = canvas_of(7.0, 3.9)
    shown: list[Array] = []
    entries = []
    for centre, width in zip(*both, strict=True):
        inside = _within(centre, width)
        if not inside.any():
            continue
        look = style_of(study.sweep.groups, centre.group, False)
        x, mean = centre.axis[inside], centre.whole[:, inside].mean(axis=0)
        std = np.interp(centre.steps[inside], width.steps, width.whole.mean(axis=0))
        group = centre.group
        axes.fill_between(x, mean - std, mean + std, gid=f"band--{group}", color=look["color"], alpha=0.1, linewidth=0)
        for number, (edge, sign) in enumerate(((mean - std, "-"), (mean + std, "+"))):
            axes.plot(x, edge, gid=f"edge{number}--{group}", label=f"mean {sign} std", **look, linewidth=0.7, alpha=0.7)
        axes.plot(x, mean, linewidth=1.9, gid=f"mean--{group}", label=_MEAN, **_marked(look, x.size))
        entries.append((_entry(centre), {**look, "linewidth": 1.9}))
        shown += [mean - std, mean + std]
    if not shown:
        return None
    _frame(axes, shown, study, _y_label(about[:1]))
    canvas.set_figheight(3.7 + 0.2 * legend(canvas, "upper", entries))
    texts = [
        f"{capital(about[0].axis)} against {passing(study)}: mean over seeds. The band is one standard deviation to "
        f"either side, {about[1].label}, mean over seeds: a spread within a step, not an interval of the mean.",
        *all_levels(study.settings),
        *_common_steps(both),
        *_missing(about, both, False),
        *caveats(picture.metrics),
    ]
    return Sketch(picture.name, f"{about[0].axis}, with {about[1].label}", " ".join(texts), canvas)


def _within(centre: Series, width: Series) -> NDArray[np.bool_]:
    """At which steps of `centre` the band's `width` is known, (steps,): those that both have, or, if one of the two is
    interpolated, all in the range of `width`."""
    if not (centre.steps.size and width.steps.size):
        return np.zeros(centre.steps.size, dtype=bool)
    if centre.interpolated or width.interpolated:
        return np.asarray((centre.steps >= width.steps[0]) & (centre.steps <= width.steps[-1]))
    return np.asarray(np.isin(centre.steps, width.steps))


def _frame(axes: Axes, shown: Sequence[Array], study: Study, label: str) -> None:
    """Set limits and labels of the axes. The y axis holds the values `shown`. A band is cut there unless it is among
    them: that of three seeds may reach far beyond all curves. label: of the y axis."""
    low, high = min(float(np.nanmin(values)) for values in shown), max(float(np.nanmax(values)) for values in shown)
    if logarithmic(axes, "y", np.concatenate([values.ravel() for values in shown])):
        margin = min(10.0, (high / low) ** 0.06)
        axes.set_ylim(low / margin, high * margin)
    else:
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)
    axes.set_xlabel("step" if study.settings.axis == "steps" else passing(study))
    axes.set_ylabel(label)
    axes.margins(x=0.01)


def passing(study: Study) -> str:
    """What the x axis of a study's curves counts: steps, responses generated, or wall time (s)."""
    if study.settings.axis == "steps":
        return "steps"
    clock = describe(CLOCKS[study.settings.axis])
    return clock.label if clock.label.startswith(clock.unit) else clock.axis  # a label may begin with its unit


def _entry(s: Series) -> str:
    return s.label + (f", {len(s.whole)} of {s.planned} seeds" if s.short else "")


def _marked(look: Mapping[str, Any], points: int) -> dict[str, Any]:
    """The style of a curve, with markers if it has few points."""
    if points > _FEW or look.get("marker"):
        return dict(look)
    return {**look, "marker": ".", "markersize": 5}


def _dash(number: int) -> Dash:
    """The line style of a combined figure's metric number 0, 1, ...: solid, dashed, then one dot more each. (Dots alone
    mean a run without full result.)"""
    return (0, (4.0, 1.4, *(1.0, 1.4) * (number - 1))) if number else "-"


def _mean(axes: Axes, s: Series, number: int, look: Mapping[str, Any], span: Span = None) -> list[Array]:
    """Draw a group's mean over seeds of the figure's metric with this number; returns the curves that the y axis must
    include. span: its band, for the figure's values."""
    if not s.whole.size:
        return []
    mean = s.whole.mean(axis=0)
    style = {**_marked(look, s.steps.size), **({"linestyle": _dash(number)} if number else {})}
    name = f"metric{number}" if number else "mean"
    every = max(1, s.steps.size // 10)
    gid = f"{name}--{s.group}"
    drawn = axes.plot(s.axis, mean, linewidth=_WIDTHS[number > 0], markevery=every, gid=gid, label=_MEAN, **style)
    tell(drawn, span)
    return [mean] if np.isfinite(mean).any() else []


def _seeds(axes: Axes, s: Series, look: Mapping[str, Any], many: bool) -> None:
    """Draw a pale curve for each seed of a group, behind all means. many: at most _DRAWN of them, as one image, the
    paler the more they are."""
    rows = {f"seed.{n}--{s.group}": (f"seed {n}", s.axis, row) for n, row in zip(s.seeds, s.whole, strict=True)}
    if many:
        from matplotlib.collections import LineCollection

        from analysis.figures.dense_artists import Cloud

        shown = list(rows.values())[:: -(-len(rows) // _DRAWN)]
        segments = [np.column_stack((x, y)) for _, x, y in shown]
        alpha = min(0.14, max(0.02, 14 / len(shown)))
        lines = LineCollection(segments, colors=look["color"], linewidths=0.6, alpha=alpha, zorder=1.5)
        axes.add_collection(lines, autolim=False)
        axes.add_artist(Cloud(lines, f"seeds--{s.group}"))
        tell_members(lines, rows)
        return
    mark = "." if s.steps.size == 1 else None
    for gid, (label, x, y) in rows.items():
        axes.plot(x, y, gid=gid, **{**look, "linewidth": 0.6, "alpha": 0.35, "marker": mark, "label": label})


def _first(axes: Axes, s: Series, look: Mapping[str, Any], alpha: float, many: bool) -> list[Array]:
    """Draw a group's seeds, band, mean, and runs without full result of the figure's first metric. alpha: the band has
    level 1 - alpha; many: as in _seeds. Returns the curves that the y axis must include."""
    if s.whole.size:
        mean, half = simultaneous(s.whole, alpha)
        span = None if half is None else (mean - half, mean + half)
        band = {"color": look["color"], "gid": f"band--{s.group}"}
        if span is not None and s.steps.size == 1:
            axes.plot([s.axis[0]] * 2, [span[0][0], span[1][0]], linewidth=1.6, **band)
        elif span is not None:
            axes.fill_between(s.axis, *span, alpha=0.13, linewidth=0, **band)
        _seeds(axes, s, look, many)
        _mean(axes, s, 0, look, span)
    for seed, (steps, values) in s.partial.items():
        gid, label, colour = f"cut.{seed}--{s.group}", f"seed {seed}, without full result", look["color"]
        axes.plot(steps, values, ":", linewidth=0.9, color=colour, gid=gid, label=label)
        axes.plot(steps[-1:], values[-1:], "x", markersize=6, color=colour, gid=f"end.{seed}--{s.group}")
    drawn = (s.whole, *(values for _, values in s.partial.values()))
    return [values for values in drawn if np.isfinite(values).any()]


def _y_label(about: Sequence[Metric]) -> str:
    """The common unit of several metrics, which the legend names; else every metric. No line breaks within a unit."""
    units = {metric.unit for metric in about}
    common = len(about) > 1 and len(units) == 1 and units != {""}
    texts = units if common else [metric.axis for metric in about]
    unbroken = [re.sub(r"\([^()]+\)$", lambda unit: unit[0].replace(" ", "\N{NO-BREAK SPACE}"), text) for text in texts]
    return ";\n".join(textwrap.fill(text, _Y_LABEL, break_on_hyphens=False) for text in unbroken)


def _caption(study: Study, about: Sequence[Metric], drawn: Sequence[Sequence[Series]], many: bool, cut: bool) -> str:
    """What is drawn and how, which groups do not have it, what is missing, and what a reader must know. drawn[i]: the
    series of all groups of the metric about[i]; many: as in _seeds; cut: whether a band exceeds the axes."""
    whole = [s for s in drawn[0] if s.whole.size]
    lone = [s.label for s in whole if len(s.whole) == 1]
    band = SIMULTANEOUS.format(format_level(study.settings.alpha)) if len(lone) < len(whole) else ""
    shown = f"mean over seeds (thick), {f'its {band}, ' if band else ''}each seed behind it (thin)."
    texts = [f"{capital(about[0].axis)} against {passing(study)}: {shown}"]
    texts += [_BAND] if band else []
    if lone:
        texts.append(f"One seed has no band{': ' + ', '.join(lone) if band else ''}.")
    texts += [_CUT] if cut else []
    if len(about) > 1:
        texts.append(f"Broken lines show only the mean over seeds: {'; '.join(metric.axis for metric in about[1:])}.")
    if study.settings.normalize and any(metric.key == study.settings.metric for metric in about):
        texts.append(f"{capital(study.settings.metric)} is normalised by the declared reference scores.")
    texts += all_levels(study.settings)
    texts += [TOGETHER] if many else []
    if any(len(s.whole) > _DRAWN for s in drawn[0]):
        texts.append(f"Of a method with more than {_DRAWN} seeds, evenly chosen ones are drawn; the CSV file has all.")
    width = max((s.smoothing for of in drawn for s in of if s.whole.size), default=1)
    if width > 1:
        texts.append(f"Every point is a centred mean over {width} points.")
    texts += _common_steps(drawn)
    texts += _missing(about, drawn, any(s.partial for s in drawn[0]))
    return " ".join([*texts, *caveats([metric.key for metric in about])])


def _common_steps(drawn: Sequence[Sequence[Series]]) -> list[str]:
    """Sentences on how runs with different steps, and cells that some seed lacks, are averaged."""
    every = [s for of in drawn for s in of if s.whole.size]
    texts = []
    if any(s.interpolated for s in every):
        texts.append(
            "Where runs were recorded at different steps, each is interpolated onto common steps, from where the last "
            "one begins to where the first one ends."
        )
    texts += dict.fromkeys(f"{s.label}: {s.averaged}." for s in every if s.averaged)
    return texts


def _missing(about: Sequence[Metric], drawn: Sequence[Sequence[Series]], dotted: bool) -> list[str]:
    """Which groups do not have a metric, one sentence for metrics that the same groups lack; and which seeds are
    missing. about, drawn: as in _caption; dotted: whether curves of such seeds are drawn."""
    silent = [tuple(s.label for s in of if not s.recorded) for of in drawn]
    lacking = grouped(zip(silent, [metric.label for metric in about], strict=True))
    texts = []
    for labels, metrics in lacking.items():
        if labels:
            text = f"not recorded by {', '.join(labels)}."
            texts.append(capital(f"{'; '.join(metrics)}: {text}" if len(about) > 1 else text))
    if gaps := [gap for of in zip(*drawn, strict=True) for gap in _gaps(about, of)]:
        how = "; a dotted line is a run without full result, the cross where it ends" if dotted else ""
        texts.append(f"Incomplete: {'; '.join(gaps)}{how}.")
    return texts


def _gaps(about: Sequence[Metric], of: Sequence[Series]) -> list[str]:
    """The seeds that a group lacks: once if they are the same for all metrics, else by metric. of: a series of each."""
    texts = {}
    for metric, s in zip(about, of, strict=True):
        if s.recorded:
            silent = f", not recorded by seed {', '.join(map(str, s.silent))}" if s.silent else ""
            texts[metric.label] = f"{s.label}: {len(s.whole)} of {s.planned} seeds{silent}" if s.short else ""
    if len(set(texts.values())) == 1:
        return [text for text in set(texts.values()) if text]
    return [f"{label}, {text}" for label, text in texts.items() if text]


# ---------------------------------------------------------------- the curves of a metric

_POINTS = 400  # most points of a curve, which is averaged in bins if it has more: no screen or printer shows more


@dataclass(frozen=True)
class Series:
    """The curves of one metric of a group, one for each seed: the mean over the cells, the same ones for every seed.

    whole: (seeds, steps), smoothed, of `seeds`; steps: between the latest beginning and the earliest end of their runs;
    axis: (steps,), the x values there. partial[seed]: x and y of a run without full result. recorded: False for a group
    that does not have the metric. planned: number of seeds in the plan. silent: seeds whose runs ended well without the
    metric, though others have it. smoothing: width in points. interpolated: whether a curve has no point of its own at
    some of the steps. averaged: sentence on cells that are left out or that some seeds lack; "" if there is neither.
    """

    group: str
    label: str
    recorded: bool
    steps: Array
    axis: Array
    whole: Array
    seeds: tuple[int, ...]
    partial: Mapping[int, tuple[Array, Array]]
    planned: int
    silent: tuple[int, ...]
    smoothing: int
    interpolated: bool
    averaged: str

    @property
    def short(self) -> bool:
        """Whether a planned seed has no whole curve."""
        return self.recorded and len(self.whole) < self.planned


def series(study: Study, metric: str) -> list[Series]:
    """The curves of one metric for every group, of the seeds and cells that a table averages over."""
    common = study.ranges[metric]
    every = []
    for group in study.sweep.groups:
        runs = study.sweep.runs_of(group)
        recorded = group not in common.absent
        silent = {run.seed for run in runs if recorded and run.problem is None and metric not in run.curves.values}
        cells_of = Counter(run.seed for run in runs)
        clocked = {run.id for run in runs if common.clocks is None or run.id in common.clocks}
        usable = clocked & common.curves.keys()
        kept = cells.keep({(run.seed, run.cell): 0.0 if run.id in usable else None for run in runs})
        id_at = {(run.seed, run.cell): run.id for run in runs}
        drawn = [id_at[seed, cell] for seed, by_cell in kept.seeds.items() for cell in by_cell]
        steps, values, interpolated = on_grid([common.curves[run_id] for run_id in drawn], _POINTS)
        ends = np.cumsum([len(by_cell) for by_cell in kept.seeds.values()])[:-1]
        clocked_at = [common.at(run_id, steps) for run_id in drawn if common.clocks is not None]
        axis = np.mean(clocked_at, axis=0) if clocked_at else steps
        by_seed = _whole_cells(kept, np.split(values, ends)) if drawn else []
        whole = np.array([block_means(of_seed, _POINTS).mean(axis=0) for of_seed in by_seed])
        steps, axis = block_means(steps, _POINTS), block_means(axis, _POINTS)
        width = _smoothing(steps.size)
        whole = smooth(whole.reshape(len(by_seed), steps.size), width)
        partial: dict[int, tuple[Array, Array]] = {}
        for run in sorted(runs, key=lambda run: run.seed):
            values = run.curves.values.get(metric, np.empty(0))
            inside = np.abs(values) < LARGEST
            drawable = run.seed not in kept.seeds and cells_of[run.seed] == 1 and run.id in clocked
            if drawable and inside.any():
                at = common.at(run.id, run.curves.steps[inside])
                partial[run.seed] = at, smooth(values[inside], _smoothing(at.size))
        averaged = [kept.averaging] if kept.dropped and kept.seeds else []
        if not kept.balanced:
            averaged.append(
                "every cell has equal weight; where a seed lacks one, its curve has the mean of the other seeds, and "
                "what it has counts for more"
            )
        every.append(
            Series(
                group, study.sweep.label(group), recorded, steps, axis, whole, tuple(kept.seeds), partial,
                len(cells_of), tuple(sorted(silent)), width, interpolated, "; ".join(averaged),
            )
        )  # fmt: skip
    return every


def _whole_cells(kept: cells.Cells, by_seed: list[Array]) -> list[Array]:
    """The curves of each seed, (cells, steps), with the same cells in every seed: `completed` where it lacks one."""
    if kept.balanced or not by_seed[0].shape[1]:  # complete, or without a common range
        return by_seed
    place = {cell: index for index, cell in enumerate(kept.cells)}
    whole = np.full((len(by_seed), len(place), by_seed[0].shape[1]), np.nan)
    for row, by_cell, curves in zip(whole, kept.seeds.values(), by_seed, strict=True):
        row[[place[cell] for cell in by_cell]] = curves
    return list(strata.completed(whole))


def _smoothing(points: int) -> int:
    """The width for `smooth` of a curve with so many points: odd, about a thirtieth of them."""
    return max(1, points // 30) // 2 * 2 + 1


def smooth(rows: Array, width: int) -> Array:
    """Centred mean over `width` points (odd) of each row (..., n), over fewer on both sides near the ends. A NaN
    affects only the points whose window holds it."""
    n = rows.shape[-1]
    index = np.arange(n)
    reach = np.minimum(width // 2, np.minimum(index, n - 1 - index))
    total = np.zeros(rows.shape)
    for shift in range(-(width // 2), width // 2 + 1):
        inside = np.flatnonzero(np.abs(shift) <= reach)
        if inside.size:  # they are adjacent: copying a slice is faster than indexing
            first, last = inside[0], inside[-1] + 1
            total[..., first:last] += rows[..., first + shift : last + shift]
    return np.asarray(total / (2 * reach + 1))

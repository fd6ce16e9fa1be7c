"""Figures of two metrics against each other: the steps of every run, or final values with the best trade-offs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.data.sweep import Run
from analysis.figures.canvas import (
    DASHES,
    NEUTRAL,
    Sketch,
    canvas_of,
    colours,
    counted_label,
    gap_sentences,
    legend,
    logarithmic,
)
from analysis.figures.traces import tell
from analysis.findings.study import Measure, Study, block
from analysis.spec.cell import grouped
from analysis.spec.figure_spec import Picture
from analysis.spec.metric_catalog import capital, caveats, describe
from analysis.spec.registry import figure
from analysis.stats.numbers import Array, format_level
from launcher.run.lifecycle import HOUR_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MARKS = ("o", "s", "^", "D")  # markers of groups with equal colours, in the order of DASHES
_MARKS_AT_MOST = 1000  # more points are drawn as an image, which keeps the page small
_HOURS = 2  # from which on times are in hours
_EDGE = {"markeredgecolor": "white", "markeredgewidth": 0.8}


@figure("scatter")
def scatter(study: Study, picture: Picture) -> Sketch | None:
    """Two metrics of every run at the steps that have both, with the mean of every seed in front; None if empty."""
    about = [describe(key) for key in picture.metrics]
    sweep, ranges = study.sweep, [study.ranges[key] for key in picture.metrics]
    canvas, axes = canvas_of(7.0, 5.0 if picture.diagonal else 4.2)
    entries: list[tuple[str, Any]] = []
    notes: list[str] = []
    drawn: list[Array] = []
    lines: list[Any] = []
    for group in sweep.groups:
        runs = sweep.runs_of(group)
        if any(group in common.absent for common in ranges):
            continue
        shared = [(run.seed, *_shared(study, run, picture)) for run in runs]
        usable = [(seed, steps, points) for seed, steps, points in shared if steps.size]
        if not usable:
            continue
        look = _style(study, group)
        for number, (seed, steps, points) in enumerate(usable):
            gid, label = f"dots{number}.{seed}--{group}", f"seed {seed}"
            dots = axes.plot(*points, gid=gid, zorder=2, label=label, markersize=3, alpha=0.35, **look)
            tell(dots, steps=steps)
            lines += dots
            drawn.append(points)
        means = grouped((seed, points.mean(axis=1)) for seed, _, points in usable)
        for seed, of_seed in sorted(means.items()):
            mean = np.mean(of_seed, axis=0)
            gid, label = f"means.{seed}--{group}", f"seed {seed}, mean over its steps"
            axes.plot(mean[:1], mean[1:], zorder=3, gid=gid, label=label, **{**look, "markersize": 7, **_EDGE})
        label = counted_label(sweep.label(group), len(means), len({run.seed for run in runs}), "seeds", notes)
        entries.append((label, {**look, "markersize": 6}))
    if not drawn:
        return None
    if picture.diagonal:
        low, high = min(float(points.min()) for points in drawn), max(float(points.max()) for points in drawn)
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        ends = (low - margin, high + margin)
        axes.plot(ends, ends, color=NEUTRAL, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.set_aspect("equal", adjustable="box")
    else:
        for direction, values in zip("xy", np.concatenate(drawn, axis=1), strict=True):
            logarithmic(axes, direction, values)
    if sum(points_of_run.shape[1] for points_of_run in drawn) > _MARKS_AT_MOST:
        from analysis.figures.dense_artists import Cloud

        for line in lines:
            axes.add_artist(Cloud(line, line.get_gid()))
    _name(axes, [metric.axis for metric in about])
    canvas.set_figheight(canvas.get_figheight() + 0.2 * legend(canvas, "upper", entries))
    texts = [f"{capital(about[1].axis)} against {about[0].axis}: the mean over each seed's steps, in front of "
             "each of its steps."]  # fmt: skip
    texts += ["The broken line is y = x."] if picture.diagonal else []
    texts += _gaps(study, picture, notes) + caveats(picture.metrics)
    return Sketch(picture.name, f"{about[1].label} against {about[0].label}", " ".join(texts), canvas)


@figure("pareto")
def pareto(study: Study, picture: Picture) -> Sketch | None:
    """Final values of two metrics, and the front: the groups that no other exceeds by both; None if empty."""
    sweep, settings = study.sweep, study.settings
    about = [describe(key) for key in picture.metrics]
    blocks = [
        block(sweep, settings, study.ranges[key], Measure(key, "final", way), None)
        for key, way in zip(picture.metrics, picture.directions, strict=True)
    ]
    canvas, axes = canvas_of(7.0, 4.2)
    centres: dict[str, tuple[float, float]] = {}
    entries: list[tuple[str, Any]] = []
    notes: list[str] = []
    for x, y in zip(blocks[0].estimates, blocks[1].estimates, strict=True):
        if x.mean is None or y.mean is None:
            continue
        group, look = x.group, _style(study, x.group)
        for run in sweep.runs_of(group):
            x_value, y_value = (block.values[run.id].value for block in blocks)
            if x_value is not None and y_value is not None:
                small = {**look, "markersize": 3.5, "alpha": 0.45, "label": f"seed {run.seed}"}
                axes.plot([x_value], [y_value], gid=f"runs.{run.seed}--{group}", zorder=2, **small)
        line = {"color": look["color"], "linewidth": 1.3, "zorder": 3}
        if x.interval is not None:
            axes.plot(x.interval, (y.mean, y.mean), gid=f"wide--{group}", **line)
        if y.interval is not None:
            axes.plot((x.mean, x.mean), y.interval, gid=f"high--{group}", **line)
        edge = {**look, "markersize": 8, **_EDGE}
        axes.plot([x.mean], [y.mean], gid=f"mean--{group}", zorder=5, label="mean over seeds", **edge)
        centres[group] = x.mean, y.mean
        label = counted_label(sweep.label(group), min(len(x.seeds), len(y.seeds)), x.planned, "seeds", notes)
        entries.append((label, {**look, "markersize": 6}))
    if not centres:
        return None
    members = front(centres, picture.directions)
    steps = np.array([centres[group] for group in members]).T
    corner = "steps-pre" if picture.directions[0] == "higher" else "steps-post"
    axes.plot(*steps, drawstyle=corner, color=NEUTRAL, linewidth=1.1, linestyle=(0, (4, 2)), zorder=1)
    axes.margins(0.06)
    both = zip((axes.xaxis, axes.yaxis), about, strict=True)
    names = [f"{metric.label} (h)" if _in_hours(axis, metric.unit) else metric.axis for axis, metric in both]
    _name(axes, [f"{name}, {way} is better" for name, way in zip(names, picture.directions, strict=True)])
    canvas.set_figheight(4.0 + 0.2 * legend(canvas, "upper", entries))
    level = format_level(settings.alpha)
    listed = ", ".join(sweep.label(group) for group in members)
    texts = [
        f"Final values of {names[0]} and {names[1]}: each run (small), mean over seeds with its {level} t "
        f"interval. On the front of the means, the broken line, no other method is better by both: {listed}.",
        "Methods whose means are near each other may change places with other seeds.",
    ]
    texts += _gaps(study, picture, notes) + caveats(picture.metrics)
    title = f"{capital(about[0].label)} and {about[1].label}, Pareto front"
    return Sketch(picture.name, title, " ".join(texts), canvas)


def front(centres: Mapping[str, tuple[float, float]], directions: Sequence[str]) -> list[str]:
    """The names that no other dominates (at least as good by both and better by one), from left to right."""
    signs = np.array([1.0 if way == "higher" else -1.0 for way in directions])
    points = {name: signs * np.asarray(centre) for name, centre in centres.items()}
    best = [
        name for name, point in points.items()
        if not any((other >= point).all() and (other > point).any() for other in points.values())
    ]  # fmt: skip
    return sorted(best, key=lambda name: (centres[name], name))


def _style(study: Study, group: str) -> dict[str, Any]:
    colour, dash = colours(study.sweep.groups)[group]
    return {"color": colour, "linestyle": "none", "marker": _MARKS[DASHES.index(dash)], "markeredgewidth": 0}


def _shared(study: Study, run: Run, picture: Picture) -> tuple[Array, Array]:
    """The steps of a run that have both metrics, and the metrics (2, steps) there; empty if one of them is not
    usable."""
    each = [study.ranges[key].curves.get(run.id) for key in picture.metrics]
    if each[0] is None or each[1] is None:
        return np.empty(0), np.empty((2, 0))
    steps, left, right = np.intersect1d(each[0][0], each[1][0], return_indices=True)
    return steps, np.array([each[0][1][left], each[1][1][right]])


def _in_hours(axis: Axis, unit: str) -> bool:
    """Whether an axis has ticks at hours: it is in seconds, and goes on for hours."""
    from matplotlib.ticker import MaxNLocator

    low, high = axis.get_view_interval()
    if unit != "s" or high < _HOURS * HOUR_S:
        return False
    hours = [hour for hour in MaxNLocator(6).tick_values(low / HOUR_S, high / HOUR_S) if low <= hour * HOUR_S <= high]
    axis.set_ticks([hour * HOUR_S for hour in hours], [f"{hour:g}" for hour in hours])
    return True


def _name(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_xlabel(textwrap.fill(labels[0], 80))
    axes.set_ylabel(textwrap.fill(labels[1], 40))


def _gaps(study: Study, picture: Picture, notes: Sequence[str]) -> list[str]:
    """Sentences on groups that do not have both metrics, and on those that lack seeds."""
    without = frozenset().union(*(study.ranges[key].absent for key in picture.metrics))
    return gap_sentences([study.sweep.label(group) for group in study.sweep.groups if group in without], notes)

"""The figures of a report: differences to the baseline, survival curves, and those that the experiment asks for.

Every artist of a method has a gid, ROLE--GROUP or ROLE.SEED--GROUP (traces.GID), by which a page hides the method.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from analysis.figures.canvas import (
    INK,
    LINE,
    MANY,
    TOGETHER,
    Sketch,
    brief,
    canvas_of,
    colours,
    counted_label,
    gap_sentences,
    legend,
    save,
    style_of,
    styled,
)
from analysis.figures.traces import tell, tell_members
from analysis.findings.study import AXES, Block, Reason, Study
from analysis.spec import registry
from analysis.spec.figure_spec import Picture
from analysis.spec.metric_catalog import capital
from analysis.stats.curve_summaries import NotEvaluable, survival
from analysis.tables.wording import range_note

Drawing = Callable[[], Sketch | list[Sketch] | None]  # draws one figure, several or none
_WIDTH = 4.6  # inches: width of the figure of differences, narrow enough for a phone
_TICK = 16  # characters in a line of a method's tick label, which has two lines at most


def figures(study: Study, lost: list[str], others: Iterable[Sketch] = ()) -> list[Sketch]:
    """The figures of a report, laid out, in this order: differences on the primary measure, survival curves of times to
    thresholds, those of `analysis.figures`, and the primary metric by level of a method's only factor. One that has
    nothing to show is left out, and one of another package that fails, of which `lost` gets the reason. others: further
    figures of the report, whose names are taken."""
    by_level = Picture.model_validate({"levels": study.settings.metric})
    pictures = dict.fromkeys([*study.settings.drawn, by_level])
    timed = (block for block in study.blocks if block.measure.summary == "time_to")
    survivals = (partial(survival_curve, study, block, f"reach_{n}") for n, block in enumerate(timed, 1))
    first = [*saved(partial(_differences, study), note=range_note(study)), *saved(*survivals)]
    own = {picture.name for picture in pictures if not picture.registered}
    taken = own | {sketch.name for sketch in [*first, *others]}
    return [*first, *saved(*(partial(_drawn, study, picture, lost, taken) for picture in pictures))]


def _drawn(study: Study, picture: Picture, lost: list[str], taken: set[str]) -> Sketch | None:
    draw = registry.figure_of(picture.kind)
    assert draw is not None, picture.kind  # the settings have asked the registry too
    note = "" if picture.kind == "histogram" else f" {range_note(study, picture.metrics)}"
    try:
        with registry.blamed(f"figure {picture.kind}", draw):
            sketch: Sketch | None = draw(study, picture)
            if sketch and picture.registered:  # the name of a file, which has at most 255 bytes
                name = re.sub(r"[^\w.-]+", "_", sketch.name).strip("._").encode()[:200].decode(errors="ignore")
                if not name or name in taken:
                    raise ValueError(f"its name, {name!r}, is that of another figure. Fix: rename it")
                taken.add(name)
                sketch = replace(sketch, name=name)
            return sketch and replace(sketch, kind=picture.kind, caption=f"{sketch.caption}{note}")
    except NotEvaluable as error:
        lost.append(f"Left out: {error}")
        return None


def saved(*drawings: Drawing, note: str = "") -> list[Sketch]:
    """Call these functions with the settings of figures (canvas.styled), and return what they draw, laid out and so
    ready to be rendered. note: is added to the end of each caption."""
    sketches: list[Sketch] = []
    with styled():
        for draw in drawings:
            made = draw()
            sketches += [made] if isinstance(made, Sketch) else made or []
        return save([replace(sketch, caption=f"{sketch.caption} {note}".rstrip()) for sketch in sketches])


def _differences(study: Study) -> Sketch | None:
    """A row for each group: the mean difference to the baseline, its interval and the seeds; None without a row."""
    shown = [c for c in study.primary.comparisons if c.mean_difference is not None]
    if not shown:
        return None
    look = colours(study.sweep.groups)
    canvas, axes = canvas_of(_WIDTH, 1.15 + 0.42 * len(shown))
    axes.axvline(0, color=INK, linewidth=0.9)
    many = sum(len(comparison.seeds) for comparison in shown) > MANY
    labels = []
    for height, comparison in enumerate(reversed(shown)):
        colour, group, interval = look[comparison.group][0], comparison.group, comparison.interval
        contrast, y = comparison.contrast, np.array([height - 0.16])  # seeds are below the mean
        x = contrast.a - (contrast.b if contrast.paired else contrast.b.mean())
        rows = {f"seed.{n}--{group}": (f"seed {n}", x[i : i + 1], y) for i, n in enumerate(comparison.seeds)}
        dots: dict[str, Any] = {"markersize": 3.6, "markeredgewidth": 0, "alpha": 0.55, "color": colour}
        if many:
            (together,) = axes.plot(x, np.repeat(y, x.size), "o", gid=f"seeds--{group}", **dots)
            tell_members(together, rows)
        else:
            for gid, (label, *point) in rows.items():
                axes.plot(*point, "o", gid=gid, label=label, **dots)
        if interval is not None:
            axes.plot(interval, (height, height), color=colour, linewidth=2.0, gid=f"interval--{group}")
        mean: dict[str, Any] = {"markersize": 6, "color": colour, "gid": f"mean--{group}", "label": "mean over seeds"}
        tell(axes.plot([comparison.difference], [height], "D", **mean), interval)
        count = f" (n = {comparison.sizes})" if comparison.gaps else ""
        labels.append(textwrap.fill(brief(study.sweep.label(group), 2 * _TICK), _TICK) + count)
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.grid(False, axis="y")
    measure = study.primary.measure
    unit = f" ({measure.unit})" if measure.unit else ""
    baseline = study.sweep.label(shown[0].baseline)
    beside = max(len(line) for label in labels for line in label.split("\n"))  # these labels make the axes narrower
    axes.set_xlabel(textwrap.fill(f"{measure.title}, difference to {baseline}{unit}", LINE - 20 - min(beside, _TICK)))
    paired = study.settings.pairing == "seed"
    drawn = "with the interval of the test that decides"
    if not any(comparison.interval for comparison in shown):
        grounds = {comparison.ground.reason for comparison in shown if comparison.ground}
        why = "their differences are equal" if Reason.NO_SPREAD in grounds else "the seeds are too few for one"
        why = "the best of a curve favours noise" if measure.summary == "best" else why
        drawn = f"without an interval, because {why}"
    sides = {"higher": " Right of the line is better.", "lower": " Left of the line is better."}
    caption = (
        f"{capital(measure.title)}, difference to {baseline}"
        f"{' over the same seeds' if paired else ''}: mean (diamond) {drawn}, each seed as "
        f"a dot{'' if paired else f', less the mean of {baseline}'}.{sides.get(measure.better or '', '')}"
        f"{f' {TOGETHER}' if many else ''}"
    )
    return Sketch("differences", "Differences to the baseline", caption, canvas, kind="differences")


_ROW = 12.0  # points: height of a row of numbers below the axes
_LETTERS = 22  # most characters of the method's label left of such a row


def survival_curve(study: Study, block: Block, name: str) -> Sketch | None:
    """The share of each group's runs that has not reached a threshold, over time; None without a group to draw. block:
    of the time to the threshold."""
    from matplotlib.ticker import MaxNLocator

    sweep, budget, measure = study.sweep, block.budget, block.measure
    canvas, axes = canvas_of(7.0, 3.2)
    moments = [at for at in MaxNLocator(5).tick_values(0, budget) if 0 <= at <= budget]
    entries: list[tuple[str, Any]] = []
    notes: list[str] = []
    never = []
    below: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 8}
    for group in sweep.groups:
        values = [block.values[run.id] for run in sweep.runs_of(group)]
        times = [value.value for value in values if value.value is not None]
        try:
            curve = survival(times, [bool(value.reached) for value in values if value.value is not None], budget)
        except NotEvaluable:
            continue
        look = style_of(sweep.groups, group, markers=False)
        x = np.concatenate(([0.0], curve.times, [budget]))
        y = np.concatenate(([1.0], curve.share, curve.share[-1:]))
        named = {**look, "gid": f"curve--{group}", "label": "share not there yet"}
        axes.plot(x, y, drawstyle="steps-post", linewidth=1.9, clip_on=False, **named)
        if curve.censored.size:
            mark = {"color": look["color"], "gid": f"censored--{group}", "label": "cut off, not reached"}
            heights = curve.share[np.searchsorted(curve.times, curve.censored)]
            axes.plot(curve.censored, heights, "|", markersize=11, markeredgewidth=1.8, clip_on=False, **mark)
        down = -(22 + _ROW * (len(entries) + 1))
        label = brief(sweep.label(group), _LETTERS)
        axes.annotate(label, (0, 0), (-14, down), ha="right", gid=f"risk--{group}", **below)
        for number, at in enumerate(moments):
            count = str(int((np.asarray(times) >= at).sum()))
            axes.annotate(count, (at, 0), (0, down), ha="center", gid=f"risk{number}--{group}", **below)
        entries.append((sweep.label(group), {**look, "linewidth": 1.9}))
        if curve.share[-1] == 1.0:
            never.append(sweep.label(group))
        counted_label(sweep.label(group), len(times), len(values), "runs", notes)
    if not entries:
        return None
    axes.annotate("not there yet:", (0, 0), (-14, -22), ha="right", **below)
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, budget)
    axes.set_xticks(moments)
    axes.set_xlabel(AXES[measure.axis], labelpad=6 + _ROW * (len(entries) + 1))
    axes.set_ylabel("share of runs that have not reached it")
    canvas.set_figheight(3.2 + _ROW / 72 * (len(entries) + 1) + 0.2 * legend(canvas, "upper", entries))
    title = capital(measure.title)
    alike = ", so their lines coincide" if len(never) > 1 else ""
    above = f" No run of {', '.join(never)} has reached it{alike}." if never else ""
    gaps = "".join(f" {text}" for text in gap_sentences((), notes))
    caption = (
        f"{title} (threshold {measure.origin}): Kaplan and Meier's estimate of the share of runs that has not reached "
        f"it by then; below, the number of runs that are still on their way. A bar marks runs cut off at the budget of "
        f"{budget:g}. Where each seed has one run, the mean time in the tables is the area under its curve."
        f"{above}{gaps} {range_note(study, [measure.metric])}"
    )
    return Sketch(name, title, caption, canvas, kind="times")

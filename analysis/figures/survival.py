"""Kaplan-Meier curves: the share of each group's runs that has not reached a threshold yet."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.figures.canvas import Sketch, brief, canvas_of, counted_label, gap_sentences, legend, look_of
from analysis.findings.study import AXES, Block, Study
from analysis.spec.metric_catalog import capital
from analysis.stats.curve_summaries import NotEvaluable, survival
from analysis.tables.wording import range_note

_ROW = 12.0  # points of a row of numbers below the axes
_LETTERS = 22  # of a method's label beside them


def waiting(study: Study) -> list[Sketch]:
    """One figure for each threshold that has a time."""
    blocks = [block for block in study.blocks if block.measure.summary == "time_to"]
    return [made for number, block in enumerate(blocks, 1) if (made := _waiting(study, block, f"reach_{number}"))]


def _waiting(study: Study, block: Block, name: str) -> Sketch | None:
    """The survival curves whose areas are the restricted means."""
    from matplotlib.ticker import MaxNLocator

    sweep, budget, measure = study.sweep, block.budget, block.measure
    canvas, axes = canvas_of(7.0, 3.2)
    moments = [at for at in MaxNLocator(5).tick_values(0, budget) if 0 <= at <= budget]
    entries: list[tuple[str, Any]] = []
    notes: list[str] = []
    never = []
    for group in sweep.groups:
        values = [block.values[run.id] for run in sweep.of(group)]
        times = [value.value for value in values if value.value is not None]
        try:
            curve = survival(times, [bool(value.reached) for value in values if value.value is not None], budget)
        except NotEvaluable:
            continue
        look = look_of(sweep.groups, group, markers=False)
        x = np.concatenate(([0.0], curve.times, [budget]))
        y = np.concatenate(([1.0], curve.share, curve.share[-1:]))
        named = {**look, "gid": f"curve--{group}", "label": "share not there yet"}
        axes.plot(x, y, drawstyle="steps-post", linewidth=1.9, clip_on=False, **named)
        if curve.censored.size:
            mark = {"color": look["color"], "gid": f"censored--{group}", "label": "cut off, not reached"}
            left = curve.share[np.searchsorted(curve.times, curve.censored)]
            axes.plot(curve.censored, left, "|", markersize=11, markeredgewidth=1.8, clip_on=False, **mark)
        below: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        down = -(22 + _ROW * (len(entries) + 1))
        label = brief(sweep.label(group), _LETTERS)
        of_group = {**below, "fontsize": 8, "gid": f"risk--{group}"}
        axes.annotate(label, (0, 0), (-14, down), ha="right", **of_group)
        for number, at in enumerate(moments):
            count = str(int((np.asarray(times) >= at).sum()))
            axes.annotate(count, (at, 0), (0, down), ha="center", **{**of_group, "gid": f"risk{number}--{group}"})
        entries.append((sweep.label(group), {**look, "linewidth": 1.9}))
        if curve.share[-1] == 1.0:
            never.append(sweep.label(group))
        counted_label(sweep.label(group), len(times), len(values), "runs", notes)
    if not entries:
        return None
    axes.annotate("not there yet:", (0, 0), (-14, -22), ha="right", fontsize=8,
                  xycoords=("data", "axes fraction"), textcoords="offset points")  # fmt: skip
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

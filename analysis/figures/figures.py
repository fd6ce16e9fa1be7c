"""The figures of a report: the paired differences, and what the experiment asks to be drawn.

Every method's artists carry a group id (gid), so that a page can hide them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
    save,
    seed_dots,
    styled,
)
from analysis.figures.survival import waiting
from analysis.figures.traces import Array
from analysis.findings.study import Block, Study
from analysis.spec import registry
from analysis.spec.figure_spec import Picture
from analysis.spec.metric_catalog import capital
from analysis.tables.wording import range_note

_WIDTH = 4.6  # inches of the differences, which a phone shows without scrolling
_TICK = 16  # letters in a line of a method's label, of which there are two at most


def figures(study: Study) -> list[Sketch]:
    """The differences on the primary measure, the survival curves of each time, every figure asked for, and a curve of
    the primary metric for each level of a method's only factor; without empty ones."""
    by_level = Picture.model_validate({"levels": study.settings.metric})
    drawings = (partial(_drawn, study, one) for one in dict.fromkeys([*study.settings.drawn, by_level]))
    main = saved(lambda: _differences(study.primary, study), note=range_note(study))
    return [*main, *saved(lambda: waiting(study), *drawings)]


def _drawn(study: Study, picture: Picture) -> Sketch | None:
    draw = registry.figure_of(picture.kind)
    if draw is None:
        raise ValueError(f"{picture.kind}: no such kind of figure is registered")
    sketch: Sketch | None = draw(study, picture)
    note = "" if picture.kind == "histogram" else f" {range_note(study, picture.metrics)}"
    return sketch and replace(sketch, kind=picture.kind, caption=f"{sketch.caption}{note}")


def saved(*drawings: Callable[[], Sketch | list[Sketch] | None], note: str = "") -> list[Sketch]:
    """The figures that these functions draw, laid out; a function may draw none, one or several. note: ends each
    caption."""
    sketches: list[Sketch] = []
    with styled():
        for draw in drawings:
            made = draw()
            sketches += [made] if isinstance(made, Sketch) else made or []
        return save([replace(sketch, caption=f"{sketch.caption} {note}".rstrip()) for sketch in sketches])


def _interval(block: Block, drawn: bool) -> str:
    if drawn:
        return "with the interval of the test that decides, "
    if block.measure.summary == "best":
        return "without an interval, because a maximum favours noise, "
    return "without an interval, because the seeds are too few for one, "


def _differences(block: Block, study: Study) -> Sketch | None:
    shown = [c for c in block.comparisons if c.result.mean_difference is not None]
    if not shown:
        return None
    look = colours(study.sweep.groups)
    canvas, axes = canvas_of(_WIDTH, 1.15 + 0.42 * len(shown))
    axes.axvline(0, color=INK, linewidth=0.9)
    many = sum(len(comparison.seeds) for comparison in shown) > MANY
    labels = []
    intervals: dict[str, tuple[Array, Array]] = {}
    for height, comparison in enumerate(reversed(shown)):
        colour, group, interval = look[comparison.group][0], comparison.group, comparison.interval
        contrast, below = comparison.contrast, np.array([height - 0.16])
        d = contrast.a - (contrast.b if contrast.paired else contrast.b.mean())
        rows = {f"seed.{n}--{group}": (f"seed {n}", d[i : i + 1], below) for i, n in enumerate(comparison.seeds)}
        seed_dots(axes, group, rows, many, markersize=3.6, markeredgewidth=0, alpha=0.55, color=colour)
        if interval is not None:
            axes.plot(interval, (height, height), color=colour, linewidth=2.0, gid=f"interval--{group}")
            intervals[f"mean--{group}"] = np.array(interval[:1]), np.array(interval[1:])
        at, gid = ([comparison.difference], [height]), f"mean--{group}"
        axes.plot(*at, "D", markersize=6, color=colour, gid=gid, label="mean over seeds")
        count = f" (n = {comparison.sizes})" if comparison.gaps else ""
        labels.append(textwrap.fill(brief(study.sweep.label(group), 2 * _TICK), _TICK) + count)
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.grid(False, axis="y")
    measure = block.measure
    unit = f" ({measure.unit})" if measure.unit else ""
    baseline = study.sweep.label(shown[0].baseline)
    beside = max(len(line) for label in labels for line in label.split("\n"))  # it is centred below the axes alone
    axes.set_xlabel(textwrap.fill(f"{measure.title}, difference to {baseline}{unit}", LINE - 20 - min(beside, _TICK)))
    paired = study.settings.pairing == "seed"
    sides = {"higher": " Right of the line is better.", "lower": " Left of the line is better."}
    caption = (
        f"{capital(measure.title)}, difference to {baseline}"
        f"{' over the same seeds' if paired else ''}: mean (diamond) "
        f"{_interval(block, bool(intervals))}each seed as "
        f"a dot{'' if paired else f', less the mean of {baseline}'}.{sides.get(measure.better or '', '')}"
        f"{f' {TOGETHER}' if many else ''}"
    )
    return Sketch("differences", "Differences to the baseline", caption, canvas, intervals, kind="differences")

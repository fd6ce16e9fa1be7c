"""Figures of grids: the effect of each level of each factor, and the mean over every pair of factors."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.canvas import DOT, INK, Intervals, Sketch, brief, canvas_of, colours, diamond, legend, panels_of
from analysis.figures.traces import Array
from analysis.findings.study import Study
from analysis.numbers import format_level
from analysis.sections.grid import Grid
from analysis.spec.levels import key_of
from analysis.stats import t_test
from analysis.stats.factorial import Fit
from analysis.tables.wording import all_levels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS = 5  # panels beside each other
_MANY = 10  # levels, above which each panel has a row of its own
_WHOLE = 7.0  # width of a row, in inches
_LETTER, _LINE = 0.072, 0.15  # width of a letter and height of a line beside an axis, in inches
_ON_END = 24  # letters of a level that is written upwards
_APART = 0.13  # of groups at one level, in distances between levels
_ASIDE = 0.05  # of the seeds beside their mean
_LETTERS = 9  # of a level in a line
_GAP = 0.2  # between blocks of a heat map, in levels
_DARK, _LIGHT = "#111113", "#fdfdfd"  # numbers on a colour: the same on white and on black paper


def main_effects(study: Study, drawn_grids: Sequence[Grid]) -> Sketch | None:
    """A panel for each factor with every group's effect of each level, its interval and seeds; None without a grid."""
    levels = _union(drawn_grids)
    if not levels:
        return None
    measure = study.primary.measure
    widest = max(map(len, levels.values()))
    rows = len(levels) if widest > _MANY else -(-len(levels) // _ACROSS)
    across = -(-len(levels) // rows)
    width = _WHOLE if widest > _MANY else max(3.8, min(_WHOLE, 1.6 * across + 0.6))
    height = 3.4 if widest > _MANY else 2.4  # names that are written upwards take about an inch
    canvas, panels = panels_of(width, height * rows, across, rows, common=False)
    label = f"effect on {measure.with_unit}"
    intervals: Intervals = {}
    for number, (axes, (factor, factor_levels)) in enumerate(zip(panels, levels.items(), strict=False)):
        axes.axhline(0, color=INK, linewidth=0.9)
        for index, grid in enumerate(drawn_grids):
            if factor in grid.fit.levels:
                aside = _APART * (index - (len(drawn_grids) - 1) / 2)
                at = [factor_levels.index(level) + aside for level in grid.fit.levels[factor]]
                intervals |= _levels(axes, study, grid, factor, at, number)
        axes.set_title(textwrap.fill(factor, 20), fontsize=9)
        texts, turned = _texts(factor_levels, (width - 0.6) / across / len(factor_levels))
        axes.set_xticks(range(len(factor_levels)), texts, rotation=90 if turned else 0)
        axes.set_xlim(-0.5, len(factor_levels) - 0.5)
        axes.grid(False, axis="x")
    shown = panels[: len(levels)]
    low, high = min(axes.get_ylim()[0] for axes in shown), max(axes.get_ylim()[1] for axes in shown)
    for index, axes in enumerate(panels):
        axes.set_visible(index < len(levels))
        axes.set_ylim(low, high)
        axes.tick_params(labelleft=index % across == 0)
        axes.set_ylabel(textwrap.fill(label, 34), visible=index % across == 0)
    look = colours(study.sweep.groups)
    entries = [
        (study.sweep.label(grid.group), {"color": look[grid.group][0], "marker": "D", "linestyle": "none"})
        for grid in drawn_grids
    ]
    canvas.set_figheight(canvas.get_figheight() + 0.2 * legend(canvas, "upper", entries))
    level = format_level(study.settings.alpha)
    caption = (
        f"Main effects on the {measure.title}: the mean at each level minus the mean of the group's grid, over seeds "
        f"(diamond) with its {level} t interval, each seed as a dot. The intervals are not adjusted for the number of "
        f"effects.{_gaps(study, drawn_grids)}"
    )
    return Sketch("effects", "Main effects of the factors", caption, canvas, intervals)


def _union(drawn_grids: Sequence[Grid]) -> dict[str, list[Any]]:
    levels: dict[str, list[Any]] = {}
    for grid in drawn_grids:
        for factor, factor_levels in grid.fit.levels.items():
            known = levels.setdefault(factor, [])
            known += [level for level in factor_levels if level not in known]
    return levels


def _levels(axes: Axes, study: Study, grid: Grid, factor: str, at: Sequence[float], number: int) -> Intervals:
    """Draw a group's effects of one factor; returns the intervals."""
    colour = colours(study.sweep.groups)[grid.group][0]
    effects = [effect for effect in grid.effects if effect.factors == (factor,)]
    axes.plot(at, [e.value for e in effects], color=colour, linewidth=1.0, alpha=0.6, gid=f"join{number}--{grid.group}")
    intervals: Intervals = {}
    for index, (x, effect) in enumerate(zip(at, effects, strict=True)):
        of, which = f"{number * 100 + index}", f"{factor} = {effect.levels[0]}"
        for seed, value in zip(grid.seeds, grid.fit.mains[factor][index], strict=True):
            gid = f"seed{of}.{seed}--{grid.group}"
            axes.plot([x + _ASIDE], [value], "o", gid=gid, label=f"{which}, seed {seed}", color=colour, **DOT)
        intervals |= diamond(axes, x, effect.value, effect.interval, colour, f"{of}--{grid.group}", which)
    return intervals


def heat_maps(study: Study, every: Sequence[Grid]) -> list[Sketch]:
    """For each group with two or more factors, its mean over every pair of them, all with one colour scale."""
    drawn = [grid for grid in every if len(grid.shown.levels) > 1]
    far: dict[bool, float] = {}
    for grid in drawn:
        against = grid.less is not None
        for pair in grid.shown.pairs:
            off = np.abs(grid.shown.mean_of(*pair).mean(axis=-1) - grid.turn)
            far[against] = max(far.get(against, 0.0), float(off.max()))
    return [_heat_map(study, grid, far[grid.less is not None]) for grid in drawn]


def _heat_map(study: Study, grid: Grid, far: float) -> Sketch:
    """A block for each pair of factors, all in one pair of axes: laying out separate panels takes seconds."""
    from matplotlib import colormaps

    fit, measure, sweep = grid.shown, study.primary.measure, study.sweep
    factors = list(fit.levels)
    left, wide = _starts(fit, factors[:-1])
    bottom, high = _starts(fit, factors[:0:-1])
    width = min(0.85, 6.1 / wide)
    height = min(0.5, max(_LINE, 0.8 * width))
    below, upwards = _texts([level for factor in left for level in fit.levels[factor]], width)
    names_height = _LETTER * max(map(len, below)) if upwards else 0.0
    canvas, axes = canvas_of(wide * width + 0.9, high * height + 0.7 + names_height)
    turn, far = grid.turn, far or 1.0
    palette = colormaps["RdBu_r" if measure.better == "lower" else "RdBu"]
    against = f", difference to {sweep.label(str(sweep.baseline))}" if grid.less is not None else ""
    name = f"{measure.title}{against}" + (f" ({measure.unit})" if measure.unit else "")
    sign, decimals = "+" if against else "", max(0, 1 - int(np.floor(np.log10(far))))
    intervals: Intervals = {}
    values: dict[str, Array] = {}
    names: dict[str, str] = {}
    for number, (x, y) in enumerate(fit.pairs):
        over = fit.mean_of(x, y)
        shown = over.mean(axis=-1)
        edges = [start + np.arange(count + 1) for start, count in zip((left[x], bottom[y]), shown.shape, strict=True)]
        gid = f"heat{number}--{grid.group}"
        axes.pcolormesh(*edges, shown.T, cmap=palette, vmin=turn - far, vmax=turn + far, gid=gid)
        for i, j in product(range(shown.shape[0]), range(shown.shape[1])):
            role = f"{number * 10000 + i * 100 + j}"
            gid, at = f"cell{role}--{grid.group}", (left[x] + i + 0.5, bottom[y] + j + 0.5)
            label = f"{x} = {fit.levels[x][i]}, {y} = {fit.levels[y][j]}"
            axes.plot(at[:1], at[1:], "o", alpha=0.0, gid=gid, label=label)
            values[gid], names[f"cell{role}"] = shown[i, j : j + 1], name
            spread = None if grid.censored else t_test.mean(over[i, j], fit.size)
            if spread is not None:
                ends = spread.interval(study.settings.alpha)
                intervals[gid] = np.array(ends[:1]), np.array(ends[1:])
            strong = abs(shown[i, j] - turn) > 0.6 * far
            centred: dict[str, Any] = {"ha": "center", "va": "center", "gid": f"number{role}--{grid.group}"}
            centred |= {"color": _LIGHT if strong else _DARK, "fontsize": min(7.5, 15 * width)}
            axes.text(at[0], at[1], f"{shown[i, j]:{sign}.{decimals}f}", **centred)
    axes.tick_params(length=0, labelsize=8)
    _name_levels(axes, fit, left, bottom, (width, height))
    axes.set(xlim=(0, wide), ylim=(0, high))
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    label = sweep.label(grid.group)
    blue = "Blue is better, red worse" if measure.better else "Blue is higher, red lower"
    white = "no difference" if against else "the mean of the grid"
    caption = (
        f"{label}: {name}, mean over {len(fit.centre)} seeds and over the levels of the other factors, for every pair "
        f"of factors. {blue}, white {white}; the same colours in every group.{_gaps(study, [grid])}"
    )
    return Sketch(
        f"heat_{key_of(grid.group)}", f"{label}: pairs of factors", caption, canvas, intervals, names, values=values
    )


def _starts(fit: Fit, factors: Sequence[str]) -> tuple[dict[str, float], float]:
    """Where the block of each factor begins, in levels, and where the last one ends."""
    starts, end = {}, 0.0
    for factor in factors:
        starts[factor] = end
        end += len(fit.levels[factor]) + _GAP
    return starts, end - _GAP


def _texts(levels: Sequence[Any], space: float) -> tuple[list[str], bool]:
    """The levels as labels below an axis with this space for each, in inches; whether they are written upwards, since
    they would otherwise overlap."""
    wrapped = [textwrap.fill(str(level), _LETTERS) for level in levels]
    letters = max(len(line) for text in wrapped for line in text.split("\n"))
    if letters * _LETTER <= space:
        return wrapped, False
    return [brief(str(level), _ON_END) for level in levels], True


def _name_levels(
    axes: Axes, fit: Fit, left: Mapping[str, float], bottom: Mapping[str, float], size: tuple[float, float]
) -> None:
    """The levels along both axes, and the factors beside them. size: of a cell, in inches."""
    for starts, across in ((left, True), (bottom, False)):
        levels = [level for factor in starts for level in fit.levels[factor]]
        at = [start + k + 0.5 for factor, start in starts.items() for k in range(len(fit.levels[factor]))]
        texts, upwards = _texts(levels, size[0] if across else math.inf)
        lines = max(text.count("\n") for text in texts) + 1
        if not across and lines * _LINE > size[1]:
            texts, lines = [brief(str(level), _ON_END) for level in levels], 1
        letters = max(len(line) for text in texts for line in text.split("\n"))
        if across:
            axes.set_xticks(at, texts, rotation=90 if upwards else 0)
        else:
            axes.set_yticks(at, texts, fontsize=min(8.0, 60 * size[1]))
        for factor, start in starts.items():
            middle = start + len(fit.levels[factor]) / 2
            centred: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": 9}
            if across:
                below = (0, -12 - (5 * letters if upwards else 10 * lines))
                axes.annotate(factor, (middle, 0), below, xycoords=("data", "axes fraction"), **centred)
            else:
                beside, turned = (-12 - 5.5 * letters, 0), {**centred, "rotation": 90}
                axes.annotate(factor, (0, middle), beside, xycoords=("axes fraction", "data"), **turned)


def _gaps(study: Study, noted_grids: Sequence[Grid]) -> str:
    noted = [f"{study.sweep.label(grid.group)}: {'; '.join(grid.notes)}." for grid in noted_grids if grid.notes]
    return "".join(f" {text}" for text in [*noted, *all_levels(study.settings)])

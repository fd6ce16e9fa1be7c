"""The grids of an experiment: the effect of each factor on the primary measure in each group, and, for exploration,
every cell against the baseline; as values, tables and figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.data import cells
from analysis.data.sweep import Cell, Run
from analysis.figures.canvas import INK, Sketch, brief, canvas_of, colours, legend, panels_of
from analysis.figures.traces import tell
from analysis.findings.study import Study
from analysis.spec.cell import grouped, key_of
from analysis.spec.metric_catalog import capital
from analysis.stats import factorial, multiplicity, t_test
from analysis.stats.contrast import Contrast
from analysis.stats.factorial import Effect, Fit
from analysis.stats.numbers import Interval, format_estimate, format_level, format_number, format_p
from analysis.tables import wording
from analysis.tables.levels import runs_by_cell
from analysis.tables.table import Entry, Table, ends, share, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Seeds = dict[int, dict[Cell, float]]


@dataclass(frozen=True)
class Grid:
    """A group over its factors on the primary measure.

    seeds: of the fit, in its order. less: the same cells minus the baseline of their seed, None where it lacks one of
    them. notes: what is left out, and what has no interval. censored: whether the values are times, which
    may be cut at the budget, so that no t interval is valid.
    """

    group: str
    seeds: tuple[int, ...]
    fit: Fit
    less: Fit | None
    effects: tuple[Effect, ...]
    notes: tuple[str, ...]
    censored: bool

    @property
    def shown(self) -> Fit:
        """Relative to the baseline if it has every cell."""
        return self.fit if self.less is None else self.less

    @property
    def turn(self) -> float:
        """The neutral value: no difference to the baseline, or the mean of the grid."""
        return 0.0 if self.less is not None else float(self.fit.centre.mean())


@dataclass(frozen=True)
class CellResult:
    """One cell of a group: its mean over seeds, and the difference to the baseline of the same seeds, with its t
    interval.

    p: of the declared test; q: Benjamini and Hochberg's, over all cells of all groups. remark: what the cell lacks.
    """

    group: str
    cell: Cell
    n: int
    planned: int
    mean: float | None
    remark: str
    pairs: int = 0
    difference: float | None = None
    interval: Interval | None = None
    p: float | None = None
    q: float | None = None


def grids(study: Study) -> list[Grid]:
    """A grid for each group that has factors and a seed with a result."""
    return [grid for group in study.sweep.groups if (grid := _grid(study, group)) is not None]


def _grid(study: Study, group: str) -> Grid | None:
    kept = _kept(study, group)
    if not kept.seeds or not factorial.levels_of(kept.planned):
        return None
    filled = cells.filled(kept)
    usable = next(iter(filled.values()))
    at, out = factorial.separable([cell for cell in runs_by_cell(study.sweep, group) if cell in usable])
    levels = factorial.levels_of(at)
    if not levels:
        return None
    values = {seed: {cell: by_cell[cell] for cell in at} for seed, by_cell in filled.items()}
    notes = [f"seed {seed} is left out: {why}" for seed, why in kept.lost.items()]
    if kept.dropped:
        used = f"{len(kept.planned) - len(kept.dropped)} of {len(kept.planned)} cells are used"
        notes.append(f"{used}; no seed has a result of {kept.left_out}")
    if not kept.balanced:
        lacking = sum(len(by_cell) < len(at) for by_cell in kept.seeds.values())
        lack = "lacks" if lacking == 1 else "lack"
        notes.append(f"{lacking} of {len(values)} seeds {lack} a cell, for which the mean of the others stands")
    if out:
        named = " and ".join(f"{name} = {level}" for name, level in out)
        notes.append(f"{named} left out too: the cells that remain there cannot separate its effect from others")
    if len(at) < np.prod([len(by_cell) for by_cell in levels.values()]):
        notes.append("with cells missing, means are compared as if no three factors interacted (least squares)")
    if len(values) == 1:
        notes.append("one seed: effects have no interval and cannot be distinguished from the luck of this seed")
    fit = factorial.fit(values)
    effects = factorial.effects_of(fit, study.settings.alpha)
    if censored := study.primary.measure.summary == "time_to":
        notes.append("times may be cut at the budget, so t intervals would not be valid")
        effects = tuple(replace(effect, interval=None, d=None) for effect in effects)
    less = _less_baseline(study, group, values)
    return Grid(group, tuple(values), fit, factorial.fit(less) if less else None, effects, tuple(notes), censored)


def _kept(study: Study, group: str) -> cells.Cells:
    """The cells of a group, with their factors in the plan's order."""
    runs = ((run, cell) for cell, runs in runs_by_cell(study.sweep, group).items() for run in runs)
    return cells.keep({(run.seed, cell): study.primary.values[run.id].value for run, cell in runs})


def _less_baseline(study: Study, group: str, values: Mapping[int, Mapping[Cell, float]]) -> Seeds:
    """The values minus the baseline's of the same seed, or its mean if seeds are not paired, on the levels of common
    factors, completed where a seed lacks one; empty where no seed has a pair at some cell."""
    baseline = study.sweep.baseline
    if baseline is None or baseline == group:
        return {}
    base, kept = _kept(study, baseline), _kept(study, group)
    less: Seeds = {}
    at = list(next(iter(values.values())))
    for cell in at:
        pairs = _pairs(study, {s: by_cell[cell] for s, by_cell in kept.seeds.items() if cell in by_cell}, cell, base)
        if not pairs.a or not pairs.b:
            return {}
        others = pairs.b if study.settings.pairing == "seed" else (float(np.mean(pairs.b)),) * len(pairs.a)
        for seed, a, b in zip(pairs.seeds, pairs.a, others, strict=True):
            less.setdefault(seed, {})[cell] = a - b
    return cells.filled(cells.Cells(dict(sorted(less.items())), {}, (), tuple(at)))


def _pairs(study: Study, values: Mapping[int, float], cell: Cell, base: cells.Cells) -> cells.Pairs:
    alone = cells.Cells({seed: {cell: value} for seed, value in values.items()}, {}, (), (cell,))
    compared = cells.pair if study.settings.pairing == "seed" else cells.samples
    return compared(alone, base, ("the cell", "the baseline"))


def cell_results(study: Study) -> list[CellResult]:
    """Every cell of every group that has factors, the baseline included."""
    sweep = study.sweep
    baseline = sweep.baseline
    base = _kept(study, baseline) if baseline is not None else None
    results: list[CellResult] = []
    for group in sweep.groups:
        by_cell = runs_by_cell(sweep, group)
        if factorial.levels_of(by_cell):
            against = base if group != baseline else None
            results += [_cell(study, cell, runs, against) for cell, runs in by_cell.items()]
    adjusted = iter(multiplicity.benjamini_hochberg([result.p for result in results if result.pairs]))
    return [replace(result, q=next(adjusted)) if result.pairs else result for result in results]


def _cell(study: Study, cell: Cell, runs: Sequence[Run], base: cells.Cells | None) -> CellResult:
    by_seed = {run.seed: study.primary.values[run.id] for run in runs}
    values = {seed: value.value for seed, value in by_seed.items() if value.value is not None}
    lacking = grouped((of.reason or "no result", str(seed)) for seed, of in by_seed.items() if of.value is None)
    remarks = [f"seed {', '.join(seeds)}: {why}" for why, seeds in lacking.items()]
    mean = float(np.mean(list(values.values()))) if values else None
    pairs = _pairs(study, values, cell, base) if base is not None and values else None
    settings, summary = study.settings, study.primary.measure.summary
    alone = CellResult(runs[0].group, cell, len(values), len(by_seed), mean, "; ".join(remarks))
    if pairs is None or not pairs.a or not pairs.b:
        return alone
    contrast = Contrast(settings.test_of(summary), np.array(pairs.a), np.array(pairs.b), settings.seed)
    interval, p = contrast.interval(settings.alpha), contrast.p()
    return replace(alone, pairs=contrast.n, difference=contrast.difference, interval=interval, p=p)


#: The heading of a p value, by test.
HEADS = {
    "paired_t": "p paired t", "signflip": "p sign-flip", "wilcoxon": "p Wilcoxon", "welch": "p Welch",
    "relabel": "p relabelling",
}  # fmt: skip


def grid_tables(study: Study, every: Sequence[Grid], results: Sequence[CellResult]) -> list[Table]:
    """What factors do, alone and in pairs, and every cell."""
    return [
        _effects(study, every, 1, "effects", "What each factor does"),
        _effects(study, every, 2, "interactions", "What two factors do together"),
        _cells(study, results if any(result.n for result in results) else ()),
    ]


def _effects(study: Study, every: Sequence[Grid], count: int, name: str, title: str) -> Table:
    """The effects of `count` factors together."""
    measure = study.primary.measure
    entries: list[Entry] = []
    for grid in every:
        for effect in grid.effects:
            if len(effect.factors) != count or (count == 2 and _mirrored(grid, effect)):
                continue
            levels = ", ".join(map(str, effect.levels))
            row = (
                study.sweep.label(grid.group), " × ".join(effect.factors), levels, str(effect.n),
                format_estimate(effect.value, effect.interval, signed=True), format_number(effect.d, 2) or "-",
            )  # fmt: skip
            record = {
                "metric": measure.metric, "summary": measure.summary, "group": grid.group,
                "factors": ", ".join(effect.factors), "levels": levels, "seeds": effect.n, "effect": effect.value,
                **ends(effect.interval), "d": effect.d,
            }  # fmt: skip
            entries.append((grid.group, row, record))
    level, of = format_level(study.settings.alpha), measure.title
    meaning = {
        1: f"Effect on the {of}: the mean at this level minus the mean of the group's grid, within each seed.",
        2: f"Effect on the {of}: what a pair of levels adds to the sum of their two main effects, within each seed. "
        "For a factor with two levels, only the second is shown; the first has the same number with the opposite sign.",
    }[count]
    notes = [
        f"{meaning} The mean over seeds with its {level} t interval, which is not adjusted for the number of effects. "
        "Use it to find where to look, not to draw conclusions.",
        "d: effect over its standard deviation over seeds, with Hedges' correction; three seeds are needed.",
        *wording.all_levels(study.settings),
        *(f"{study.sweep.label(grid.group)}: {'; '.join(grid.notes)}." for grid in every if grid.notes),
    ]
    heads = ("factor", "level") if count == 1 else ("factors", "levels")
    return table(name, title, ("method", *heads, "seeds", "effect", "d"), entries, notes)


def _mirrored(grid: Grid, effect: Effect) -> bool:
    """Whether the effect is of the first of two levels, which only mirrors the second."""
    levels_of = [grid.fit.levels[factor] for factor in effect.factors]
    return any(len(levels) == 2 and level == levels[0] for levels, level in zip(levels_of, effect.levels, strict=True))


def _cells(study: Study, results: Sequence[CellResult]) -> Table:
    labels = list(dict.fromkeys(label for result in results for label, _ in result.cell))
    alpha, measure = study.settings.alpha, study.primary.measure
    entries: list[Entry] = []
    for result in results:
        of = dict(result.cell)
        row = (
            study.sweep.label(result.group), *(str(of.get(label, "-")) for label in labels),
            share(result.n, result.planned),
            format_number(result.mean) or "-", format_estimate(result.difference, result.interval, signed=True) or "-",
            format_p(result.p, alpha) or "-", format_p(result.q, alpha) or "-", result.remark,
        )  # fmt: skip
        record = {
            "metric": measure.metric, "summary": measure.summary, "group": result.group, **of, "seeds": result.n,
            "seeds_planned": result.planned, "mean": result.mean, "pairs": result.pairs,
            "difference": result.difference,
            **ends(result.interval), "p": result.p, "q": result.q, "remark": result.remark,
        }  # fmt: skip
        entries.append((result.group, row, record))
    test, paired = study.settings.test_of(measure.summary), study.settings.pairing == "seed"
    compared = sum(result.pairs > 0 for result in results)
    notes = (
        f"EXPLORATORY: the cells of one seed share its luck, and the best of {compared} is the best partly by "
        "luck. Test a cell that stands out here with new seeds.",
        f"{capital(measure.title)}: mean over seeds, and its difference to the baseline"
        f"{' over the same seeds' if paired else ''} with the {format_level(alpha)} interval of this cell alone, by "
        f"{wording.test_name(test)}. q: Benjamini and Hochberg's adjustment of p over all "
        f"{compared} cells: of those with q up to x, a share of x at most is expected to be there by luck.",
        *wording.all_levels(study.settings),
    )
    columns = ("method", *labels, "seeds", "value", "difference", HEADS[test], "q", "remark")
    return table("cells", "Every cell (exploratory)", columns, entries, notes)


_ACROSS = 5  # panels beside each other
_MANY = 10  # levels, above which each panel has a row of its own
_WHOLE = 7.0  # width of a row, in inches
_LETTER, _LINE = 0.072, 0.15  # width of a letter and height of a line beside an axis, in inches
_ON_END = 24  # letters of a level that is written upwards
_APART = 0.13  # distance of groups at one level, in distances between levels
_ASIDE = 0.05  # distance of the seeds from their mean
_LETTERS = 9  # characters of a level in a line
_GAP = 0.2  # between blocks of a heat map, in levels
_DARK, _LIGHT = "#111113", "#fdfdfd"  # numbers on a colour: the same on white and on black paper


def main_effects(study: Study, drawn_grids: Sequence[Grid]) -> Sketch | None:
    """A panel for each factor with every group's effect of each level, its interval and seeds; None without a grid."""
    every = [(factor, level) for grid in drawn_grids for factor, of in grid.fit.levels.items() for level in of]
    levels = grouped(dict.fromkeys(every))
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
    for number, (axes, (factor, factor_levels)) in enumerate(zip(panels, levels.items(), strict=False)):
        axes.axhline(0, color=INK, linewidth=0.9)
        for index, grid in enumerate(drawn_grids):
            if factor in grid.fit.levels:
                aside = _APART * (index - (len(drawn_grids) - 1) / 2)
                at = [factor_levels.index(level) + aside for level in grid.fit.levels[factor]]
                _levels(axes, study, grid, factor, at, number)
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
    return Sketch("effects", "Main effects of the factors", caption, canvas)


def _levels(axes: Axes, study: Study, grid: Grid, factor: str, at: Sequence[float], number: int) -> None:
    """Draw a group's effects of one factor."""
    colour = colours(study.sweep.groups)[grid.group][0]
    effects = [effect for effect in grid.effects if effect.factors == (factor,)]
    axes.plot(at, [e.value for e in effects], color=colour, linewidth=1.0, alpha=0.6, gid=f"join{number}--{grid.group}")
    for index, (x, effect) in enumerate(zip(at, effects, strict=True)):
        of, which = f"{number * 100 + index}", f"{factor} = {effect.levels[0]}"
        for seed, value in zip(grid.seeds, grid.fit.mains[factor][index], strict=True):
            dot: dict[str, Any] = {"markersize": 3.0, "markeredgewidth": 0, "alpha": 0.5, "color": colour}
            gid, label = f"seed{of}.{seed}--{grid.group}", f"{which}, seed {seed}"
            axes.plot([x + _ASIDE], [value], "o", gid=gid, label=label, **dot)
        if effect.interval is not None:
            axes.plot((x, x), effect.interval, color=colour, linewidth=1.6, gid=f"span{of}--{grid.group}")
        gid, label = f"mean{of}--{grid.group}", f"{which}, mean over seeds"
        tell(axes.plot([x], [effect.value], "D", gid=gid, label=label, color=colour, markersize=4.5), effect.interval)


def heat_maps(study: Study, every: Sequence[Grid]) -> list[Sketch]:
    """For each group with two or more factors, its mean over every pair of them, all with one colour scale."""
    drawn = [grid for grid in every if len(grid.shown.levels) > 1]
    off = grouped(
        (grid.less is not None, float(np.abs(grid.shown.mean_of(*pair).mean(axis=-1) - grid.turn).max()))
        for grid in drawn
        for pair in grid.shown.pairs
    )
    return [_heat_map(study, grid, max(off[grid.less is not None])) for grid in drawn]


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
            spread = None if grid.censored else t_test.mean(over[i, j], fit.size)
            interval = None if spread is None else spread.interval(study.settings.alpha)
            tell(axes.plot(at[:1], at[1:], "o", alpha=0.0, gid=gid, label=label), interval, values=shown[i, j : j + 1])
            names[f"cell{role}"] = name
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
    return Sketch(f"heat_{key_of(grid.group)}", f"{label}: pairs of factors", caption, canvas, names)


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
    return "".join(f" {text}" for text in [*noted, *wording.all_levels(study.settings)])

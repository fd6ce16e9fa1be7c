"""The grids of an experiment: the effect of each factor on the primary measure in each group, and, for exploration,
every cell against the baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.data import cells
from analysis.data.sweep import Cell, Run
from analysis.findings.levels import arranged, factor_order
from analysis.findings.study import Study
from analysis.stats import dispersion, factorial, multiplicity
from analysis.stats.contrast import Contrast
from analysis.stats.dispersion import Split
from analysis.stats.factorial import Effect, Fit
from analysis.stats.t_test import Interval

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
    split: the two clusters of the seeds of the cell, if they are no single one; apart: the seeds of the smaller one.
    """

    group: str
    cell: Cell
    n: int
    planned: int
    mean: float | None
    pairs: int
    difference: float | None
    interval: Interval | None
    p: float | None
    q: float | None
    remark: str
    split: Split | None = None
    apart: tuple[int, ...] = ()


def grids(study: Study) -> list[Grid]:
    """A grid for each group that has factors and a seed with a result."""
    return [grid for group in study.sweep.groups if (grid := _grid(study, group)) is not None]


def _grid(study: Study, group: str) -> Grid | None:
    kept = _kept(study, group)
    if not kept.seeds or not factorial.levels_of(kept.planned):
        return None
    filled = cells.filled(kept)
    at, out = factorial.separable(_in_order(study, next(iter(filled.values()))))
    levels = factorial.levels_of(at)
    if not levels:
        return None
    values = {seed: {cell: by_cell[cell] for cell in at} for seed, by_cell in filled.items()}
    notes = [f"seed {seed} is left out: {why}" for seed, why in kept.lost.items()]
    if kept.dropped:
        used = f"{len(kept.planned) - len(kept.dropped)} of {len(kept.planned)} cells are used"
        notes.append(f"{used}; no seed has a result of {kept.left_out} ({_fates(study, group, kept.dropped)})")
    if not kept.balanced:
        lacking = sum(len(own) < len(at) for own in kept.seeds.values())
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


def _fates(study: Study, group: str, gone: Collection[Cell]) -> str:
    """The states of the runs of these cells that have no result, with their counts."""
    order = factor_order(study.sweep)
    lacking = [
        run.state if run.problem else "no value"
        for run in study.sweep.runs
        if run.group == group and arranged(run.cell, order) in gone and study.primary.values[run.id].value is None
    ]
    return ", ".join(f"{lacking.count(state)} {state}" for state in dict.fromkeys(lacking))


def _kept(study: Study, group: str) -> cells.Kept:
    """The cells of a group, with their factors in the plan's order."""
    runs = study.sweep.of(group)
    order = factor_order(study.sweep)
    return cells.keep({(run.seed, arranged(run.cell, order)): study.primary.values[run.id].value for run in runs})


def _in_order(study: Study, some: Mapping[Cell, float]) -> list[Cell]:
    """Cells in the order of the plan's runs."""
    order = factor_order(study.sweep)
    planned = dict.fromkeys(arranged(run.cell, order) for run in study.sweep.runs)
    return [cell for cell in planned if cell in some]


def _less_baseline(study: Study, group: str, values: Mapping[int, Mapping[Cell, float]]) -> Seeds:
    """The values minus the baseline's of the same seed, or its mean if seeds are not paired, on the levels of common
    factors, completed where a seed lacks one; empty where no seed has a pair at some cell."""
    baseline = study.sweep.baseline
    if baseline is None or baseline == group:
        return {}
    base, kept = _kept(study, baseline), _kept(study, group)
    less: Seeds = {}
    at = list(next(iter(values.values())))
    paired = study.settings.pairing == "seed"
    for cell in at:
        pairs = _pairs(study, {seed: own[cell] for seed, own in kept.seeds.items() if cell in own}, cell, base)
        if not pairs.a or not pairs.b:
            return {}
        others = pairs.b if paired else (float(np.mean(pairs.b)),) * len(pairs.a)
        for seed, a, b in zip(pairs.seeds, pairs.a, others, strict=True):
            less.setdefault(seed, {})[cell] = a - b
    return cells.filled(cells.Kept(dict(sorted(less.items())), {}, (), tuple(at)))


def _pairs(study: Study, values: Mapping[int, float], cell: Cell, base: cells.Kept) -> cells.Pairs:
    alone = cells.Kept({seed: {cell: value} for seed, value in values.items()}, {}, (), (cell,))
    compared = cells.pair if study.settings.pairing == "seed" else cells.samples
    return compared(alone, base, ("the cell", "the baseline"))


def cell_results(study: Study) -> list[CellResult]:
    """Every cell of every group that has factors, the baseline included."""
    sweep = study.sweep
    order, baseline = factor_order(study.sweep), sweep.baseline
    base = _kept(study, baseline) if baseline is not None else None
    results: list[CellResult] = []
    for group in sweep.groups:
        by_cell: dict[Cell, list[Run]] = {}
        for run in sweep.runs:
            if run.group == group:
                by_cell.setdefault(arranged(run.cell, order), []).append(run)
        if factorial.levels_of(by_cell):
            against = base if group != baseline else None
            results += [_cell(study, cell, runs, against) for cell, runs in by_cell.items()]
    compared = [index for index, result in enumerate(results) if result.pairs]
    adjusted = multiplicity.benjamini_hochberg([results[index].p for index in compared])
    for index, q in zip(compared, adjusted, strict=True):
        results[index] = replace(results[index], q=q)
    return results


def _cell(study: Study, cell: Cell, runs: Sequence[Run], base: cells.Kept | None) -> CellResult:
    group = runs[0].group
    by_seed = {run.seed: study.primary.values[run.id] for run in runs}
    values = {seed: value.value for seed, value in by_seed.items() if value.value is not None}
    lacking: dict[str, list[str]] = {}
    for seed, value in by_seed.items():
        if value.value is None:
            lacking.setdefault(value.reason or "no result", []).append(str(seed))
    remark = "; ".join(f"seed {', '.join(seeds)}: {why}" for why, seeds in lacking.items())
    mean = float(np.mean(list(values.values()))) if values else None
    pairs = _pairs(study, values, cell, base) if base is not None and values else None
    settings, summary = study.settings, study.primary.measure.summary
    split = None if summary == "time_to" else dispersion.split(list(values.values()))
    apart = () if split is None else tuple(list(values)[place] for place in split.smaller)
    if pairs is None or not pairs.a or not pairs.b:
        return CellResult(group, cell, len(values), len(by_seed), mean, 0, None, None, None, None, remark, split, apart)
    test = settings.test_of(summary)
    contrast = Contrast(test, np.array(pairs.a), np.array(pairs.b), settings.seed)
    interval, p = contrast.interval(settings.alpha), contrast.p()
    return CellResult(
        group, cell, len(values), len(by_seed), mean, contrast.n, contrast.difference, interval, p, None, remark, split,
        apart,
    )  # fmt: skip

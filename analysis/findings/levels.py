"""The primary measure of each method at each of its cells, which a mean over cells hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.data import cells
from analysis.data.sweep import Cell, Run, Sweep, level_of
from analysis.findings import looks
from analysis.findings.outcomes import collapse
from analysis.findings.study import Block, Study, selected_runs
from analysis.spec.cell import part

_SEVERAL = 3  # levels, of which one may make up most of a difference: of two, one always does
_MOST = 0.5


@dataclass(frozen=True)
class AtLevel:
    """A group at one level of a factor, over all levels of the others. mean: of the primary measure over the results;
    None without one. results: how many of the planned runs have one."""

    level: Any
    results: int
    planned: int
    mean: float | None


@dataclass(frozen=True)
class AtCell(AtLevel):
    """A group in one of its cells, of which `level` has the levels of the factors of which the group has several.
    collapsed: how many of the planned runs collapsed."""

    collapsed: int


def at_cells(study: Study, group: str) -> tuple[AtCell, ...]:
    """A group in each of its cells, in the plan's order; empty if it has one cell."""
    runs, names = runs_by_cell(study.sweep, group), varied(study.sweep, group)
    made = [
        AtCell(part(cell, names), *_at(study, members), collapsed=sum(bool(collapse(run)) for run in members))
        for cell, members in runs.items()
    ]
    return tuple(made) if len(made) > 1 else ()


def _at(study: Study, runs: Sequence[Run]) -> tuple[int, int, float | None]:
    """Results, planned and mean of AtLevel."""
    values = [value for run in runs if (value := study.primary.values[run.id].value) is not None]
    return len(values), len(runs), float(np.mean(values)) if values else None


@dataclass(frozen=True)
class Levels:
    """A group at each level of a factor, which is named by its key. best: the level with the best mean among those
    where every planned run has a result; None if no level is complete, or if no direction of the metric is better."""

    group: str
    factor: str
    levels: tuple[AtLevel, ...]
    best: AtLevel | None


def levels(study: Study) -> tuple[Levels, ...]:
    """Each group at the levels of each factor of which it has several, in the plan's order."""
    return tuple(
        _levels(study, group, str(key), str(factor["label"]), factor["levels"])
        for group in study.sweep.groups
        for key, factor in (study.sweep.plan.get("factors") or {}).items()
        if factor.get("label") in varied(study.sweep, group)
    )


def _levels(study: Study, group: str, key: str, label: str, declared: Sequence[Any]) -> Levels:
    runs: dict[Any, list[Run]] = {}
    for run in study.sweep.of(group):
        runs.setdefault(dict(run.cell).get(label), []).append(run)
    found = [AtLevel(level, *_at(study, runs[level_of(level)])) for level in declared if level_of(level) in runs]
    # A level is not best because the runs that it spoilt are missing from its mean.
    complete = [at for at in found if at.results == at.planned]
    sign = study.primary.measure.sign
    known = complete and study.primary.measure.better is not None
    best = max(complete, key=lambda at: sign * (at.mean or 0.0)) if known else None
    return Levels(group, key, tuple(found), best)


@dataclass(frozen=True)
class Dominant:
    """One of several levels that makes up most of the difference of a group to the baseline. share: of the sum of the
    sizes of the differences of `levels` levels."""

    group: str
    level: Cell
    share: float
    levels: int


def dominant(study: Study) -> tuple[Dominant, ...]:
    """The levels of the factors that a group shares with the baseline of which one makes up most of its difference on
    the primary measure; none if scores are normalised."""
    block = study.primary
    if study.settings.normalize:
        return ()
    kept = _kept(study, block)
    found = []
    for comparison in block.comparisons:
        names = comparison.group, comparison.baseline
        by_level = cells.pair(kept[names[0]], kept[names[1]], names).by_level
        total = sum(map(abs, by_level.values()))
        if len(by_level) >= _SEVERAL and total > 0:
            level = max(by_level, key=lambda level: abs(by_level[level]))
            share = abs(by_level[level]) / total
            found += [Dominant(comparison.group, level, share, len(by_level))] if share > _MOST else []
    return tuple(found)


def uneven(study: Study, block: Block) -> dict[str, tuple[int, tuple[Cell, ...]]]:
    """For each group that lacks levels of the factors that all groups have and another group has a result of: how many
    it has, and those that it lacks. So the values of groups are means over different levels."""
    kept = _kept(study, block)
    usable = {group: one for group, one in kept.items() if one.seeds}
    shared = set.intersection(*(cells.labels_of(one) for one in usable.values())) if usable else set()
    levels = {group: dict.fromkeys(part(cell, shared) for cell in one.cells) for group, one in usable.items()}
    every = dict.fromkeys(level for own in levels.values() for level in own)
    lacking = {group: tuple(level for level in every if level not in own) for group, own in levels.items()}
    return {group: (len(levels[group]), gone) for group, gone in lacking.items() if gone}


def _kept(study: Study, block: Block) -> dict[str, cells.Kept]:
    """What the values of each group on a measure are made of."""
    sweep = looks.looked_at(study.sweep, study.settings)
    selected = selected_runs(sweep, study.settings, block.measure, block.values)
    return {group: own.kept for group, own in selected.items()}


def averaged_over(study: Study, block: Block, group: str) -> tuple[str, ...]:
    """The labels of the factors over whose levels the values of a group on a measure are means."""
    choice = block.choices.get(group)
    chosen = choice.factors if choice is not None and choice.level is not None else ()
    return tuple(label for label in varied(study.sweep, group) if label not in chosen)


def varied(sweep: Sweep, group: str) -> tuple[str, ...]:
    """The labels of the factors of which a group has several levels."""
    levels: dict[str, set[str]] = {}
    for label, level in (item for run in sweep.of(group) for item in run.cell):
        levels.setdefault(label, set()).add(repr(level))
    return tuple(label for label, known in levels.items() if len(known) > 1)


def runs_by_cell(sweep: Sweep, group: str) -> dict[Cell, list[Run]]:
    """The runs of a group in each of its cells, which have their factors in the plan's order."""
    order, runs = factor_order(sweep), dict[Cell, list[Run]]()
    for run in sweep.of(group):
        runs.setdefault(arranged(run.cell, order), []).append(run)
    return runs


def factor_order(sweep: Sweep) -> list[str]:
    """The labels of the factors in the plan's order."""
    declared = sweep.plan.get("factors") or {}
    known = [str(factor["label"]) for factor in declared.values() if isinstance(factor, Mapping) and "label" in factor]
    return list(dict.fromkeys([*known, *(label for run in sweep.runs for label, _ in run.cell)]))


def arranged(cell: Cell, order: Sequence[str]) -> Cell:
    """The cell with its factors in this order."""
    return tuple(sorted(cell, key=lambda item: order.index(item[0])))

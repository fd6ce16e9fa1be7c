"""The primary measure of each method at each of its cells, which a mean over cells hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.data.sweep import Cell, Run, Sweep
from analysis.findings.collapse import collapse
from analysis.findings.study import Study


@dataclass(frozen=True)
class AtCell:
    """A group in one of its cells. cell: the levels of the factors of which the group has several. mean: over the seeds
    with a result, None if there is none. collapsed: how many of the planned runs collapsed."""

    group: str
    cell: Cell
    seeds: int
    planned: int
    mean: float | None
    collapsed: int


def at_cells(study: Study, group: str) -> tuple[AtCell, ...]:
    """A group in each of its cells, in the plan's order; empty if it has one cell."""
    order = factor_order(study.sweep)
    runs: dict[Cell, list[Run]] = {}
    for run in study.sweep.of(group):
        runs.setdefault(arranged(run.cell, order), []).append(run)
    if len(runs) < 2:
        return ()
    names, made = varied(study.sweep, group), []
    for cell, members in runs.items():
        values = [value for run in members if (value := study.primary.values[run.id].value) is not None]
        made.append(
            AtCell(
                group=group,
                cell=tuple(item for item in cell if item[0] in names),
                seeds=len(values),
                planned=len(members),
                mean=float(np.mean(values)) if values else None,
                collapsed=sum(bool(collapse(run)) for run in members),
            )
        )
    return tuple(made)


def varied(sweep: Sweep, group: str) -> tuple[str, ...]:
    """The labels of the factors of which a group has several levels."""
    levels: dict[str, set[str]] = {}
    for label, level in (item for run in sweep.of(group) for item in run.cell):
        levels.setdefault(label, set()).add(repr(level))
    return tuple(label for label, known in levels.items() if len(known) > 1)


def factor_order(sweep: Sweep) -> list[str]:
    """The labels of the factors in the plan's order."""
    declared = sweep.plan.get("factors") or {}
    known = [str(factor["label"]) for factor in declared.values() if isinstance(factor, Mapping) and "label" in factor]
    return list(dict.fromkeys([*known, *(label for run in sweep.runs for label, _ in run.cell)]))


def arranged(cell: Cell, order: Sequence[str]) -> Cell:
    """The cell with its factors in this order."""
    return tuple(sorted(cell, key=lambda item: order.index(item[0])))

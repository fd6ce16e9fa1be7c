"""The cells of a group that two sweeps have in common: the same levels of every factor that either of them varies.

A factor of one sweep may be a fixed setting of the other, whose level then is in the frozen configurations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Any

from analysis.data.sweep import Cell, Run, Sweep, level_of

NOT_RECORDED = "not recorded"  # the level of a factor that a sweep neither varies nor has in its configurations


class LeftOutBecause(StrEnum):
    """Why a cell is not compared."""

    ONLY_A = auto()
    ONLY_B = auto()
    SAME_RUNS = auto()  # its runs are the same in both, and other cells are not


@dataclass(frozen=True)
class LeftOut:
    """Cells of a group that are not compared; planned: all cells that either sweep has of it."""

    group: str
    why: LeftOutBecause
    cells: tuple[Cell, ...]
    planned: tuple[Cell, ...]


@dataclass(frozen=True)
class CommonCells:
    """The runs of a group in two sweeps, each with its levels of all factors that either sweep varies for this group.

    a, b: runs of the common cells. cells: the common cells, in the order of A's plan. every: the cells of each sweep.
    """

    group: str
    a: tuple[Run, ...]
    b: tuple[Run, ...]
    cells: tuple[Cell, ...]
    every: tuple[tuple[Cell, ...], tuple[Cell, ...]]
    left_out: tuple[LeftOut, ...]


#: The frozen configuration of a run, with verl's tree under `verl`; empty where it cannot be read.
Configs = Mapping[str, Mapping[str, Any]]


def common_cells(
    group: str, sweeps: tuple[Sweep, Sweep], configs: tuple[Configs, Configs], shared: Collection[str]
) -> CommonCells:
    """Match the cells of a group. configs[side][run id]; shared: ids of the runs that are the same in both sweeps.

    A cell whose runs are all the same in both is left out if another one is not: its difference is zero by
    construction.
    """
    keys = [_keys(sweep) for sweep in sweeps]
    varied = dict.fromkeys(
        own[label] for sweep, own in zip(sweeps, keys, strict=True) for run in sweep.of(group) for label, _ in run.cell
    )
    names = _names(varied, keys)
    both = []
    for sweep, own, config in zip(sweeps, keys, configs, strict=True):
        runs = sweep.of(group)
        both.append([(run, _whole(run, runs, own, names, config)) for run in runs])
    whole = [dict(cell) for own in both for _, cell in own]
    constant = {name for name in names.values() if len({cell[name] for cell in whole}) == 1}
    a, b = ([(run, _without(cell, constant)) for run, cell in own] for own in both)
    every = (_distinct(cell for _, cell in a), _distinct(cell for _, cell in b))
    planned = _distinct([*every[0], *every[1]])
    common = [cell for cell in every[0] if cell in every[1]]
    same = [cell for cell in common if all(run.id in shared for run, own in (*a, *b) if own == cell)]
    if len(same) == len(common):
        same = []
    gone = {
        LeftOutBecause.ONLY_A: [cell for cell in every[0] if cell not in common],
        LeftOutBecause.ONLY_B: [cell for cell in every[1] if cell not in common],
        LeftOutBecause.SAME_RUNS: same,
    }
    kept = tuple(cell for cell in common if cell not in same)
    return CommonCells(
        group=group,
        a=tuple(_with(run, cell) for run, cell in a if cell in kept),
        b=tuple(_with(run, cell) for run, cell in b if cell in kept),
        cells=kept,
        every=every,
        left_out=tuple(LeftOut(group, why, tuple(cells), planned) for why, cells in gone.items() if cells),
    )


def _keys(sweep: Sweep) -> dict[str, str]:
    """The key of each factor by its label, which is unique within one sweep only."""
    declared = sweep.plan.get("factors") or {}
    labels = {str(factor.get("label", key)): str(key) for key, factor in declared.items()}
    return {label: labels.get(label, label) for run in sweep.runs for label, _ in run.cell}


def _names(varied: Iterable[str], keys: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What each key is called: its label in A, else in B, or the key itself where two keys have the same label."""
    labels: dict[str, str] = {}
    for own in reversed(keys):
        labels |= {key: label for label, key in own.items() if key in varied}
    short = list(labels.values())
    return {key: label if short.count(label) == 1 else key for key, label in labels.items()}


def _distinct(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple(dict.fromkeys(cells))


def _without(cell: Cell, names: Collection[str]) -> Cell:
    return tuple(item for item in cell if item[0] not in names)


def _with(run: Run, cell: Cell) -> Run:
    return replace(run, cell=cell)


def _whole(run: Run, runs: Sequence[Run], own: Mapping[str, str], names: Mapping[str, str], configs: Configs) -> Cell:
    """The run's level of each of these keys, sorted by name as the cells of a sweep are."""
    known = {own[label]: level for label, level in run.cell}
    levels = {
        name: known[key] if key in known else _configured(key, [run, *runs], configs) for key, name in names.items()
    }
    return tuple(sorted(levels.items()))


def _configured(key: str, runs: Sequence[Run], configs: Configs) -> Any:
    """The setting in the configuration of the first run; in those of the others if that one has not been started."""
    first, *others = (configs[run.id] for run in runs)
    if first:
        return _setting(first, key)
    settings = {_setting(config, key) for config in others if config}
    return settings.pop() if len(settings) == 1 else NOT_RECORDED


def _setting(config: Mapping[str, Any], key: str) -> Any:
    path = key.replace("/", ".").split(".")
    found = _at(config, path)
    if found is None and path[0] == "verl":
        found = _at(config, ["base", *path[1:]])
    if isinstance(found, Mapping):  # a choice of a configuration group
        found = found.get("name")
    return NOT_RECORDED if found is None else level_of(found)


def _at(config: Any, path: Sequence[str]) -> Any:
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config

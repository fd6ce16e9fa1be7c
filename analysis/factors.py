"""What each factor of a grid does: main effects and two-way interactions, judged over seeds.

The effect is computed within each seed, on the cells of that seed averaged over the other factors, and then its mean
over seeds gets a t interval. So a seed whose luck differs from cell to cell counts once, not once a cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from analysis import student
from analysis.exact import check_alpha
from analysis.student import Interval

Array = NDArray[np.float64]
Cell = tuple[tuple[str, Hashable], ...]


@dataclass(frozen=True)
class Effect:
    """What one level of a factor, or one pair of levels of two, adds to the mean of the grid, over n seeds.

    factors and levels: one of each for a main effect, two for an interaction, which is what the pair adds beyond the
    two main effects. value: mean over seeds, in the unit of the numbers; effects of a factor sum to zero. interval: its
    t interval; None with one seed or without spread. d: value over the standard deviation over seeds, with Hedges'
    correction; None with fewer than 3 seeds or without spread.
    """

    factors: tuple[str, ...]
    levels: tuple[Hashable, ...]
    n: int
    value: float
    interval: Interval | None
    d: float | None


def effects(seeds: Mapping[int, Mapping[Cell, float]], alpha: float = 0.05) -> tuple[Effect, ...]:
    """Main effects, then interactions of every two factors, in the factors' order; seeds[seed][cell] is its value.

    A cell is its factors with their levels. Every seed must have the same cells, and the cells must be a full grid of
    the factors with more than one level, so that no effect carries a part of another.

    Raises ValueError naming a cell that a seed lacks.
    """
    check_alpha(alpha)
    if not seeds:
        return ()
    names, levels = _design(seeds)
    if not names:
        return ()
    shape = tuple(len(levels[name]) for name in names)
    grid = np.array([_grid(seed, cells, names, levels).reshape(shape) for seed, cells in seeds.items()])
    found: list[Effect] = []
    mains: dict[str, Array] = {}
    centre = grid.mean(axis=tuple(range(1, grid.ndim)))
    for place, name in enumerate(names):
        others = tuple(axis for axis in range(1, grid.ndim) if axis != place + 1)
        mains[name] = grid.mean(axis=others) - centre[:, None]
        found += [_effect((name,), (level,), mains[name][:, k], alpha) for k, level in enumerate(levels[name])]
    for first, second in combinations(range(len(names)), 2):
        others = tuple(axis for axis in range(1, grid.ndim) if axis not in (first + 1, second + 1))
        a, b = names[first], names[second]
        both = grid.mean(axis=others) - centre[:, None, None] - mains[a][:, :, None] - mains[b][:, None, :]
        for i, j in product(range(shape[first]), range(shape[second])):
            found.append(_effect((a, b), (levels[a][i], levels[b][j]), _settled(both[:, i, j], grid), alpha))
    return tuple(found)


def _design(seeds: Mapping[int, Mapping[Cell, float]]) -> tuple[list[str], dict[str, list[Hashable]]]:
    """The factors that vary, with their levels, both in the order of the first seed's cells."""
    levels: dict[str, list[Hashable]] = {}
    for cell in next(iter(seeds.values())):
        for name, level in cell:
            if level not in levels.setdefault(name, []):
                levels[name].append(level)
    return [name for name, found in levels.items() if len(found) > 1], levels


def _grid(
    seed: int, cells: Mapping[Cell, float], names: Sequence[str], levels: Mapping[str, Sequence[Hashable]]
) -> Array:
    of = {tuple(dict(cell).get(name) for name in names): value for cell, value in cells.items()}
    wanted = list(product(*(levels[name] for name in names)))
    for combination in wanted:
        if combination not in of:
            lacking = ", ".join(f"{name} = {level}" for name, level in zip(names, combination, strict=True))
            raise ValueError(f"seed {seed} lacks the cell {lacking}: effects need a full grid, the same in every seed")
    return np.array([of[combination] for combination in wanted])


def _settled(values: Array, grid: Array) -> Array:
    """Zero where only the rounding of the subtraction is left."""
    return np.where(np.abs(values) <= 10 * student.ROUNDING * float(np.abs(grid).max()), 0.0, values)


def _effect(factors: tuple[str, ...], levels: tuple[Hashable, ...], values: Array, alpha: float) -> Effect:
    found = student.mean(values)
    if found is None:
        return Effect(factors, levels, values.size, float(values.mean()), None, None)
    d = None if values.size < 3 or found.sd is None else found.value / found.sd * student.hedges(values.size - 1)
    return Effect(factors, levels, values.size, found.value * found.unit, found.interval(alpha), d)

"""Each method at its best level of a factor, which is chosen on other seeds than those that it is judged on.

The best of several levels is best partly by luck. So the first half of the seeds chooses, and the others judge: their
values are independent. If each seed were judged at the level that all others choose, a t test would tell 14% of equal
methods apart at ten seeds (`python -m benchmarks.validity`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from analysis.data.cells import Cells, Values, keep
from analysis.data.sweep import Cell
from analysis.spec.cell import part


class Unchosen(StrEnum):
    """Why a group has no chosen level, so that it is averaged over its levels."""

    NO_DIRECTION = "no direction"
    ONE_SEED = "one seed"
    NO_LEVEL = "no level"


@dataclass(frozen=True)
class Choice:
    """The level of the selected factors at which a group is judged, of so many. level: None if there is none, for a
    reason. seeds: those that chose. lacking: levels that could not be chosen, because a choosing seed lacks a result
    there."""

    factors: tuple[str, ...]
    level: Cell | None
    levels: int
    seeds: tuple[int, ...]
    lacking: tuple[Cell, ...] = ()
    reason: Unchosen | None = None


@dataclass(frozen=True)
class Selected:
    """What counts of a group. places: of each run by its seed and cell, the cell that its value counts in, which lacks
    the selected factors; runs of other levels and of the seeds that chose are not in it. choice: None if the group has
    no two levels of the factors."""

    kept: Cells
    places: Mapping[tuple[int, Cell], Cell]
    choice: Choice | None = None

    @property
    def used(self) -> set[tuple[int, Cell]]:
        """The seeds and cells of the runs that the values are made of."""
        return {(seed, cell) for (seed, cell), at in self.places.items() if at in self.kept.seeds.get(seed, ())}


def choosing(planned: Mapping[str, Collection[int]], paired: bool) -> dict[str, tuple[int, ...]]:
    """The seeds of each group that choose its level: the first half of its planned seeds, or one fewer than the others.

    If seeds are paired and all groups have two or more in common, it is the half of these, so that the same seeds judge
    every group. The results do not matter for this, and neither do failed runs.
    """
    several = [set(seeds) for seeds in planned.values() if seeds]
    common = set.intersection(*several) if several and paired else set()
    halves = {}
    for group, seeds in planned.items():
        ordered = sorted(common if len(common) > 1 else seeds)
        halves[group] = tuple(ordered[: len(ordered) // 2])
    return halves


def best(values: Values, factors: Collection[str], seeds: Sequence[int], sign: float | None) -> Selected:
    """A group at its best level of the factors that it has: the highest mean of sign x value over these seeds.

    A level is chosen only if each of these seeds has a result there in all cells of the other factors. sign: None if
    neither direction is better. Without a choice, the group keeps all of its levels and seeds.
    """
    labels = tuple(dict.fromkeys(label for _, cell in values for label, _ in cell if label in factors))
    levels = tuple(dict.fromkeys(part(cell, labels) for _, cell in values))
    if len(levels) < 2:
        places = {(seed, cell): _without(cell, labels) for seed, cell in values}
        return Selected(keep({(seed, places[seed, cell]): value for (seed, cell), value in values.items()}), places)
    others = dict.fromkeys(_without(cell, labels) for _, cell in values)
    at = {(seed, part(cell, labels), _without(cell, labels)): value for (seed, cell), value in values.items()}
    known = {level: [at.get((seed, level, other)) for seed in seeds for other in others] for level in levels}
    means = {
        level: float(np.mean([value for value in results if value is not None]))
        for level, results in known.items()
        if results and None not in results
    }
    choice = Choice(labels, None, len(levels), tuple(seeds), tuple(level for level in levels if level not in means))
    if sign is None or not means:
        few = Unchosen.NO_LEVEL if seeds else Unchosen.ONE_SEED
        reason = Unchosen.NO_DIRECTION if sign is None else few
        whole = {(seed, cell): cell for seed, cell in values}
        return Selected(keep(values), whole, replace(choice, reason=reason))
    level = max(means, key=lambda level: sign * means[level])
    places = {
        (seed, cell): _without(cell, labels)
        for seed, cell in values
        if seed not in seeds and part(cell, labels) == level
    }
    kept = keep({(seed, places[seed, cell]): values[seed, cell] for seed, cell in places})
    lost = {**kept.lost, **dict.fromkeys(seeds, "it chose the level")}
    return Selected(replace(kept, lost=dict(sorted(lost.items()))), places, replace(choice, level=level))


def _without(cell: Cell, labels: Collection[str]) -> Cell:
    return tuple(item for item in cell if item[0] not in labels)

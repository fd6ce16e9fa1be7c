"""From runs to one number for each seed: the cells of a grid are averaged within a seed before anything is compared.

Nine cells of three seeds are three differences, not twenty-seven: cells of one seed share its luck, and treating them
as independent rejects a true null up to half of the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from analysis.data.run_values import Value
from analysis.data.sweep import Cell, Run

Values = Mapping[
    tuple[int, Cell], float | None
]  # planned runs of one group: (seed, cell) -> its value, None if it has none

_NAMED = 3  # cells named one by one


@dataclass(frozen=True)
class Kept:
    """A group's usable cells, the same ones in every seed.

    lost: seeds left out, with the reason. dropped: cells left out, of those planned.
    """

    seeds: Mapping[int, Mapping[Cell, float]]
    lost: Mapping[int, str]
    dropped: tuple[Cell, ...]
    planned: tuple[Cell, ...]

    @property
    def left_out(self) -> str:
        """The dropped cells in words: first the levels that were dropped in every cell, then single cells. It is empty
        if no cell was dropped."""
        return named(self.dropped, self.planned)


@dataclass(frozen=True)
class Pairs:
    """Two groups on the same seeds: a[i] and b[i] belong to seeds[i]. lost: seeds without a pair, with the reason.
    Where seeds are not paired, b[i] belongs to seeds_of_b[i], and lost are seeds without a value.
    cells: those of each group that the values are means of. apart: the levels of each group on the factors that both
    have, where the groups have seeds in common but no level; else None."""

    seeds: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    lost: Mapping[int, str]
    notes: tuple[str, ...]
    cells: tuple[frozenset[Cell], frozenset[Cell]]
    seeds_of_b: tuple[int, ...] = ()
    apart: tuple[tuple[Cell, ...], tuple[Cell, ...]] | None = None


def keep_runs(runs: Iterable[Run], values: Mapping[str, Value]) -> Kept:
    """`keep` of the runs of one group; values[run id]."""
    return keep({(run.seed, run.cell): values[run.id].value for run in runs})


def keep(values: Values) -> Kept:
    """Balance a group: leave out cells that no seed has, then seeds with half of the other cells or fewer, and at last
    every cell that some seed lacks.

    So all seeds are averaged over the same cells, and a level that diverges in every seed does not remove the other
    levels.
    """
    planned: dict[int, set[Cell]] = {}
    usable: dict[int, dict[Cell, float]] = {}
    for (seed, cell), value in values.items():
        planned.setdefault(seed, set()).add(cell)
        if value is not None:
            usable.setdefault(seed, {})[cell] = value
    somewhere = {cell for cells in usable.values() for cell in cells}
    lost: dict[int, str] = {}
    for seed in sorted(planned):
        have, expected = len(usable.get(seed, {})), len(planned[seed] & somewhere)
        if 2 * have <= expected or not expected:
            several = expected > 1 and len(planned[seed]) > 1
            lost[seed] = f"{have} of {expected} cells have a result" if several else "no result"
            usable.pop(seed, None)
    everywhere = set.intersection(*(set(cells) for cells in usable.values())) if usable else set()
    union = {cell for seed in usable for cell in planned[seed]}
    dropped = tuple(sorted(union - everywhere, key=repr))
    if not everywhere:
        lost.update(dict.fromkeys(usable, "no cell that every seed has"))
        usable = {}
    seeds = {seed: {cell: usable[seed][cell] for cell in sorted(everywhere, key=repr)} for seed in sorted(usable)}
    return Kept(seeds, lost, dropped, tuple(sorted(union, key=repr)))


def named(gone: Collection[Cell], planned: Collection[Cell]) -> str:
    """Cells of a grid in words: first each level whose planned cells are all gone, then at most three other cells."""
    of_level: dict[tuple[str, Any], list[Cell]] = {}
    for cell in planned:
        for item in cell:
            of_level.setdefault(item, []).append(cell)
    rest, parts = dict.fromkeys(gone), []
    for (label, level), cells in of_level.items():
        if len(cells) < len(planned) and all(cell in gone for cell in cells) and any(cell in rest for cell in cells):
            parts.append(f"{label} = {level}")
            for cell in cells:
                rest.pop(cell, None)
    parts += [", ".join(f"{label} = {level}" for label, level in cell) for cell in [*rest][:_NAMED]]
    return "; ".join(parts) + (f"; and {len(rest) - _NAMED} more" if len(rest) > _NAMED else "")


def means(kept: Kept) -> dict[int, float]:
    """One number for each seed: the mean over the kept cells."""
    return {seed: _mean(list(cells.values())) for seed, cells in kept.seeds.items()}


def pair(
    a: Kept,
    b: Kept,
    names: tuple[str, str],
    without: Mapping[int, str] = MappingProxyType({}),
    by_seed: bool = True,
) -> Pairs:
    """Pair two groups by seed. Factors that both have are matched level by level, the others averaged over.

    without: seeds that are left out, with the reason. by_seed: False leaves all seeds of each group as they are.
    """
    shared = labels_of(a) & labels_of(b)
    own = [sorted(set(kept.seeds) - set(without)) for kept in (a, b)]
    if by_seed:
        own = [sorted(set(own[0]) & set(own[1]))] * 2
    both = bool(own[0] and own[1])
    lost: dict[int, str] = {}
    for kept, name in ((a, names[0]), (b, names[1])):
        for seed, why in kept.lost.items():
            lost[seed] = "; ".join(filter(None, (lost.get(seed), f"{name}: {why}")))
    for seed in sorted(set(a.seeds) ^ set(b.seeds)) if by_seed else ():
        missing = names[1] if seed in a.seeds else names[0]
        lost.setdefault(seed, f"{missing}: not planned")
    notes = [
        f"{name}: averaged over {len(k.planned) - len(k.dropped)} of {len(k.planned)} cells; left out, because "
        f"they lack a run: {k.left_out}" for k, name in ((a, names[0]), (b, names[1])) if k.dropped
    ]  # fmt: skip
    every = [next(iter(kept.seeds.values()), {}) for kept in (a, b)]  # the cells, which are the same in every seed
    levels = [dict.fromkeys(_level(cell, shared) for cell in cells) for cells in every]
    planned = list({**levels[0], **levels[1]})
    matched = sorted(set(levels[0]) & set(levels[1]), key=repr) if both else []
    if both and not matched:
        lost |= dict.fromkeys(sorted({*own[0], *own[1]}), "no level of the shared factors in both groups")
    elif both and len(matched) < len(planned):
        alone = [
            (name, [level for level in each if level not in matched]) for name, each in zip(names, levels, strict=True)
        ]
        only = "; ".join(f"only {name} has {named(gone, planned)}" for name, gone in alone if gone)
        notes.append(f"compared on {len(matched)} of {len(planned)} levels of the shared factors: {only}")
    seeds = [tuple(each) if matched else () for each in own]
    left, right = (
        [by_level(kept.seeds[seed], shared) for seed in each] for kept, each in zip((a, b), seeds, strict=True)
    )
    means_a, means_b = (tuple(_mean([of[level] for level in matched]) for of in each) for each in (left, right))
    used = [frozenset(cell for cell in cells if _level(cell, shared) in matched) for cells in every]
    lost |= without
    apart = (tuple(levels[0]), tuple(levels[1])) if both and not matched else None
    gone = dict(sorted(lost.items()))
    return Pairs(seeds[0], means_a, means_b, gone, tuple(notes), (used[0], used[1]), seeds[1], apart)


def labels_of(kept: Kept) -> set[str]:
    """The factors of a group."""
    return {label for cells in kept.seeds.values() for cell in cells for label, _ in cell}


def by_level(cells: Mapping[Cell, float], shared: Collection[str]) -> dict[Cell, float]:
    """A seed's cells averaged over all factors but the shared ones."""
    grouped: dict[Cell, list[float]] = {}
    for cell, value in cells.items():
        grouped.setdefault(_level(cell, shared), []).append(value)
    return {level: _mean(values) for level, values in grouped.items()}


def _level(cell: Cell, shared: Collection[str]) -> Cell:
    return tuple(item for item in cell if item[0] in shared)


def _mean(values: Sequence[float]) -> float:
    """The mean; of a single value, as a group without factors has, the value itself, which is much faster."""
    return values[0] if len(values) == 1 else float(np.mean(values))

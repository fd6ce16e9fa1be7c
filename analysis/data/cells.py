"""From runs to one number a seed: the cells of a grid are averaged within a seed before anything is compared.

Nine cells of three seeds are three differences, not twenty-seven: cells of one seed share its luck, and treating them
as independent rejects a true null up to half of the time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.data.sweep import Cell

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
        """The dropped cells in words: the levels that are gone altogether, then the other cells; "" for none."""
        return named(self.dropped, self.planned)


@dataclass(frozen=True)
class Pairs:
    """Two groups on the same seeds: a[i] and b[i] belong to seeds[i]. lost: seeds without a pair, with the reason.
    cells: of the two groups, those whose values these are means of, in every seed."""

    seeds: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    lost: Mapping[int, str]
    notes: tuple[str, ...]
    cells: tuple[frozenset[Cell], frozenset[Cell]]


def keep(values: Values) -> Kept:
    """Balance a group: a cell that no seed has is left out, as is then a seed with half of the others or fewer, and at
    last a cell that some seed lacks, of all.

    So every seed is averaged over the same cells, and none silently over fewer; and a level that diverges in every seed
    does not take the others with it.
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
        have, wanted = len(usable.get(seed, {})), len(planned[seed] & somewhere)
        if 2 * have <= wanted or not wanted:
            several = wanted > 1 and len(planned[seed]) > 1
            lost[seed] = f"{have} of {wanted} cells have a result" if several else "no result"
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
    """Cells of a grid in words: each level all of whose planned cells are gone, then the others, the first three."""
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
    parts += [", ".join(f"{label} = {level}" for label, level in cell) for cell in list(rest)[:_NAMED]]
    return "; ".join(parts) + (f"; and {len(rest) - _NAMED} more" if len(rest) > _NAMED else "")


def means(kept: Kept) -> dict[int, float]:
    """One number a seed: the mean over the kept cells."""
    return {seed: _mean(list(cells.values())) for seed, cells in kept.seeds.items()}


def pair(a: Kept, b: Kept, names: tuple[str, str]) -> Pairs:
    """Pair two groups by seed. Factors that both have are matched level by level, the others averaged over."""
    shared = labels_of(a) & labels_of(b)
    both = sorted(set(a.seeds) & set(b.seeds))
    lost: dict[int, str] = {}
    for kept, name in ((a, names[0]), (b, names[1])):
        for seed, why in kept.lost.items():
            lost[seed] = "; ".join(filter(None, (lost.get(seed), f"{name}: {why}")))
    for seed in sorted(set(a.seeds) ^ set(b.seeds)):
        missing = names[1] if seed in a.seeds else names[0]
        lost.setdefault(seed, f"{missing}: not planned")
    notes = [
        f"{name}: averaged over {len(k.planned) - len(k.dropped)} of {len(k.planned)} cells; left out, for they lack a "
        f"run: {k.left_out}" for k, name in ((a, names[0]), (b, names[1])) if k.dropped
    ]  # fmt: skip
    left, right = [], []
    used: tuple[frozenset[Cell], frozenset[Cell]] = frozenset(), frozenset()
    for seed in both:
        one, other = by_level(a.seeds[seed], shared), by_level(b.seeds[seed], shared)
        matched = sorted(set(one) & set(other), key=repr)
        if not matched:
            lost[seed] = "no level of the shared factors in both groups"
            continue
        if seed == both[0] and len(matched) < len(set(one) | set(other)):
            notes.append(f"compared on {len(matched)} of {len(set(one) | set(other))} levels of the shared factors")
        own, theirs = (frozenset(c for c in k.seeds[seed] if _level(c, shared) in matched) for k in (a, b))
        used = own, theirs
        left.append(_mean([one[level] for level in matched]))
        right.append(_mean([other[level] for level in matched]))
    seeds = tuple(seed for seed in both if seed not in lost)
    return Pairs(seeds, tuple(left), tuple(right), dict(sorted(lost.items())), tuple(notes), used)


def leave_out(pairs: Pairs, without: Mapping[int, str]) -> Pairs:
    """The same pairs but for these seeds, which are lost for the reason given."""
    kept = [place for place, seed in enumerate(pairs.seeds) if seed not in without]
    seeds = tuple(pairs.seeds[place] for place in kept)
    a, b = (tuple(values[place] for place in kept) for values in (pairs.a, pairs.b))
    return replace(pairs, seeds=seeds, a=a, b=b, lost=dict(sorted({**pairs.lost, **without}.items())))


def labels_of(kept: Kept) -> set[str]:
    """The factors that multiply a group."""
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
    """A seed whose group nothing multiplies has one cell: its value, in no time."""
    return values[0] if len(values) == 1 else float(np.mean(values))

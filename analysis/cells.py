"""From runs to one number a seed: the cells of a grid are averaged within a seed before anything is compared.

Nine cells of three seeds are three differences, not twenty-seven: cells of one seed share its luck, and treating them
as independent rejects a true null up to half of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.read import Cell

Values = Mapping[
    tuple[int, Cell], float | None
]  # planned runs of one group: (seed, cell) -> its value, None if it has none


@dataclass(frozen=True)
class Kept:
    """A group's usable cells, the same ones in every seed.

    lost: seeds left out, with the reason. dropped: cells left out.
    """

    seeds: Mapping[int, Mapping[Cell, float]]
    lost: Mapping[int, str]
    dropped: tuple[Cell, ...]
    planned: int


@dataclass(frozen=True)
class Pairs:
    """Two groups on the same seeds: a[i] and b[i] belong to seeds[i]. lost: seeds without a pair, with the reason."""

    seeds: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    lost: Mapping[int, str]
    notes: tuple[str, ...]


def keep(values: Values) -> Kept:
    """Balance a group: a seed with half of its cells or fewer is left out; then a cell that some seed lacks is left out
    of all.

    So every seed is averaged over the same cells, and none silently over fewer.
    """
    planned: dict[int, set[Cell]] = {}
    usable: dict[int, dict[Cell, float]] = {}
    for (seed, cell), value in values.items():
        planned.setdefault(seed, set()).add(cell)
        if value is not None:
            usable.setdefault(seed, {})[cell] = value
    lost: dict[int, str] = {}
    for seed in sorted(planned):
        have = len(usable.get(seed, {}))
        if 2 * have <= len(planned[seed]):
            lost[seed] = (
                "no result" if len(planned[seed]) == 1 else f"{have} of {len(planned[seed])} cells have a result"
            )
            usable.pop(seed, None)
    everywhere = set.intersection(*(set(cells) for cells in usable.values())) if usable else set()
    union = {cell for seed in usable for cell in planned[seed]}
    dropped = tuple(sorted(union - everywhere, key=repr))
    if not everywhere:
        lost.update(dict.fromkeys(usable, "no cell that every seed has"))
        usable = {}
    seeds = {seed: {cell: usable[seed][cell] for cell in sorted(everywhere, key=repr)} for seed in sorted(usable)}
    return Kept(seeds, lost, dropped, len(union))


def means(kept: Kept) -> dict[int, float]:
    """One number a seed: the mean over the kept cells."""
    return {seed: float(np.mean(list(cells.values()))) for seed, cells in kept.seeds.items()}


def pair(a: Kept, b: Kept, names: tuple[str, str]) -> Pairs:
    """Pair two groups by seed. Factors that both have are matched level by level, the others averaged over."""
    shared = _labels(a) & _labels(b)
    both = sorted(set(a.seeds) & set(b.seeds))
    lost: dict[int, str] = {}
    for kept, name in ((a, names[0]), (b, names[1])):
        for seed, why in kept.lost.items():
            lost[seed] = "; ".join(filter(None, (lost.get(seed), f"{name}: {why}")))
    for seed in sorted(set(a.seeds) ^ set(b.seeds)):
        missing = names[1] if seed in a.seeds else names[0]
        lost.setdefault(seed, f"{missing}: not planned")
    notes = [f"{name}: averaged over {k.planned - len(k.dropped)} of {k.planned} cells, the others lack a run"
             for k, name in ((a, names[0]), (b, names[1])) if k.dropped]  # fmt: skip
    left, right = [], []
    for seed in both:
        one, other = _levels(a.seeds[seed], shared), _levels(b.seeds[seed], shared)
        matched = sorted(set(one) & set(other), key=repr)
        if not matched:
            lost[seed] = "no level of the shared factors in both groups"
            continue
        if seed == both[0] and len(matched) < len(set(one) | set(other)):
            notes.append(f"compared on {len(matched)} of {len(set(one) | set(other))} levels of the shared factors")
        left.append(float(np.mean([one[level] for level in matched])))
        right.append(float(np.mean([other[level] for level in matched])))
    seeds = tuple(seed for seed in both if seed not in lost)
    return Pairs(seeds, tuple(left), tuple(right), dict(sorted(lost.items())), tuple(notes))


def leave_out(pairs: Pairs, without: Mapping[int, str]) -> Pairs:
    """The same pairs but for these seeds, which are lost for the reason given."""
    kept = [place for place, seed in enumerate(pairs.seeds) if seed not in without]
    seeds = tuple(pairs.seeds[place] for place in kept)
    a, b = (tuple(values[place] for place in kept) for values in (pairs.a, pairs.b))
    return Pairs(seeds, a, b, dict(sorted({**pairs.lost, **without}.items())), pairs.notes)


def _labels(kept: Kept) -> set[str]:
    return {label for cells in kept.seeds.values() for cell in cells for label, _ in cell}


def _levels(cells: Mapping[Cell, float], shared: set[str]) -> dict[Cell, float]:
    grouped: dict[Cell, list[float]] = {}
    for cell, value in cells.items():
        grouped.setdefault(tuple(item for item in cell if item[0] in shared), []).append(value)
    return {level: float(np.mean(values)) for level, values in grouped.items()}

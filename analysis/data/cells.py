"""From runs to one number for each seed: the cells of a grid are averaged within a seed before anything is compared,
or each method is taken at its best level of a factor.

Nine cells of three seeds are three differences, not twenty-seven: cells of one seed share its luck, and treating them
as independent rejects a true null up to half of the time. A seed may lack cells; `analysis.stats.strata` says how they
then count.

The best of several levels is best partly by luck. So the first half of the seeds chooses, and the others judge: their
values are independent. If each seed were judged at the level that all others choose, a t test would tell 14% of equal
methods apart at ten seeds (`python -m benchmarks.validity`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from analysis.data.run_values import Value
from analysis.data.sweep import Cell, Run
from analysis.spec.cell import grouped, part
from analysis.stats import strata

#: The planned runs of one group: the value of each (seed, cell), or None if the run has no value.
Values = Mapping[tuple[int, Cell], float | None]

#: of_level[level of the shared factors][cell of one group, cell of the other][seed]: the value of each.
OfLevel = Mapping[Cell, Mapping[tuple[Cell, Cell], Mapping[int, tuple[float, float]]]]

_NAMED = 3  # cells named one by one
_NEITHER = (math.nan, math.nan)


@dataclass(frozen=True)
class Cells:
    """The results of a group by seed and cell; a seed may lack some cells.

    lost: the seeds without any result, with the reason. dropped: the cells in which no seed has a result. planned: all
    cells of the plan.
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

    @property
    def averaging(self) -> str:
        """Over how many cells a mean is, if some were dropped."""
        count = f"{len(self.planned) - len(self.dropped)} of {len(self.planned)} cells"
        return f"averaged over {count}; left out, because no seed has a result: {self.left_out}"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of which some seed has a result."""
        return tuple(sorted({cell for by_cell in self.seeds.values() for cell in by_cell}, key=repr))

    @property
    def balanced(self) -> bool:
        """Whether every seed has the same cells."""
        return len({frozenset(by_cell) for by_cell in self.seeds.values()}) < 2


@dataclass(frozen=True)
class Pairs:
    """Two groups on the same seeds: a[i] and b[i] belong to seeds[i]; their means are means over levels, each of the
    pairs that it has. Where seeds are not paired, b[i] belongs to seeds_of_b[i].

    lost: seeds without a pair, or without a value, with the reason. runs: (seed, cell) of each group that the values
    are made of. apart: the levels of each group, where the groups have seeds in common but no level; else None.
    """

    seeds: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    lost: Mapping[int, str]
    notes: tuple[str, ...]
    runs: tuple[frozenset[tuple[int, Cell]], frozenset[tuple[int, Cell]]]
    seeds_of_b: tuple[int, ...]
    apart: tuple[tuple[Cell, ...], tuple[Cell, ...]] | None = None


def keep_runs(runs: Iterable[Run], values: Mapping[str, Value]) -> Cells:
    """Call `keep` with the runs of one group. values: by run id."""
    return keep({(run.seed, run.cell): values[run.id].value for run in runs})


def keep(values: Values) -> Cells:
    """Sort the runs of a group by seed and cell, and note the seeds and cells that have no result."""
    planned = grouped(values)
    usable = grouped((seed, (cell, value)) for (seed, cell), value in values.items() if value is not None)
    lost = {seed: "no result" for seed in sorted(planned) if seed not in usable}
    somewhere = {cell for results in usable.values() for cell, _ in results}
    union = {cell for seed in usable for cell in planned[seed]}
    seeds = {seed: dict(sorted(usable[seed], key=lambda of: repr(of[0]))) for seed in sorted(usable)}
    return Cells(seeds, lost, tuple(sorted(union - somewhere, key=repr)), tuple(sorted(union, key=repr)))


def filled(kept: Cells) -> dict[int, dict[Cell, float]]:
    """The cells of each seed, the same ones in every seed: `strata.completed` of what they have."""
    if kept.balanced:
        return {seed: dict(by_cell) for seed, by_cell in kept.seeds.items()}
    cells = kept.cells
    whole = strata.completed([[by_cell.get(cell, math.nan) for cell in cells] for by_cell in kept.seeds.values()])
    return {seed: dict(zip(cells, row.tolist(), strict=True)) for seed, row in zip(kept.seeds, whole, strict=True)}


def named(gone: Collection[Cell], planned: Collection[Cell]) -> str:
    """Cells of a grid in words: first each level whose planned cells are all gone, then at most three other cells."""
    of_level = grouped((item, cell) for cell in planned for item in cell)
    rest, parts = dict.fromkeys(gone), []
    for (label, level), cells in of_level.items():
        if len(cells) < len(planned) and all(cell in gone for cell in cells) and any(cell in rest for cell in cells):
            parts.append(f"{label} = {level}")
            for cell in cells:
                rest.pop(cell, None)
    parts += [", ".join(f"{label} = {level}" for label, level in cell) for cell in [*rest][:_NAMED]]
    return "; ".join(parts) + (f"; and {len(rest) - _NAMED} more" if len(rest) > _NAMED else "")


def means(kept: Cells) -> dict[int, float]:
    """One number for each seed: the mean over its cells; where seeds lack some, over those of `filled`."""
    return {seed: _mean(list(by_cell.values())) for seed, by_cell in filled(kept).items()}


def pair(a: Cells, b: Cells, names: tuple[str, str], without: Mapping[int, str] = MappingProxyType({})) -> Pairs:
    """Pair two groups by seed. Factors that both have are matched level by level, the others averaged over.

    Each level counts the same, with the pairs that it has. without: seeds that are left out, with the reason.
    """
    shared = labels_of(a) & labels_of(b)
    both = sorted((set(a.seeds) & set(b.seeds)) - set(without))
    several = ((a, names[0]), (b, names[1]))
    lost = _lost(several)
    for seed in sorted(set(a.seeds) ^ set(b.seeds)):
        lost.setdefault(seed, f"{names[1] if seed in a.seeds else names[0]}: not planned")
    notes = [f"{name}: {kept.averaging}" for kept, name in several if kept.dropped]
    levels = [dict.fromkeys(part(cell, shared) for cell in kept.cells) for kept in (a, b)]
    of_level = _strata(a, b, both, shared)
    apart = None
    if both and not set(levels[0]) & set(levels[1]):
        lost |= dict.fromkeys(both, "no level of the shared factors in both groups")
        apart = (tuple(levels[0]), tuple(levels[1]))
    elif both:
        notes += _unmatched(levels, of_level, names)
    every = [(cells, pairs) for by_cells in of_level.values() for cells, pairs in by_cells.items()]
    runs = [frozenset((seed, cells[side]) for cells, pairs in every for seed in pairs) for side in (0, 1)]
    seeds = tuple(seed for seed in both if any(seed in pairs for _, pairs in every))
    if not apart:
        lost |= {seed: "no cell in which both have a result" for seed in both if seed not in seeds}
    left, right, unbalanced = _values(of_level, seeds)
    notes += unbalanced
    gone = dict(sorted({**lost, **without}.items()))
    return Pairs(seeds, left, right, gone, tuple(notes), (runs[0], runs[1]), seeds, apart)


def samples(a: Cells, b: Cells, names: tuple[str, str], without: Mapping[int, str] = MappingProxyType({})) -> Pairs:
    """Two groups whose seeds are not paired, each with all its seeds: the mean over the levels that both have, each of
    which counts the same (`filled`). without: as `pair`."""
    shared = labels_of(a) & labels_of(b)
    kept = [replace(group, seeds={s: at for s, at in group.seeds.items() if s not in without}) for group in (a, b)]
    levels = [dict.fromkeys(part(cell, shared) for cell in group.cells) for group in kept]
    matched = {level for level in levels[0] if level in levels[1]}
    apart = (tuple(levels[0]), tuple(levels[1])) if all(levels) and not matched else None
    notes = [f"{name}: {group.averaging}" for group, name in zip(kept, names, strict=True) if group.dropped]
    notes += _unmatched(levels, matched, names) if matched else []
    usable = [_at(group, shared, matched) for group in kept]
    left, right = (means(group) if group.seeds else {} for group in usable)
    runs = [frozenset((seed, cell) for seed, by_cell in group.seeds.items() for cell in by_cell) for group in usable]
    lost = dict(sorted({**_lost(zip((a, b), names, strict=True)), **without}.items()))
    return Pairs(
        tuple(left), tuple(left.values()), tuple(right.values()), lost, tuple(notes), (runs[0], runs[1]), tuple(right),
        apart,
    )  # fmt: skip


def differences(a: Cells, b: Cells) -> dict[Cell, float]:
    """The mean difference of two groups at each level of the factors that both have: over its cells, of each over the
    seeds of both."""
    of_level = _strata(a, b, sorted(a.seeds.keys() & b.seeds.keys()), labels_of(a) & labels_of(b))
    return {
        level: _mean([_mean([x - y for x, y in pairs.values()]) for pairs in by_cells.values()])
        for level, by_cells in of_level.items()
    }


def _at(kept: Cells, shared: Collection[str], levels: Collection[Cell]) -> Cells:
    """A group at some levels of the shared factors, without seeds that have none of them."""
    seeds = {s: {c: value for c, value in at.items() if part(c, shared) in levels} for s, at in kept.seeds.items()}
    return replace(kept, seeds={seed: by_cell for seed, by_cell in seeds.items() if by_cell})


def _lost(several: Iterable[tuple[Cells, str]]) -> dict[int, str]:
    """The seeds without a result in a group, with the name of the group."""
    lost = grouped((seed, f"{name}: {why}") for kept, name in several for seed, why in kept.lost.items())
    return {seed: "; ".join(reasons) for seed, reasons in lost.items()}


def _strata(a: Cells, b: Cells, seeds: Sequence[int], shared: Collection[str]) -> OfLevel:
    """The pairs of two groups on these seeds: of each level of the shared factors that has one, for each cell of one
    group and of the other, by seed."""
    pairs: dict[Cell, dict[tuple[Cell, Cell], dict[int, tuple[float, float]]]] = {}
    for seed in seeds:
        theirs = grouped((part(cell, shared), (cell, value)) for cell, value in b.seeds[seed].items())
        for cell, value in a.seeds[seed].items():
            level = part(cell, shared)
            for other, against in theirs.get(level, ()):
                pairs.setdefault(level, {}).setdefault((cell, other), {})[seed] = value, against
    return {level: pairs[level] for level in sorted(pairs, key=repr)}


def _unmatched(
    levels: Sequence[Mapping[Cell, None]], of_level: Collection[Cell], names: tuple[str, str]
) -> Iterator[str]:
    """A note on the levels at which the two are not compared."""
    planned = list({**levels[0], **levels[1]})
    if len(of_level) == len(planned):
        return
    alone = [(name, [level for level in levels_of if level not in other])
             for name, levels_of, other in zip(names, levels, levels[::-1], strict=True)]  # fmt: skip
    parts = [f"only {name} has {named(gone, planned)}" for name, gone in alone if gone]
    apart = [level for level in levels[0] if level in levels[1] and level not in of_level]
    parts += [f"no seed has both at {named(apart, planned)}"] if apart else []
    yield f"compared on {len(of_level)} of {len(planned)} levels of the shared factors: {'; '.join(parts)}"


def _values(of_level: OfLevel, seeds: Sequence[int]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """One number of each group for each seed, and notes on what is unbalanced.

    If every seed has every pair of cells, it is the mean over levels. Else their difference is the contribution of the
    seed (`strata.contributions`), and their mid-point the mean over levels of the completed mid-points.
    """
    every = [pairs for by_cells in of_level.values() for pairs in by_cells.values()]
    if all(len(pairs) == len(seeds) for pairs in every):
        sides = []
        for side in (0, 1):
            by_level = [
                [_mean([*{cells[side]: pairs[seed][side] for cells, pairs in by_cells.items()}.values()])
                 for by_cells in of_level.values()] for seed in seeds
            ]  # fmt: skip
            sides.append(tuple(map(_mean, by_level)))
        return sides[0], sides[1], ()
    weights = [1 / len(of_level) / len(by_cells) for by_cells in of_level.values() for _ in by_cells]
    left, right = ([[pairs.get(seed, _NEITHER)[side] for pairs in every] for seed in seeds] for side in (0, 1))
    middle = (strata.completed(np.add(left, right) / 2) * weights).sum(axis=1)
    half = strata.contributions(np.subtract(left, right), weights) / 2
    counts = [len(pairs) for pairs in every if len(pairs) < len(seeds)]
    span = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    have = "has" if len(counts) == 1 else "have"
    note = (
        f"unbalanced: {len(counts)} of {len(every)} cells {have} {span} of {len(seeds)} pairs of seeds; every "
        "cell has equal weight"
    )
    return tuple((middle + half).tolist()), tuple((middle - half).tolist()), (note,)


def labels_of(kept: Cells) -> set[str]:
    """The factors of a group."""
    return {label for cells in kept.seeds.values() for cell in cells for label, _ in cell}


def runs_of_levels(kept: Cells, shared: Collection[str]) -> dict[Cell, list[float]]:
    """A number for each seed that has the level, for each level of the shared factors: the mean over the others."""
    at: dict[Cell, dict[int, dict[Cell, float]]] = {}
    for seed, by_cell in kept.seeds.items():
        for cell, value in by_cell.items():
            at.setdefault(part(cell, shared), {}).setdefault(seed, {})[cell] = value
    return {level: [*means(Cells(seeds, {}, (), ())).values()] for level, seeds in at.items()}


def _mean(values: Sequence[float]) -> float:
    """The mean; of a single value, as a group without factors has, the value itself, which is much faster."""
    return values[0] if len(values) == 1 else float(np.mean(values))


class Unchosen(StrEnum):
    """Why a group has no chosen level, so that it is averaged over its levels."""

    NO_DIRECTION = "no direction"
    ONE_SEED = "one seed"
    NO_LEVEL = "no level"


@dataclass(frozen=True)
class Choice:
    """The level of the selected factors at which a group is judged.

    level: None if none was chosen; `reason` says why. levels: how many there were. seeds: those that chose. lacking:
    levels that could not be chosen, because a choosing seed has no result there.
    """

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
    ordered = {group: sorted(common if len(common) > 1 else seeds) for group, seeds in planned.items()}
    return {group: tuple(seeds[: len(seeds) // 2]) for group, seeds in ordered.items()}


def best(values: Values, factors: Collection[str], seeds: Sequence[int], sign: float | None) -> Selected:
    """A group at its best level of the factors that it has: the highest mean of sign x value over these seeds.

    Levels are compared in those cells of the other factors that the plan has at each level; factors that go together,
    so that there is no such cell, are chosen together. A level is chosen only if it has all results there. sign: None
    if neither direction is better. Without a choice, the group keeps all of its levels and seeds.
    """
    present = dict.fromkeys(label for _, cell in values for label, _ in cell if label in factors)
    labels = _together(values, tuple(present))
    levels = tuple(dict.fromkeys(part(cell, labels) for _, cell in values))
    if len(levels) < 2:
        places = {(seed, cell): _without(cell, labels) for seed, cell in values}
        return Selected(keep({(seed, places[seed, cell]): value for (seed, cell), value in values.items()}), places)
    of_level = grouped((part(cell, labels), ((s, _without(cell, labels)), values[s, cell])) for s, cell in values)
    at = {level: {place: value for place, value in runs if place[0] in seeds} for level, runs in of_level.items()}
    shared = set.intersection(*map(set, at.values()))
    known = {level: [value for place, value in runs.items() if place in shared] for level, runs in at.items()}
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


def _together(values: Values, labels: tuple[str, ...]) -> tuple[str, ...]:
    """These factors, and others that have no level in common at all levels of these, as factors of a zip."""
    more = dict.fromkeys(label for _, cell in values for label, _ in cell if label not in labels)
    for label in more:
        apart = grouped((part(cell, labels), part(cell, (label,))) for _, cell in values)
        if len(apart) > 1 and not set.intersection(*map(set, apart.values())):
            labels = (*labels, label)
    return labels


def _without(cell: Cell, labels: Collection[str]) -> Cell:
    return tuple(item for item in cell if item[0] not in labels)

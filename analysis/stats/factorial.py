"""What each factor of a grid does: main effects and two-way interactions, judged over seeds.

The effect is computed within each seed, on the cells of that seed, and then its mean over seeds gets a t interval. So a
seed whose luck differs from cell to cell counts once, not once for each cell.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from analysis.stats import t_test
from analysis.stats.numbers import Array, Interval
from analysis.stats.resolution import check_alpha

Cell = tuple[tuple[str, Hashable], ...]
Levels = Mapping[str, Sequence[Hashable]]


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


@dataclass(frozen=True)
class Fit:
    """The grid of each seed as a sum of effects. levels: of each factor with several, in the order of the cells.

    centre (seeds,): the mean of the grid. mains[factor] (levels, seeds) and pairs[first, second] (levels, levels,
    seeds): the effects added to it. size: the largest number, which sets the rounding error.
    """

    levels: Levels
    centre: Array
    mains: Mapping[str, Array]
    pairs: Mapping[tuple[str, str], Array]
    size: float

    def mean_of(self, first: str, second: str) -> Array:
        """The mean of each pair of levels (levels, levels, seeds), over all levels of the other factors."""
        return self.centre + self.mains[first][:, None] + self.mains[second][None] + self.pairs[first, second]


def effects(seeds: Mapping[int, Mapping[Cell, float]], alpha: float = 0.05) -> tuple[Effect, ...]:
    """Main effects, then interactions of every two factors, in the factors' order; seeds[seed][cell] is its value.

    Raises the errors of `fit`.
    """
    return effects_of(fit(seeds), alpha)


def effects_of(effects: Fit, alpha: float = 0.05) -> tuple[Effect, ...]:
    """`effects` of a grid that `fit` has fitted."""
    check_alpha(alpha)
    made = [
        _effect((name,), (level,), effects.mains[name][k], effects.size, alpha)
        for name, named in effects.levels.items()
        for k, level in enumerate(named)
    ]
    for (a, b), both in effects.pairs.items():
        for (i, first), (j, second) in product(enumerate(effects.levels[a]), enumerate(effects.levels[b])):
            made.append(_effect((a, b), (first, second), both[i, j], effects.size, alpha))
    return tuple(made)


def fit(seeds: Mapping[int, Mapping[Cell, float]]) -> Fit:
    """Least squares of each seed's cells on the mean, the main effects and the two-way interactions of the factors with
    more than one level, which sum to zero over the levels of each.

    On a full grid these are differences of plain means. Where cells are missing, means are compared as if there were no
    interaction of three factors.

    Raises ValueError when seeds have other cells, or when the cells do not tell all effects apart (see `separable`).
    """
    if not seeds:
        return Fit({}, np.empty(0), {}, {}, 0.0)
    cells = list(next(iter(seeds.values())))
    for seed, at in seeds.items():
        if set(at) != set(cells):
            odd = min(set(at) ^ set(cells), key=repr)
            named = ", ".join(f"{name} = {level}" for name, level in odd)
            who = f"seed {seed}" if odd in cells else f"seed {next(iter(seeds))}"
            raise ValueError(f"{who} lacks the cell {named}: every seed needs the same cells")
    levels = levels_of(cells)
    design = _design(cells, levels)
    if _entangled(design):
        raise ValueError(f"{len(cells)} cells cannot separate all effects: leave out levels, as `separable` does")
    values = np.array([[at[cell] for at in seeds.values()] for cell in cells], dtype=np.float64)
    size = float(np.abs(values).max())
    fitted = np.asarray(np.linalg.lstsq(design, values)[0], dtype=np.float64)
    means = t_test.without_rounding(fitted, 10 * t_test.ROUNDING * size)
    free = {name: len(named) - 1 for name, named in levels.items()}
    ends = np.cumsum([1, *free.values(), *(free[a] * free[b] for a, b in combinations(levels, 2))])
    centre, *parts = np.split(means, ends[:-1])
    mains = {name: _contrast(len(named)) @ part for (name, named), part in zip(levels.items(), parts, strict=False)}
    pairs = {}
    for (a, b), part in zip(combinations(levels, 2), parts[len(levels) :], strict=True):
        left, right = _contrast(free[a] + 1), _contrast(free[b] + 1)
        pairs[a, b] = np.einsum("ia,abs,jb->ijs", left, part.reshape(free[a], free[b], -1), right)
    return Fit(levels, centre[0], mains, pairs, size)


def separable(cells: Sequence[Cell]) -> tuple[list[Cell], list[tuple[str, Hashable]]]:
    """The cells that determine all effects, and the levels left out for that: first the one that lacks most of its
    cells."""
    kept, out = list(cells), list[tuple[str, Hashable]]()
    while _entangled(_design(kept, levels := levels_of(kept))):
        whole = {name: np.prod([len(named) for other, named in levels.items() if other != name]) for name in levels}
        present = {
            (name, level): sum(dict(cell).get(name) == level for cell in kept)
            for name, named in levels.items()
            for level in named
        }
        share = {item: count / whole[item[0]] for item, count in present.items()}
        worst = min(reversed(share), key=share.__getitem__)
        out.append(worst)
        kept = [cell for cell in kept if dict(cell).get(worst[0]) != worst[1]]
    return kept, out


def levels_of(cells: Collection[Cell]) -> dict[str, list[Hashable]]:
    """The factors with more than one level, in the order of the cells; numbers by size, other levels in the order of
    the cells. None stands for a cell without the factor."""
    factors = dict[str, list[Hashable]]()
    for name in dict.fromkeys(name for cell in cells for name, _ in cell):
        levels = list(dict.fromkeys(dict(cell).get(name) for cell in cells))
        numbers = [level for level in levels if isinstance(level, (int, float)) and not isinstance(level, bool)]
        if len(levels) > 1:
            factors[name] = list[Hashable](sorted(numbers)) if len(numbers) == len(levels) else levels
    return factors


def _design(cells: Sequence[Cell], levels: Levels) -> Array:
    """A row for each cell: 1, then each factor's contrasts, then the products of those of every two factors."""
    of = {name: _contrast(len(x))[[x.index(dict(cell).get(name)) for cell in cells]] for name, x in levels.items()}
    columns = [np.ones((len(cells), 1)), *of.values()]
    columns += [np.einsum("ca,cb->cab", of[a], of[b]).reshape(len(cells), -1) for a, b in combinations(levels, 2)]
    return np.hstack(columns)


def _contrast(count: int) -> Array:
    """(levels, levels - 1): the last level is minus the sum of the others."""
    return np.vstack([np.eye(count - 1), -np.ones((1, count - 1))])


def _entangled(design: Array) -> bool:
    return bool(np.linalg.matrix_rank(design) < design.shape[1])


def _effect(factors: tuple[str, ...], levels: tuple[Hashable, ...], values: Array, size: float, alpha: float) -> Effect:
    if (mean := t_test.mean(values, 10 * size)) is None:
        return Effect(factors, levels, values.size, float(values.mean()), None, None)
    return Effect(factors, levels, values.size, mean.value * mean.unit, mean.interval(alpha), mean.d)

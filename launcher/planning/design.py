"""Factors, groups and conditions -> cells. Pure: no files, no clock, no globals.

A factor multiplies only the groups that read it (a conditional factor). A factor over a configuration group (`task`,
`method/control`) is laid out first, because the choice decides which keys exist, hence which other factors apply.
Several keys may go together in one factor (a zip); a group that reads some of them gets those keys' distinct levels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Choices = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Factor:
    """Keys whose levels go together, usually one key.

    choices: the keys that are configuration groups; values: the others; levels: each level has one entry for each key,
    those of `choices` first.
    """

    choices: tuple[str, ...]
    values: tuple[str, ...]
    levels: tuple[tuple[Any, ...], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, in the order of a level's entries."""
        return (*self.choices, *self.values)

    def levels_of(self, key: str) -> list[Any]:
        """The levels of one key, each once."""
        return distinct([level[self.keys.index(key)] for level in self.levels])

    def without(self, keys: Collection[str]) -> Factor | None:
        """The factor over its other keys, each combination once; None when no key is left."""
        kept = [index for index, key in enumerate(self.keys) if key not in keys]
        if not kept:
            return None
        choices, values = (tuple(key for key in names if key not in keys) for names in (self.choices, self.values))
        return Factor(choices, values, tuple(distinct([tuple(level[i] for i in kept) for level in self.levels])))


@dataclass(frozen=True)
class Cell:
    """One treatment: a comparison group, its choices of configuration groups, and the value factors it reads."""

    group: str
    choices: Choices
    values: tuple[tuple[str, Any], ...]

    @property
    def factors(self) -> tuple[tuple[str, Any], ...]:
        """All factor levels of the cell, by key."""
        return (*self.choices, *self.values)


Reads = Callable[[str, Choices, str], bool]


def cells(groups: Sequence[str], factors: Sequence[Factor], reads: Reads) -> list[Cell]:
    """Every cell, in the order of groups, then of the choices, then of the other levels (the last varies fastest).

    `reads(group, choices, key)` says whether a group reads a value factor under those choices of configuration groups.
    """
    cells: list[Cell] = []
    for group in groups:
        for choices, laid_out in _layouts(factors):
            read = []
            for factor in laid_out:
                at = [factor.keys.index(key) for key in factor.values if reads(group, choices, key)]
                read.append(distinct([tuple((factor.keys[i], level[i]) for i in at) for level in factor.levels]))
            cells.extend(Cell(group, choices, sum(levels, ())) for levels in itertools.product(*read))
    # Levels that go with the same choice are one cell for a group that does not read the keys in which they differ.
    return distinct(cells) if any(factor.choices and factor.values for factor in factors) else cells


def unread(groups: Sequence[str], factors: Sequence[Factor], keys: Sequence[str], reads: Reads) -> list[str]:
    """The keys that no group reads, whatever its choices."""
    layouts = [choices for choices, _ in _layouts(factors)]
    return [key for key in keys if not any(reads(group, choices, key) for group in groups for choices in layouts)]


def _layouts(factors: Sequence[Factor]) -> list[tuple[Choices, list[Factor]]]:
    """Every combination of choices, with the factors under it: one that made a choice has that level alone."""
    each = [
        [replace(factor, levels=(level,)) for level in factor.levels] if factor.choices else [factor]
        for factor in factors
    ]
    layouts = []
    for laid_out in itertools.product(*each):
        # The entries of a level's values come after those of its choices.
        choices = [pair for factor in laid_out for pair in zip(factor.choices, factor.levels[0], strict=False)]
        layouts.append((tuple(choices), list(laid_out)))
    return layouts


def distinct(values: Sequence[Any]) -> list[Any]:
    """Each value once, in the order of its first appearance; lists and mappings are values too. 1 and 1.0 are one."""
    first: dict[str, Any] = {}
    for value in values:
        first.setdefault(repr(_normalized(value)), value)
    return list(first.values())


def _normalized(value: Any) -> Any:
    """The value as in a run's identity, where 1 and 1.0 are one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _normalized(item) for key, item in value.items()}
    return [_normalized(item) for item in value] if isinstance(value, (list, tuple)) else value


# ---------------------------------------------------------------- exclusions


#: Cells that are left out, by their levels of each key (a factor's, `group` or `seed`).
Exclusion = Mapping[str, tuple[Any, ...]]


def excludes(exclusion: Exclusion, cell: Mapping[str, Any]) -> bool:
    """Whether a cell has one of the levels given for every key. A cell without a key does not."""
    return all(key in cell and any(equal(cell[key], level) for level in levels) for key, levels in exclusion.items())


def equal(level: Any, other: Any) -> bool:
    """Whether two levels are the same: 2 is 2.0, but true is not 1."""
    return bool(level == other) and isinstance(level, bool) == isinstance(other, bool)


def short_labels(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ending of each dotted or slashed key that is unique among them: method.gamma -> gamma."""
    parts = {key: key.replace("/", ".").split(".") for key in keys}
    labels: dict[str, str] = {}
    for key in keys:
        for size in range(1, len(parts[key]) + 1):
            ending = parts[key][-size:]
            if sum(parts[other][-size:] == ending for other in keys) == 1:
                break
        labels[key] = ".".join(ending)
    return labels

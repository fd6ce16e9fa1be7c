"""Factors, groups and conditions -> cells. Pure: no files, no clock, no globals.

A factor multiplies only the groups that read it (a conditional factor). A factor over a configuration group (`task`,
`method/control`) is laid out first, because the choice decides which keys exist, hence which other factors apply.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One treatment: a comparison group, its choices of configuration groups, and the value factors it reads."""

    group: str
    choices: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, Any], ...]

    @property
    def factors(self) -> tuple[tuple[str, Any], ...]:
        """All factor levels of the cell, by key."""
        return (*self.choices, *self.values)


Reads = Callable[[str, tuple[tuple[str, str], ...], str], bool]


def cells(
    groups: Sequence[str],
    choice_factors: Mapping[str, Sequence[str]],
    value_factors: Mapping[str, Sequence[Any]],
    reads: Reads,
) -> list[Cell]:
    """Every cell, in the order of groups, then of the factors' levels (the last factor varies fastest).

    `reads(group, choices, key)` says whether a group reads a value factor under those choices of configuration groups.
    """
    found: list[Cell] = []
    for group in groups:
        for levels in itertools.product(*choice_factors.values()):
            choices = tuple(zip(choice_factors, levels, strict=True))
            read = {key: value_factors[key] for key in value_factors if reads(group, choices, key)}
            found.extend(
                Cell(group, choices, tuple(zip(read, values, strict=True)))
                for values in itertools.product(*read.values())
            )
    return found


def unread(
    groups: Sequence[str],
    choice_factors: Mapping[str, Sequence[str]],
    value_factors: Mapping[str, Sequence[Any]],
    reads: Reads,
) -> list[str]:
    """The value factors that no group reads under any choice."""
    layouts = [
        tuple(zip(choice_factors, levels, strict=True)) for levels in itertools.product(*choice_factors.values())
    ]
    return [
        key for key in value_factors if not any(reads(group, choices, key) for group in groups for choices in layouts)
    ]


def short_labels(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ending of each dotted or slashed key that is unique among them: method.gamma -> gamma."""
    parts = {key: key.replace("/", ".").split(".") for key in keys}
    labels: dict[str, str] = {}
    for key in keys:
        own = parts[key]
        for size in range(1, len(own) + 1):
            if sum(parts[other][-size:] == own[-size:] for other in keys) == 1:
                break
        labels[key] = ".".join(own[-size:])
    return labels

"""A cell of a grid: one level of each factor, in some order. And items in groups."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Hashable, Iterable
from typing import Any, TypeVar

Cell = tuple[tuple[str, Any], ...]
_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")


def part(cell: Cell, labels: Collection[str]) -> Cell:
    """The levels of some factors."""
    return tuple(item for item in cell if item[0] in labels)


def key_of(name: str, also: str = "") -> str:
    """The name with its letters, marks and digits of any script; everything else but the characters `also` is one
    underscore, and none at the ends."""
    plain = [
        char if char in also or unicodedata.category(char)[0] in "LMN" else " "
        for char in unicodedata.normalize("NFC", name).replace("_", " ")
    ]
    return "_".join("".join(plain).split())


def grouped(items: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """The items of each key, in their order."""
    groups: dict[_Key, list[_Item]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups

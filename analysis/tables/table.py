"""A table: displayed cells, rounded, and beside them the numbers themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.stats.t_test import Interval

Record = Mapping[str, Any]
Entry = tuple[str, Sequence[str], Record]  # a row: its group ("" for none), displayed cells and numbers


@dataclass(frozen=True)
class Table:
    """name: of its files. columns: headings; rows: displayed cells; records: the numbers of each row. notes stand
    below. groups: of each row, where rows belong to groups."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def table(name: str, title: str, columns: Sequence[str], entries: Iterable[Entry], notes: Iterable[str] = ()) -> Table:
    """A table of these rows."""
    groups, rows, records = zip(*entries, strict=True) if (entries := list(entries)) else ((), (), ())
    rows = tuple(tuple(row) for row in rows)
    return Table(name, title, tuple(columns), rows, records, tuple(notes), groups if any(groups) else ())


def ends(interval: Interval | None, low: str = "low", high: str = "high") -> dict[str, float | None]:
    """The ends of an interval as two numbers of a record; None for an end that does not exist."""
    below, above = interval or (None, None)
    return {low: below, high: None if above == math.inf else above}


def share(n: int, planned: int) -> str:
    """How many of those planned: 3, or 2 of 3."""
    return str(n) if n == planned else f"{n} of {planned}"

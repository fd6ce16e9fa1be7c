"""The tables that commands print for people. Programs read --json."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.run.lifecycle import NEW, RunState
from launcher.status.standing import UNREADABLE
from launcher.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 200
#: What people call a run that waits in a scheduler's queue. Programs read `submitted`.
QUEUED = "queued"


def state_name(state: str) -> str:
    """A state as people call it."""
    return QUEUED if state == RunState.SUBMITTED else state


def console() -> Console:
    """Standard output. If it is not a terminal, lines are as long as their content."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDE)


def counts_table(
    counts: Mapping[str, Mapping[str, int]], more: Mapping[str, Mapping[str, str]], first: str = "group"
) -> Table:
    """One row for each name: the number of its runs in total and by state, then further columns.

    more: the text of a further column, by its heading and the name.
    """
    from rich.table import Table
    from rich.text import Text

    kinds = [kind for kind in (NEW, *RunState, UNREADABLE) if any(states.get(kind) for states in counts.values())]
    table = Table(box=None, pad_edge=False)
    for heading in (first, "runs", *map(state_name, kinds), *more):
        table.add_column(heading, justify="left" if heading == first else "right")
    for name, states in counts.items():
        numbers = [str(sum(states.values())), *(str(states.get(kind, 0)) for kind in kinds)]
        texts = [column.get(name, "") for column in more.values()]
        table.add_row(*(Text(clean(cell)) for cell in (name, *numbers, *texts)))
    return table


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of texts with one line a row, as wide as its content; a column of numbers stands on the right."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numbers = [all(row[at].isdecimal() for row in cells if row[at]) for at in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in (list(columns), *cells)
    ]

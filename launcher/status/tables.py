"""The tables that commands print for people. Programs read --json."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.run.lifecycle import NEW, RunState
from launcher.status.index import UNREADABLE
from launcher.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 200


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
    for heading in (first, "runs", *kinds, *more):
        table.add_column(heading, justify="left" if heading == first else "right")
    for name, states in counts.items():
        numbers = [str(sum(states.values())), *(str(states.get(kind, 0)) for kind in kinds)]
        texts = [column.get(name, "") for column in more.values()]
        table.add_row(*(Text(clean(cell)) for cell in (name, *numbers, *texts)))
    return table

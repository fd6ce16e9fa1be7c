"""What commands print for people: rows and columns, durations, text of others on a terminal. Programs read --json."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.run import folder
from launcher.run.folder import NEW
from launcher.status.index import UNREADABLE
from launcher.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 200


def console() -> Console:
    """Standard output. Off a terminal, lines are as long as their content: no reader there has 80 columns."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDE)


def states_table(states: Mapping[str, Sequence[str]], more: Mapping[str, Mapping[str, str]]) -> None:
    """Print a row a group: its runs' states counted, then further columns by heading, each a text by group."""
    console().print(counts_table({group: Counter(own) for group, own in states.items()}, more))


def counts_table(
    counts: Mapping[str, Mapping[str, int]], more: Mapping[str, Mapping[str, str]], first: str = "group"
) -> Table:
    """A row a name: the number of its runs, in all and by state, then further columns by heading, a text by name."""
    from rich.table import Table
    from rich.text import Text

    kinds = [kind for kind in (NEW, *folder.STATES, UNREADABLE) if any(own.get(kind) for own in counts.values())]
    table = Table(box=None, pad_edge=False)
    for heading in (first, "runs", *kinds, *more):
        table.add_column(heading, justify="left" if heading == first else "right")
    for name, own in counts.items():
        numbers = [str(sum(own.values())), *(str(own.get(kind, 0)) for kind in kinds)]
        texts = [column.get(name, "") for column in more.values()]
        table.add_row(*(Text(clean(cell)) for cell in (name, *numbers, *texts)))
    return table

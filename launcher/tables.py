"""What commands print for people: rows and columns, durations, text of others on a terminal. Programs read --json."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher import run as folders
from launcher.index import UNREADABLE
from launcher.lookup import NEW

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")
_WIDE = 200
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


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

    kinds = [kind for kind in (NEW, *folders.STATES, UNREADABLE) if any(own.get(kind) for own in counts.values())]
    table = Table(box=None, pad_edge=False)
    for heading in (first, "runs", *kinds, *more):
        table.add_column(heading, justify="left" if heading == first else "right")
    for name, own in counts.items():
        numbers = [str(sum(own.values())), *(str(own.get(kind, 0)) for kind in kinds)]
        texts = [column.get(name, "") for column in more.values()]
        table.add_row(*(Text(clean(cell)) for cell in (name, *numbers, *texts)))
    return table


def duration(seconds: float | None) -> str:
    """A time as people say it, in two units at most; `?` when it is unknown."""
    if seconds is None:
        return "?"
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < _DAY_S:
        hours, rest = divmod(round(seconds / _MINUTE_S), 60)
        return f"{hours} h {rest} min"
    days, rest = divmod(round(seconds / _HOUR_S), 24)
    return f"{days} d {rest} h"


def clean(text: str) -> str:
    """One line of foreign text (a log, a cause, a name) without what a terminal would obey.

    Escape sequences go; of a line that was overwritten (a progress bar), the last writing stays.
    """
    line = _ESCAPES.sub("", text).rstrip("\r\n").rsplit("\r", 1)[-1]
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in line)


def byte_size(count: float) -> str:
    """A number of bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

"""The tables that commands print for people. Programs read --json."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from launcher.run.lifecycle import NEW, RunState
from launcher.status.standing import UNREADABLE
from launcher.text import clean


def state_name(state: str) -> str:
    """A state as people call it: of a run that waits in a scheduler's queue, programs read `submitted`."""
    return "queued" if state == RunState.SUBMITTED else state


def counts(
    states: Mapping[str, Mapping[str, int]], more: Mapping[str, Mapping[str, str]], first: str = "group"
) -> list[str]:
    """One row for each name: the number of its runs in total and by state, then further columns.

    more: the text of a further column, by its heading and the name.
    """
    kinds = [kind for kind in (NEW, *RunState, UNREADABLE) if any(count.get(kind) for count in states.values())]
    numbers = ["runs", *map(state_name, kinds), *more]
    rows = []
    for name, count in states.items():
        shown = [str(sum(count.values())), *(str(count.get(kind, 0)) for kind in kinds)]
        rows.append([name, *shown, *(column.get(name, "") for column in more.values())])
    return lines([first, *numbers], rows, numbers)


def lines(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str]) -> list[str]:
    """A table of texts with one line a row, as wide as its content. numbers: the columns that stand on the right."""
    cells = [columns, *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.rjust if column in numbers else str.ljust for column in columns]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    ]

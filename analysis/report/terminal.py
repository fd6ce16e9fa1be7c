"""What a finished report says on a terminal: the question, its answer, and the table of its measure, on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.report import Report

_GAPS = 3  # missing results that are named
_VERDICT = 24  # columns that verdicts need, to be read
_GAP = 2  # columns between columns
# What a narrow terminal leaves out, in this order.
_LEFT_OUT = ("p sign-flip", "seeds", "p paired t", "better in", "p adjusted", "value")


def show(written: Report, console: Console) -> None:
    """Print the answer and the primary measure's rows, as many columns of them as the console is wide for."""
    from rich.text import Text

    said = written.answer
    console.print(Text(said.question))
    console.print(Text(said.result))
    for line in said.limits:
        console.print(Text(f"* {line}"))
    console.print(Text(said.certainty))
    gaps = [f"Missing: {gap}" for gap in said.gaps[:_GAPS]]
    if len(said.gaps) > _GAPS:
        gaps.append(f"Missing, too: {len(said.gaps) - _GAPS} more; the report lists them")
    for line in gaps:
        console.print(Text(f"* {line}"))
    console.print()
    _measure(written, console)
    for verdict in written.verdicts:
        console.print(Text(f"{verdict.id} {verdict.verdict}: {verdict.claim}"))
    others = len({row[0] for table in written.tables for row in table.rows if table.columns[0] == "measure"}) - 1
    also = f"{others} more {'measure' if others == 1 else 'measures'}, " if others else ""
    console.print(f"\nReport ({also}curves, costs, runs):")
    console.print(str(written.index), soft_wrap=True)


def _measure(written: Report, console: Console) -> None:
    """The rows of the primary measure; a verdict that all share stands once, below."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    main = written.tables[0]
    title = main.rows[0][0]
    rows = [dict(zip(main.columns, row, strict=True)) for row in main.rows if row[0] == title]
    verdicts = dict.fromkeys(row["verdict"] for row in rows if row["difference"] or row["p adjusted"])
    columns = [column for column in main.columns if column not in ("measure", "verdict")]
    alike = len(verdicts) < 2
    room = console.width - (0 if alike else _VERDICT + _GAP)
    widths = {column: max(cell_len(text) for text in (column, *(row[column] for row in rows))) for column in columns}
    for column in _LEFT_OUT:
        if sum(widths[one] + _GAP for one in columns) - _GAP > room:
            columns.remove(column)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    if not alike:
        table.add_column("verdict")
    for row in rows:
        table.add_row(*(Text(row[column]) for column in (*columns, *(() if alike else ("verdict",)))))
    console.print(Text(title, style="bold"))
    console.print(table)
    for verdict in verdicts if alike else ():
        console.print(Text(f"{'Every verdict' if len(rows) > 2 else 'Verdict'}: {verdict}"))

"""What is printed: of a finished report the question, its answer, and the main table; and where comparisons stand while
seeds are added."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.data.sweep import read_sweep
from analysis.findings.study import study
from analysis.spec.validation import counted
from analysis.tables.table import to_text

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.report import Report

_GAPS = 3  # missing results that are named
_VERDICT = 24  # columns that verdicts need, to be read
_GAP = 2  # columns between columns
# What a narrow terminal leaves out, in this order.
_LEFT_OUT = ("seeds", "better in", "p adjusted", "value")


def text(written: Report) -> str:
    """The answer and the whole main table, each measure named once."""
    main = written.tables[0]
    titles = ["", *(row[0] for row in main.rows)]
    rows = tuple(("" if row[0] == before else row[0], *row[1:]) for row, before in zip(main.rows, titles, strict=False))
    table = to_text(dataclasses.replace(main, rows=rows))
    gaps = [f"* Missing: {gap}" for gap in written.answer.gaps]
    return "\n".join([*_answer(written), *gaps, "", table, *_verdicts(written), f"\nReport: {written.index}"])


def show(written: Report, console: Console) -> None:
    """Print the answer and the primary measure's rows, as many columns of them as the console is wide for."""
    from rich.text import Text

    gaps = [f"* Missing: {gap}" for gap in written.answer.gaps[:_GAPS]]
    if (more := len(written.answer.gaps) - _GAPS) > 0:
        gaps.append(f"* Missing: {more} more; the report lists them")
    for line in (*_answer(written), *gaps):
        console.print(Text(line))
    console.print()
    _measure(written, console)
    for line in _verdicts(written):
        console.print(Text(line))
    others = len({row[0] for table in written.tables for row in table.rows if table.columns[0] == "measure"}) - 1
    also = f"{counted(others, 'more measure')}, " if others else ""
    console.print(f"\nReport ({also}curves, costs, runs):")
    console.print(str(written.index), soft_wrap=True)


def _answer(written: Report) -> Iterator[str]:
    answer = written.answer
    yield from filter(None, (answer.declaration, answer.question, answer.result, answer.certainty))
    yield from (f"* {line}" for line in answer.points)


def _verdicts(written: Report) -> Iterator[str]:
    for verdict in written.verdicts:
        yield f"{verdict.hypothesis.id} {verdict.verdict}: {verdict.hypothesis.claim}"


def _measure(written: Report, console: Console) -> None:
    """The rows of the primary measure; a verdict that all rows share is printed once, below."""
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
    widths = {column: max(cell_len(cell) for cell in (column, *(row[column] for row in rows))) for column in columns}
    for column in _LEFT_OUT:
        if sum(widths[kept] + _GAP for kept in columns) - _GAP > room:
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


def standings(folder: Path, as_json: bool) -> str:
    """Where each comparison of the primary measure stands, a line each, or as a list of JSON objects. Raises BadPlan as
    `report.write` does."""
    sweep = read_sweep(folder)
    stands = study(sweep, sweep.asked()).primary.standings
    if as_json:
        return json.dumps([dataclasses.asdict(standing) for standing in stands], indent=1)
    if not stands:
        return f"{folder}: the number of its seeds is fixed, or it has no comparison of the primary measure"
    return "\n".join(
        f"{standing.group} and {standing.baseline}: {standing.status} (look {standing.look} of {standing.looks}, "
        f"{standing.seeds} of at most {standing.most} seeds)"
        for standing in stands
    )

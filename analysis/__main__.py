"""python -m analysis report FOLDER [--json]: write FOLDER/report, print the main table and the report's path.

Exit code 0: the report is written, whatever it says; 2: there is no plan to report on, or it asks for something
unknown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.report import Report
    from analysis.tables import Table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description="What finished runs say.")
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="write tables, figures and the page of an experiment")
    report.add_argument("folder", type=Path, help="the experiment's folder, such as multirun/quickstart")
    report.add_argument("--json", action="store_true", help="print the report as JSON instead of the table")
    chosen = parser.parse_args(arguments)

    from analysis.read import BadPlan
    from analysis.report import write

    try:
        written = write(chosen.folder)
    except BadPlan as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.json:
        print((written.index.parent / "report.json").read_text(encoding="utf-8"), end="")
        return 0
    _show(written)
    return 0


def _show(written: Report) -> None:
    from analysis.formats import to_text

    table, said = _brief(written.tables[0]), written.answer
    print(said.question)
    print(f"{said.result} {said.certainty}")
    for line in (*said.limits, *(f"Missing: {gap}" for gap in said.gaps)):
        print(f"* {line}")
    print()
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table as Rich
        from rich.text import Text

        rich = Rich(title=table.title, title_justify="left")
        for column in table.columns:
            rich.add_column(column, overflow="fold")
        for place, row in enumerate(table.rows):
            last = place + 1 == len(table.rows) or table.rows[place + 1][0] != ""
            rich.add_row(*map(Text, row), end_section=last)
        Console().print(rich)
    else:
        print(to_text(table))
    for verdict in written.verdicts:
        print(f"{verdict.id} {verdict.verdict}: {verdict.claim}")
    print(f"\nReport: {written.index}")


def _brief(table: Table) -> Table:
    """The same table with each measure named once."""
    import dataclasses

    rows, before = [], ""
    for row in table.rows:
        rows.append(("", *row[1:]) if row[0] == before else row)
        before = row[0]
    return dataclasses.replace(table, rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())

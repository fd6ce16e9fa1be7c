"""python -m analysis report FOLDER [--format paper] [--json]: write FOLDER/report, print the main table and the path.
python -m analysis report --compare A B [--output FOLDER] [--json]: the same of two sweeps side by side.

Exit code 0: the report is written, whatever it says; 2: there is no plan to report on, it asks for something unknown,
or the arguments do not go together.
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
    report.add_argument("folder", type=Path, nargs="?", help="the experiment's folder, such as multirun/quickstart")
    report.add_argument(
        "--compare", type=Path, nargs=2, metavar=("A", "B"), help="two folders, side by side: B minus A"
    )
    report.add_argument("--output", type=Path, help="where --compare writes; default: compare-A-B beside A")
    report.add_argument("--format", choices=("html", "paper"), default="html", help="paper: FOLDER/report/paper, too")
    report.add_argument("--json", action="store_true", help="print the report as JSON instead of the table")
    chosen = parser.parse_args(arguments)
    if (chosen.folder is None) == (chosen.compare is None):
        report.error("give either FOLDER or --compare A B")
    if chosen.output is not None and chosen.compare is None:
        report.error("--output is for --compare; a report is written to FOLDER/report")
    if chosen.compare is not None and chosen.format != "html":
        report.error(f"--format {chosen.format} is for one FOLDER; --compare writes a page and its tables")

    from analysis.read import BadPlan

    try:
        return _sides(chosen) if chosen.compare else _one(chosen)
    except BadPlan as error:
        print(error, file=sys.stderr)
        return 2


def _one(chosen: argparse.Namespace) -> int:
    from analysis.report import write

    written = write(chosen.folder)
    paper = None
    if chosen.format == "paper":
        from analysis.report.paper import write_paper

        paper = write_paper(written)
    if chosen.json:
        print((written.index.parent / "report.json").read_text(encoding="utf-8"), end="")
        return 0
    _show(written)
    if paper is not None:
        print(f"Paper: {paper}")
    return 0


def _sides(chosen: argparse.Namespace) -> int:
    from analysis.report.sides import write_sides

    a, b = chosen.compare
    index, lines = write_sides(a, b, chosen.output)
    if chosen.json:
        print((index.parent / "report.json").read_text(encoding="utf-8"), end="")
        return 0
    print("\n".join(lines))
    print(f"\nReport: {index}")
    return 0


def _show(written: Report) -> None:
    table, said = _brief(written.tables[0]), written.answer
    print(said.question)
    print(f"{said.result} {said.certainty}")
    for line in (*said.limits, *(f"Missing: {gap}" for gap in said.gaps)):
        print(f"* {line}")
    print()
    _print(table)
    for verdict in written.verdicts:
        print(f"{verdict.id} {verdict.verdict}: {verdict.claim}")
    print(f"\nReport: {written.index}")


def _print(table: Table) -> None:
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
        from analysis.formats import to_text

        print(to_text(table))


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

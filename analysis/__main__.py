"""python -m analysis report FOLDER [--format paper] [--json]: write FOLDER/report, print the main table and the path.
python -m analysis report --compare A B [--output FOLDER] [--json]: the same of two sweeps side by side.
python -m analysis import SOURCE... --into FOLDER --group KEY --seed KEY --metric KEY: W&B's offline runs and
TensorBoard's event files as an experiment.

Exit code 0: the report is written, whatever it says, or the runs are imported; 2: there is no plan to report on, it
asks for something unknown, the arguments do not go together, or runs cannot be imported as asked.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.report import Report
    from analysis.tables.comparison import Table


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
    _import_arguments(commands.add_parser("import", help="runs of W&B (offline) and TensorBoard as an experiment"))
    arguments = sys.argv[1:] if arguments is None else arguments
    chosen = parser.parse_args(arguments)
    if chosen.command == "import":
        return _import(chosen, arguments[1:])
    if (chosen.folder is None) == (chosen.compare is None):
        report.error("give either FOLDER or --compare A B")
    if chosen.output is not None and chosen.compare is None:
        report.error("--output is for --compare; a report is written to FOLDER/report")
    if chosen.compare is not None and chosen.format != "html":
        report.error(f"--format {chosen.format} is for one FOLDER; --compare writes a page and its tables")

    from analysis.data.sweep import BadPlan

    # A report makes millions of objects that it needs to its end: looking for garbage among them takes a tenth of it.
    gc.disable()
    try:
        code = _sides(chosen) if chosen.compare else _one(chosen)
        sys.stdout.flush()
    except BadPlan as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (`| head`) has seen enough, and the report is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        gc.enable()
    return code


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sources", type=Path, nargs="+", metavar="SOURCE", help="folders of offline-run-*/run-*.wandb or of event files"
    )
    add("--into", type=Path, required=True, metavar="FOLDER", help="the experiment to make, such as multirun/theirs")
    add("--group", metavar="KEY", help="the key of a run's configuration that says its group, such as method.name")
    add("--seed", metavar="KEY", help="the key that says its seed")
    add(
        "--factor",
        metavar="KEY",
        action="append",
        default=[],
        help="a key of which each level is a cell; may be repeated",
    )
    add("--match", metavar="REGEX", help="on a run's name: (?P<group>...), (?P<seed>...); other names are factors")
    add("--map", type=Path, metavar="FILE", help="a CSV file of run, group, seed and factors; other runs are left out")
    add("--baseline", metavar="GROUP", help="what the others are compared with")
    add("--metric", metavar="KEY", action="append", default=[], help="the first is the question; may be repeated")
    add("--direction", choices=("higher", "lower"), help="which way is better for the first metric")
    add("--analysis", type=Path, metavar="FILE", help="YAML with the whole section `analysis`, in place of --metric")
    add("--step", metavar="KEY", help="the metric that counts the steps of W&B's runs; default: W&B's own steps")


def _import(chosen: argparse.Namespace, words: Sequence[str]) -> int:
    from analysis.importing import Asked, BadImport, Naming, import_runs, quoted
    from analysis.spec.validation import BadPlan

    naming = Naming(chosen.group, chosen.seed, tuple(chosen.factor), chosen.match, chosen.map)
    try:
        done = import_runs(
            Asked(
                sources=tuple(chosen.sources),
                into=chosen.into,
                naming=naming,
                baseline=chosen.baseline,
                metrics=tuple(chosen.metric),
                direction=chosen.direction,
                analysis=chosen.analysis,
                step=chosen.step,
                command=quoted(words),
            )
        )
    except (BadImport, BadPlan) as error:
        print(error, file=sys.stderr)
        return 2
    for group, count in done.groups.items():
        print(f"{group}: {count} {'run' if count == 1 else 'runs'}")
    for line in (*(f"Missing: {gap}" for gap in done.gaps), *(f"Not in the map: {one}" for one in done.left_out)):
        print(f"* {line}")
    print(f"\nPlan: {done.plan}\nNext: python -m analysis report {chosen.into}")
    return 0


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
    from analysis.report.sweep_comparison import write_sides

    a, b = chosen.compare
    index, lines = write_sides(a, b, chosen.output)
    if chosen.json:
        print((index.parent / "report.json").read_text(encoding="utf-8"), end="")
        return 0
    print("\n".join(lines))
    print(f"\nReport: {index}")
    return 0


def _show(written: Report) -> None:
    if sys.stdout.isatty():
        from rich.console import Console

        from analysis.report import terminal

        terminal.show(written, Console(highlight=False, markup=False, emoji=False))
        return
    from analysis.tables.formats import to_text

    said = written.answer
    print(said.question)
    print(said.result)
    for line in said.limits:  # before any p
        print(f"* {line}")
    print(said.certainty)
    for gap in said.gaps:
        print(f"* Missing: {gap}")
    print()
    print(to_text(_brief(written.tables[0])))
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

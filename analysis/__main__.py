"""python -m analysis report FOLDER [--format paper] [--figures pdf,png] [--judge] [--json]: write FOLDER/report,
print the main table and the path.
python -m analysis import SOURCE... --into FOLDER --group KEY --seed KEY --metric KEY: W&B's offline runs, TensorBoard's
event files, the files of verl's logger, trainer_state.json and CSV files as an experiment.
python -m analysis judge FOLDER ...: win rates, by a language model, a score or people (analysis.judging.commands).
python -m analysis power experiment=NAME [KEY=VALUE ...] [--from SWEEP] [--json]: what differences its seeds can find.
python -m analysis looks FOLDER [--json]: where seeds are added by a rule, where each comparison stands.

Exit code 0: the report is written, whatever it says, the runs are imported, or what was asked is printed; 1: what
--json asked for could not be printed; 2: there is no plan to report on, it asks for something unknown, the arguments
contradict each other, or runs cannot be imported as asked.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.errors import missing_extra
from launcher.project import Dropping, drop_what_cannot_be_written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    drop_what_cannot_be_written()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m analysis", description="What finished runs say.")
    add_commands(parser.add_subparsers(dest="command", required=True))
    if arguments[:1] == ["judge"]:
        from analysis.judging.commands import main as judge

        return judge(arguments[1:])
    from analysis.spec.validation import BadPlan

    try:
        if arguments[:1] == ["power"]:
            return _power(arguments[1:])
        chosen = parser.parse_args(arguments)
        chosen.words = arguments
        return {"report": _report, "import": _import, "looks": _looks}[chosen.command](chosen)
    except BadPlan as error:
        print(error, file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (message := missing_extra(error)) is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2


def add_commands(commands: Any) -> None:
    """Add the parsers of all commands to those of a program, as its `add_subparsers` has returned them."""
    report = commands.add_parser("report", help="write tables, figures and the page of an experiment")
    add = report.add_argument
    add("folder", type=Path, help="the experiment's folder, such as multirun/quickstart")
    add("--format", choices=("html", "paper"), default="html", help="paper: also write FOLDER/report/paper")
    add("--figures", type=_formats, default=(), metavar="FORMATS", help="pdf, png or pdf,png: write figures so, too")
    add("--judge", action="store_true", help="have the responses judged first, if analysis.win_rate says how")
    add("--json", action="store_true", help="print the report as JSON instead of the table")
    _import_arguments(
        commands.add_parser("import", help="runs of W&B, TensorBoard, verl, the Trainer, and CSV, as an experiment")
    )
    commands.add_parser("judge", help="win rates of methods, by a model, a score or people", add_help=False)
    _power_arguments(
        commands.add_parser("power", help="what differences the seeds of an experiment can find", add_help=False)
    )
    looks = commands.add_parser("looks", help="where each comparison stands, if seeds are added by a rule")
    looks.add_argument("folder", type=Path, help="the experiment's folder, such as multirun/quickstart")
    looks.add_argument("--json", action="store_true", help="print a list of JSON objects instead of lines")


def _formats(text: str) -> tuple[str, ...]:
    """The value of --figures."""
    formats = tuple(dict.fromkeys(text.split(",")))
    if wrong := [name for name in formats if name not in ("pdf", "png")]:
        raise argparse.ArgumentTypeError(f"{', '.join(map(repr, wrong))}: pdf, png and pdf,png are allowed")
    return formats


def _report(chosen: argparse.Namespace) -> int:
    from analysis.judging.commands import as_declared
    from analysis.report import terminal, write
    from analysis.report.paper import write_paper

    if chosen.judge:
        as_declared(chosen.folder)  # a report without win rates says so
    # A report makes millions of objects that it needs to its end: looking for garbage among them takes a tenth of it.
    gc.disable()
    try:
        written = write(chosen.folder, chosen.figures)
        paper = f"Paper: {write_paper(written)}\n" if chosen.format == "paper" else ""
        text = f"{terminal.text(written)}\n{paper}"
        if chosen.json:
            text = written.index.with_name("report.json").read_text(encoding="utf-8")
        elif sys.stdout.isatty():
            from rich.console import Console

            terminal.show(written, Console(highlight=False, markup=False, emoji=False))
            text = paper
        print(text, end="", flush=True)
    finally:
        gc.enable()
    return int(chosen.json and Dropping.failed)


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sources",
        type=Path,
        nargs="+",
        metavar="SOURCE",
        help="folders of logs, or log files, of a known format (docs/report.md)",
    )
    add("--into", type=Path, required=True, metavar="FOLDER", help="the new experiment, such as multirun/theirs")
    add("--group", metavar="KEY", help="the configuration key that holds a run's group, such as method.name")
    add("--seed", metavar="KEY", help="the configuration key that holds a run's seed")
    add(
        "--factor",
        metavar="KEY",
        action="append",
        default=[],
        help="the configuration key of a factor; may be repeated",
    )
    add("--match", metavar="REGEX", help="pattern of run names: (?P<group>...), (?P<seed>...); others are factors")
    add("--map", type=Path, metavar="FILE", help="CSV file of run, group, seed and factors; it may leave out runs")
    add("--baseline", metavar="GROUP", help="the group that the others are compared with")
    add("--metric", metavar="KEY", action="append", default=[], help="may be repeated; the first is the primary metric")
    add("--direction", choices=("higher", "lower"), help="which way is better for the first metric")
    add("--analysis", type=Path, metavar="FILE", help="YAML file with the section `analysis`, instead of --metric")
    add("--paired", action="store_true", help="the same seed of two groups is a pair (analysis.pairing: seed)")
    add("--unpaired", action="store_false", dest="paired", help="the default: seeds are not paired")
    add("--step", metavar="KEY", help="the metric, or the column of CSV files, that counts the steps")


def _import(chosen: argparse.Namespace) -> int:
    from analysis.sources import ImportRequest, Naming, import_runs
    from analysis.spec.validation import counted

    done = import_runs(
        ImportRequest(
            sources=tuple(chosen.sources),
            into=chosen.into,
            naming=Naming(chosen.group, chosen.seed, tuple(chosen.factor), chosen.match, chosen.map),
            baseline=chosen.baseline,
            metrics=tuple(chosen.metric),
            direction=chosen.direction,
            analysis=chosen.analysis,
            paired=chosen.paired,
            step=chosen.step,
            command=shlex.join(["python", "-m", "analysis", *chosen.words]),
        )
    )
    for group, count in done.groups.items():
        print(f"{group}: {counted(count, 'run')}")
    print(done.read[0])
    gaps = [f"Missing: {gap}" for gap in done.gaps]
    for line in (*gaps, *(f"Not in the map: {name}" for name in done.left_out), *done.read[1:]):
        print(f"* {line}")
    if done.strangers:
        named = ", ".join(done.strangers)
        print(f"* {named}: no seed in common with the baseline. Import without --paired to compare them")
    print(f"\nPlan: {done.plan}\nNext: python -m analysis report {chosen.into}")
    return 0


def _looks(chosen: argparse.Namespace) -> int:
    from analysis.report import terminal

    print(terminal.standings(chosen.folder, chosen.json))
    return 0


def _power_arguments(parser: argparse.ArgumentParser) -> None:
    from launcher.commands import completion

    add = parser.add_argument
    completion.add(parser, "overrides", completion.overrides, "KEY=VALUE", "as for launch.py: experiment=NAME ...", "+")
    add("--from", dest="earlier", type=Path, metavar="SWEEP", help="an earlier experiment, such as multirun/quickstart")
    add("--json", action="store_true", help="print one JSON object instead of the text")


def _power(words: Sequence[str]) -> int:
    """The power of an experiment that need not have been launched: it is composed as `python -m launcher plan` does."""
    parser = argparse.ArgumentParser(prog="python -m analysis power", description="What the planned seeds can find.")
    _power_arguments(parser)
    given = parser.parse_intermixed_args(words)

    from analysis.data.sweep import read_sweep
    from analysis.report import planned_power
    from analysis.spec.settings import settings
    from launcher.errors import InvalidPlan, print_problems
    from launcher.planning import planner
    from launcher.project import ROOT

    try:
        sweep = None if given.earlier is None else read_sweep(given.earlier)
        planned = {}
        for experiment in planner.make(ROOT, given.overrides).experiments:
            asked = settings(experiment.analysis, groups=experiment.groups, baseline=experiment.baseline)
            planned[experiment.name] = planned_power.planned(
                experiment.name, asked, experiment.seeds_of(), experiment.baseline, sweep
            )
    except InvalidPlan as invalid:
        print_problems(invalid)
        return 2
    if given.json:
        whole = {name: planned_power.document(of) for name, of in planned.items()}
        print(json.dumps({"experiments": whole}, indent=1))
    else:
        print("\n".join(planned_power.text(of) for of in planned.values()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

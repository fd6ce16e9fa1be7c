"""python -m analysis report, import, judge and looks; --help has the options of each.

Exit code 0: the report is written, whatever it says, the runs are imported, or what was asked is printed; 1: what
--json asked for could not be printed; 2: there is no plan to report on, it asks for something unknown, the arguments
contradict each other, or runs cannot be imported as asked. With --gate, of the primary question: 0: every comparison
with the baseline is decided for the better; 4: one is decided for the worse; 3: neither. With --judge, first that of
`judge`, unless it is 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import missing_extra
from launcher.project import ROOT, Dropping, activate, drop_what_cannot_be_written, program, root, uncollected

#: What is known of a command besides the options of analysis.sources.study.
_OTHERS = frozenset({"command", "words", "figures", "judge", "format", "json", "gate"})
#: The options that a report of an experiment has; with others, its runs are read as logs.
_OF_PLANS = frozenset({"paths", "baseline", "metric", "direction"})
#: The exit codes of --gate.
_GATE = {"better": 0, "undecided": 3, "worse": 4}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    drop_what_cannot_be_written()
    activate()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog=_program(), description="What finished runs say.")
    add_commands(parser.add_subparsers(dest="command", required=True))
    if arguments[:1] == ["judge"]:
        from analysis.judging.commands import main as judge

        return judge(arguments[1:])
    from analysis.spec.validation import BadPlan

    try:
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
    report = commands.add_parser("report", help="write tables, figures and the page of an experiment, or of logs")
    _study_arguments(report)
    add = report.add_argument
    add("--format", choices=("html", "paper"), default="html", help="paper: also write FOLDER/report/paper")
    add("--figures", type=_formats, default=(), metavar="FORMATS", help="pdf, png or pdf,png: write figures so, too")
    add("--judge", action="store_true", help="have the responses judged first, if analysis.win_rate says how")
    add("--json", action="store_true", help="print the report as JSON instead of the table")
    add("--gate", action="store_true", help="exit code 0: decided for the better; 3: undecided; 4: worse")
    _study_arguments(commands.add_parser("import", help="logs as an experiment, without its report"))
    commands.add_parser("judge", help="win rates of methods, by a model or a score", add_help=False)
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
    from analysis.report import decided, terminal, write
    from analysis.report.paper import write_paper
    from analysis.sources import log

    given = _given(chosen)
    folder = Path(chosen.paths[0]) if len(chosen.paths) == 1 and given.keys() <= _OF_PLANS else None
    said = list[str]()
    if folder is None or not (folder / "plan.json").exists():
        folder, said = _imported(chosen.words, given)
        given = {}  # which the plan has
    code = as_declared(folder) if chosen.judge else 0  # a report without win rates says so
    with uncollected():  # millions of objects
        asked = tuple(map(log.written, given.get("metric", ()))), given.get("direction")
        written = write(folder, chosen.figures, given.get("baseline"), *asked)
        paper = f"Paper: {write_paper(written)}\n" if chosen.format == "paper" else ""
        paper += "".join(f"{line}\n" for line in said and ["", *said])
        text = f"{terminal.text(written)}\n{paper}"
        if chosen.json:
            text = written.index.with_name("report.json").read_text(encoding="utf-8")
        print(text, end="", flush=True)
    if chosen.json and Dropping.failed:
        return 1
    return code or (_GATE[decided(written.study)] if chosen.gate else 0)


def _study_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of analysis.sources.study.StudyOptions, None where they are not given."""
    add = parser.add_argument
    where = "an experiment's folder, such as multirun/quickstart; or folders and files of logs of a known format "
    where += "(docs/report.md), each PATH or GROUP=PATH; or a study.yaml, which is read if there is no PATH"
    add("paths", nargs="*", metavar="PATH", help=where)
    add("--into", metavar="FOLDER", help="the experiment that logs become, such as multirun/theirs; an earlier "
        "import there is replaced (default: study/comparison)")  # fmt: skip
    add("--group", metavar="KEY", help="the configuration key that holds a run's group, such as method.name; without "
        "it, each PATH is a group")  # fmt: skip
    add("--seed", metavar="KEY", help="the configuration key that holds a run's seed; without it, runs are counted")
    add("--factor", metavar="KEY", action="append", help="the configuration key of a factor; may be repeated")
    add("--match", metavar="REGEX", help="pattern of run names: (?P<group>...), (?P<seed>...); others are factors")
    add("--map", metavar="FILE", help="CSV file of run, group, seed and factors; it may leave out runs")
    add("--baseline", metavar="GROUP", help="the group that the others are compared with (default: that of the first "
        "PATH; else `baseline`, or the first)")  # fmt: skip
    add("--metric", metavar="KEY", action="append", help="may be repeated; the first is the primary metric")
    add("--direction", choices=("higher", "lower"), help="which way is better for the first metric")
    add("--paired", action="store_const", const=True, help="the same seed of two groups is a pair")
    add("--unpaired", action="store_const", const=False, dest="paired", help="the default: seeds are not paired")
    add("--step", metavar="KEY", help="the metric, or the column of CSV files, that counts the steps")


def _given(chosen: argparse.Namespace) -> dict[str, Any]:
    """The options of `_study_arguments` that are given, by name."""
    return {name: value for name, value in vars(chosen).items() if name not in _OTHERS and value is not None}


def _import(chosen: argparse.Namespace) -> int:
    folder, said = _imported(chosen.words, _given(chosen))
    said += [f"* {note}" for note in json.loads((folder / "plan.json").read_bytes())["notes"]]
    print("\n".join([*said, "", f"Plan: {folder / 'plan.json'}", f"Next: {_program()} report {folder}"]))
    return 0


def _imported(words: Sequence[str], given: Mapping[str, Any]) -> tuple[Path, list[str]]:
    """Import what is asked for; the experiment's folder, and what to say of it."""
    from analysis.sources.import_runs import import_runs
    from analysis.sources.study import request
    from analysis.spec.validation import counted

    asked = request(given, [*_program().split(), *words])
    done = import_runs(asked)
    runs = [f"{group}: {counted(count, 'run')}" for group, count in done.groups.items()]
    gaps = [f"Missing: {gap}" for gap in done.gaps]
    said = [*gaps, *(f"Not in the map: {name}" for name in done.left_out), *done.read[1:]]
    if done.strangers:
        named = ", ".join(done.strangers)
        said.append(f"{named}: no seed in common with the baseline. Leave out --paired to compare them")
    return asked.into, [*runs, done.read[0], *(f"* {line}" for line in said)]


def _program() -> str:
    return "python -m analysis" if root() == ROOT else program()


def _looks(chosen: argparse.Namespace) -> int:
    from analysis.report import terminal

    print(terminal.standings(chosen.folder, chosen.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python -m launcher COMMAND: inspect and control the runs of launch.py.

Exit codes: 0 fine, 1 some runs failed, or --json could not be written, 2 usage or an invalid plan; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from launcher import application
from launcher.errors import Usage, not_installed, print_error
from launcher.files import BadRunFolder
from launcher.project import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Dropping,
    drop_what_cannot_be_written,
    multirun,
    program,
)
from launcher.text import nearest, shown

COMMANDS = (
    "plan",
    "status",
    "runs",
    "logs",
    "cancel",
    "resume",
    "rerun",
    "show",
    "evaluate",
    "export",
    "verify",
    "sync",
    "gc",
    "delete",
    "completion",
)
#: Earlier names.
_ALIASES = {"retry": "resume", "reproduce": "verify"}
_OF_THE_APPLICATION = frozenset({"evaluate", "export"})
# `plan` takes multirun=FOLDER as an override, and `completion` needs no runs.
_WITHOUT_MULTIRUN = frozenset({"plan", "completion"})


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of these commands, whose modules it imports. For a single command, only that module."""
    parser = argparse.ArgumentParser(
        prog=program(), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = (
            application.command(name) if name in _OF_THE_APPLICATION else import_module(f"launcher.commands.{name}")
        )
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(command)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        if name not in _WITHOUT_MULTIRUN:
            command.add_argument(
                "--multirun", type=Path, metavar="FOLDER", default=multirun(), help="default: this project's multirun/"
            )
        command.set_defaults(run_command=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    drop_what_cannot_be_written()
    if problem := not_installed():
        print(problem, file=sys.stderr)
        return EXIT_USAGE
    words = list(sys.argv[1:] if arguments is None else arguments)
    words[:1] = [_ALIASES.get(word, word) for word in words[:1]]
    name = words[0] if words else ""
    if name and not name.startswith("-") and name not in COMMANDS:
        close = nearest(name, COMMANDS)
        meant = f"did you mean {close}? " if close else ""
        if name in ("launch", "run", "start", "submit", "train"):
            meant = "runs are started by `python launch.py -m experiment=NAME`; "
        print(f"error: {shown(name)} is not a command; {meant}the commands are: {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    if "_ARGCOMPLETE" in os.environ:
        from argcomplete import autocomplete

        autocomplete(build_parser())  # prints the completions, and ends the process
    parser = build_parser([name] if name in COMMANDS else COMMANDS)
    given, more = parser.parse_known_args(words)
    # argparse takes positional arguments once: those after an option, `cancel NAME --group C1 sigma=0.2`, are left.
    taken: list[str] | None = getattr(given, "names", getattr(given, "overrides", None))
    if more and (taken is None or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more and taken is not None:
        taken += more
    try:
        code: int = given.run_command(given)
    except (Usage, BadRunFolder) as error:
        print_error(error)
        return EXIT_USAGE
    except OSError as error:  # such as a folder of another user, or a full disk
        print_error(error)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    sys.stdout.flush()
    return code or (EXIT_FAILED if given.json and Dropping.failed else code)


if __name__ == "__main__":
    sys.exit(main())

"""python -m launcher COMMAND: inspect and control the runs of launch.py.

Exit codes: 0 fine, 1 some runs failed, or --json could not be written, 2 usage or an invalid plan; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from launcher import project
from launcher.application import application
from launcher.commands import exit_code
from launcher.errors import Usage, not_installed

#: The launcher's own commands; the application brings others.
COMMANDS = (
    *("launch", "init", "plan", "status", "runs", "logs", "cancel"),
    *("resume", "rerun", "verify", "certify", "sync", "gc", "completion"),
)
#: Those of `python -m analysis`.
ANALYSIS = ("report", "import", "judge", "looks")
#: Earlier names.
_ALIASES = {"retry": "resume", "reproduce": "verify"}
# Relative paths of a project's files begin in its folder, from wherever below it these are called.
_IN_THE_PROJECT = frozenset({"launch", "plan", "resume", "rerun"})
# `plan` takes multirun=FOLDER as an override, and `completion` needs no runs.
_WITHOUT_MULTIRUN = frozenset({"launch", "init", "plan", "certify", "completion"})


def all_commands() -> Mapping[str, str]:
    """The modules of all commands, by name."""
    return {**_modules(COMMANDS), **application().commands}


def _modules(names: Iterable[str]) -> dict[str, str]:
    return {name: f"launcher.commands.{name}" for name in names}


def build_parser(modules: Mapping[str, str], of_analysis: bool = False) -> argparse.ArgumentParser:
    """The parser of commands, whose modules it imports. of_analysis: with those of the analysis."""
    parser = argparse.ArgumentParser(
        prog=project.program(), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, place in modules.items():
        module = import_module(place)
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.arguments(command)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        if name not in _WITHOUT_MULTIRUN:
            where = "default: this project's multirun/"
            command.add_argument("--multirun", type=Path, metavar="FOLDER", default=project.multirun(), help=where)
        command.set_defaults(run_command=module.run)
    if of_analysis:
        from analysis.__main__ import add_commands

        add_commands(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    project.drop_what_cannot_be_written()
    project.activate()
    if problem := not_installed():
        print(problem, file=sys.stderr)
        return project.EXIT_USAGE
    words = list(sys.argv[1:] if arguments is None else arguments)
    words[:1] = [_ALIASES.get(word, word) for word in words[:1]]
    name = words[0] if words else ""
    known = _modules([name]) if name in COMMANDS else all_commands()  # the application is imported for its commands
    if name in ANALYSIS:
        return subprocess.run([sys.executable, "-m", "analysis", *words], check=False).returncode
    if "_ARGCOMPLETE" in os.environ:
        from argcomplete import autocomplete

        autocomplete(build_parser(known, of_analysis=True))  # prints the completions, and ends the process
    if name in _IN_THE_PROJECT and project.root() != project.ROOT:
        os.chdir(project.root())
    parser = build_parser({name: known[name]}) if name in known else build_parser(known, of_analysis=True)
    given, more = parser.parse_known_args(words)
    # argparse takes positional arguments once: those after an option, `plan experiment=NAME --json seed=0`, are left.
    taken: list[str] | None = getattr(given, "names", getattr(given, "overrides", None))
    if more and (taken is None or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more and taken is not None:
        taken += more
    try:
        code = exit_code(lambda: _run(given))
    except KeyboardInterrupt:
        return project.EXIT_INTERRUPTED
    sys.stdout.flush()
    return code or (project.EXIT_FAILED if given.json and project.Dropping.failed else code)


def _run(given: argparse.Namespace) -> int:
    folder: Path = getattr(given, "multirun", project.multirun())
    if not folder.is_dir() and (folder.exists() or folder != project.multirun()):
        raise Usage(f"--multirun = {folder}: there is no such folder. Fix: name the folder that has runs/, or omit it")
    return int(given.run_command(given))


if __name__ == "__main__":
    sys.exit(main())

"""python -m launcher completion: a script with which a shell completes `rlsweep`.

    bash: eval "$(rlsweep completion bash)"     in ~/.bashrc
    zsh:  eval "$(rlsweep completion zsh)"      in ~/.zshrc, after compinit
    fish: rlsweep completion fish | source      in ~/.config/fish/config.fish

A shell completes the arguments of one word, so the command is `rlsweep` instead of `python -m launcher`. Exit code: 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from launcher.commands import output
from launcher.project import EXIT_FINE
from launcher.run import catalog

HELP = "print a script with which a shell completes `rlsweep`"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(given: argparse.Namespace) -> int:
    """JSON: shell, script."""
    from argcomplete.shell_integration import shellcode

    script = shellcode(["rlsweep"], shell=given.shell)
    output(given, {"shell": given.shell, "script": script}, [script])
    return EXIT_FINE


# ---------------------------------------------------------------- arguments that a shell completes with existing names


def add(
    parser: argparse.ArgumentParser,
    name: str,
    completer: Callable[..., Iterable[str]],
    metavar: str,
    help: str,
    nargs: str | None = None,
) -> None:
    """Add a positional argument that argcomplete completes with what `completer` returns."""
    argument = parser.add_argument(name, nargs=nargs, metavar=metavar, help=help)
    argument.completer = completer  # type: ignore[attr-defined]


def add_run(parser: argparse.ArgumentParser, metavar: str = "RUN", help: str = "a run's id, or its beginning") -> None:
    """Add the argument `run`: one run."""
    add(parser, "run", runs, metavar, help)


def experiments(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    return catalog.experiments(parsed_args.multirun)


def runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    return catalog.run_ids(parsed_args.multirun)


def experiments_and_runs(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The planned experiments; runs too after the first letter of an id, because there may be thousands."""
    multirun = parsed_args.multirun
    return [*catalog.experiments(multirun), *(catalog.run_ids(multirun) if prefix else ())]


def overrides(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The configuration groups with their files, and the keys with their values."""
    from launcher.config.hydra_compose import of_project

    return of_project().completions(parsed_args.overrides or [], prefix)

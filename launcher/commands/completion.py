"""python -m launcher completion: the script that makes a shell complete `rlsweep`.

    bash: eval "$(rlsweep completion bash)"     in ~/.bashrc
    zsh:  eval "$(rlsweep completion zsh)"      in ~/.zshrc, after compinit
    fish: rlsweep completion fish | source      in ~/.config/fish/config.fish

A shell completes a word, and `python -m launcher` is three: `rlsweep` is the same command. Exit code: 0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from launcher.project import EXIT_FINE, ROOT
from launcher.run import catalog

HELP = "print the script that makes a shell complete `rlsweep`"
SHELLS = ("bash", "zsh", "fish")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=SHELLS)


def run(given: argparse.Namespace) -> int:
    """JSON: shell, script."""
    from argcomplete.shell_integration import shellcode

    script = shellcode(["rlsweep"], shell=given.shell)
    print(json.dumps({"shell": given.shell, "script": script}) if given.json else script)
    return EXIT_FINE


# ---------------------------------------------------------------- what a shell may put in for a word: present names

_Completer = Callable[..., Iterable[str]]


def completes(word: argparse.Action, completer: _Completer) -> None:
    """Let argcomplete ask `completer` for this argument."""
    word.completer = completer  # type: ignore[attr-defined]


def experiments(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The planned experiments."""
    return catalog.experiments(_multirun(parsed_args))


def runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The runs."""
    return catalog.run_ids(_multirun(parsed_args))


def experiments_and_runs(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The planned experiments; runs too once a letter of an id is there, for there may be thousands."""
    multirun = _multirun(parsed_args)
    return [*catalog.experiments(multirun), *(catalog.run_ids(multirun) if prefix else ())]


def overrides(**_: Any) -> list[str]:
    """`experiment=NAME` for each file of conf/experiment."""
    return [f"experiment={name}" for name in catalog.declared()]


def _multirun(parsed_args: argparse.Namespace) -> Path:
    multirun: Path = getattr(parsed_args, "multirun", None) or ROOT / "multirun"
    return multirun

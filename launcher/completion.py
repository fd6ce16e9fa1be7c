"""What the shell may put in for a word: experiments and runs, by their present names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from launcher.project import ROOT
from launcher.run import catalog

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

"""What is wrong with a plan, in one line: file, key, value, what is allowed, and the fix."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST = 80


@dataclass(frozen=True)
class Problem:
    """One breach. `where` is a file or `command line`; `rule` says what holds; `fix` says what to do."""

    where: str
    key: str
    value: str | None
    rule: str
    fix: str

    def __str__(self) -> str:
        value = "" if self.value is None else f" = {self.value}"
        return printable(f"{self.where}: {self.key}{value}: {self.rule}. Fix: {self.fix}")


class InvalidPlan(Exception):
    """A plan that must not run, with every problem found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Usage(Exception):
    """A command line that names something that does not exist; the message says what there is."""


def not_installed() -> str | None:
    """What to do when this Python is not the one that the project was installed for; None: it is."""
    if importlib.util.find_spec("hydra") is not None:
        return None
    return f"error: hydra is not installed for {sys.executable}. Fix: make setup, then source .venv/bin/activate"


def shown(value: Any) -> str:
    """A value on one line, shortened."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def printable(text: str) -> str:
    """The text on one line, with what a terminal would obey (line breaks, escape sequences) written out."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    """A message without its line breaks."""
    return " ".join(text.split())


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return close[0] if close else None

"""Problems of a plan, one line for each: file, key, value, what is allowed, and the fix."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from launcher.text import printable, say


@dataclass(frozen=True)
class Problem:
    """One breach. where: a file or `command line`; rule: what is allowed; fix: what to do."""

    where: str
    key: str
    value: str | None
    rule: str
    fix: str

    def __str__(self) -> str:
        value = "" if self.value is None else f" = {self.value}"
        return printable(f"{self.where}: {self.key}{value}: {self.rule}. Fix: {self.fix}")


class Objection(Protocol):
    """Why a run could not start, as an application says it: the value as it is, and the file to correct.

    file: None: whatever set the key. With a file, the value None means that the key alone says it.
    """

    key: str
    value: Any
    rule: str
    fix: str
    file: str | None


class InvalidPlan(Exception):
    """A plan that must not run, with every problem found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        alike: dict[Problem, list[str]] = {}
        for problem in problems:  # of several files, once
            alike.setdefault(replace(problem, where=""), []).append(problem.where)
        self.problems = tuple(replace(one, where=", ".join(dict.fromkeys(places))) for one, places in alike.items())
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Diagnostics(list[Problem]):
    """Collects the problems of one planning, so that the user sees all of them at once."""

    def add(self, where: str, key: str, value: str | None, rule: str, fix: str) -> None:
        """Add one problem; the arguments are those of Problem."""
        self.append(Problem(where, key, value, rule, fix))

    def raise_any(self) -> None:
        """Raise InvalidPlan when a problem was added."""
        if self:
            raise InvalidPlan(self)


class Usage(Exception):
    """A command line that names something that does not exist; the message lists what exists."""


def not_installed() -> str | None:
    """The message if the project is not installed for this Python, else None."""
    if importlib.util.find_spec("hydra") is not None:
        return None
    return f"error: hydra is not installed for {sys.executable}. Fix: make setup, then source .venv/bin/activate"


def print_error(error: BaseException) -> None:
    """Print an error on standard error, without secrets."""
    from launcher.secrets import mask

    print(mask(f"error: {error}"), file=sys.stderr, flush=True)


def print_problems(invalid: Exception, otherwise: str = "nothing was written or run") -> None:
    """Print one line for each problem on standard error, without secrets. otherwise: what happened to everything
    else."""
    from launcher.secrets import mask

    lines = mask(str(invalid)).splitlines()
    many = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    for line in (*lines, f"invalid plan: {many}; {otherwise}"):
        say(line, sys.stderr)

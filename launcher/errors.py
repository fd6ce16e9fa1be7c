"""Problems of a plan, one line for each: file, key, value, what is allowed, and the fix."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from launcher.text import counted, printable, say


@dataclass(frozen=True)
class Objection:
    """What is wrong with a key: its value, what is allowed (`rule`), and the fix. file: the one to correct, or `command
    line`.

    value: None where the key alone says it. The objections of an application and of the analysis have the same fields;
    without a file, they are about whatever set the key.
    """

    key: str
    value: Any
    rule: str
    fix: str
    file: str | None = None

    def __str__(self) -> str:
        file = "" if self.file is None else f"{self.file}: "
        value = "" if self.value is None else f" = {self.value}"
        return printable(f"{file}{self.key}{value}: {self.rule}. Fix: {self.fix}")


class InvalidPlan(Exception):
    """A plan that must not run, with every problem found."""

    def __init__(self, problems: Iterable[Objection]) -> None:
        alike: dict[Objection, list[str]] = {}
        for problem in problems:  # of several files, once
            alike.setdefault(replace(problem, file=None), []).append(str(problem.file))
        self.problems = tuple(replace(one, file=", ".join(dict.fromkeys(files))) for one, files in alike.items())
        super().__init__("\n".join(map(str, self.problems)))


class Diagnostics(list[Objection]):
    """Collects the problems of one planning, so that the user sees all of them at once."""

    def add(self, file: str, key: str, value: str | None, rule: str, fix: str) -> None:
        """Add one problem; the arguments are those of Objection, the value in words."""
        self.append(Objection(key, value, rule, fix, file))

    def raise_any(self) -> None:
        if self:
            raise InvalidPlan(self)


class Usage(Exception):
    """A command line that names something that does not exist; the message lists what exists."""


class SchedulerError(RuntimeError):
    """The scheduler itself failed, not a run."""


def missing(module: str) -> tuple[str, str] | None:
    """What is wrong and the fix if a package is not installed, else None. The fix names the extra of this project that
    brings the package."""
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.origin is not None:  # a folder in the working directory, such as W&B's, has none
        return None
    extra = _extra_of(module)
    fix = f"pip install 'rlsweep[{extra}]'" if extra else "make setup, then source .venv/bin/activate"
    return f"{module} is not installed for {sys.executable}", fix


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The message for an import that failed because an extra of this project is not installed, else None."""
    module = (error.name or "").partition(".")[0]
    absent = missing(module) if _extra_of(module) else None
    return absent and "{}. Fix: {}".format(*absent)


def _extra_of(module: str) -> str | None:
    """The extra whose requirements name a package, in the metadata of this project; None: no extra does."""
    import importlib.metadata  # slow, and only for a message

    try:
        requirements = importlib.metadata.requires("rlsweep") or []
    except importlib.metadata.PackageNotFoundError:  # a folder that is not installed
        requirements = []
    named = (re.match(r"([\w.-]+).*;.*extra == .([\w-]+)", requirement) for requirement in requirements)
    return next((name[2] for name in named if name and name[1].replace("-", "_").lower() == module.lower()), None)


def not_installed() -> str | None:
    """The message if the project is not installed for this Python, else None."""
    absent = missing("hydra")
    return absent and "error: {}. Fix: {}".format(*absent)


def print_error(error: BaseException) -> None:
    """Print an error on standard error, without secrets."""
    from launcher.secrets import mask

    print(mask(f"error: {error}"), file=sys.stderr, flush=True)


def print_problems(invalid: Exception, otherwise: str = "nothing was written or run") -> None:
    """Print one line for each problem on standard error, without secrets. otherwise: what happened to everything
    else."""
    from launcher.secrets import mask

    lines = mask(str(invalid)).splitlines()
    for line in (*lines, f"invalid plan: {counted(len(lines), 'problem')}; {otherwise}"):
        say(line, sys.stderr)

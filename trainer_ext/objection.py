"""Why a run could not start. Plans collect them before a run exists; a run that finds one fails with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Objection(ValueError):
    """A key of the configuration, its value, what is allowed, and the fix.

    value: None where the key alone says it. file: the one to correct, where that is not the one that set the key.
    """

    key: str
    value: Any
    rule: str
    fix: str
    file: str | None = None

    def __str__(self) -> str:
        said = str(self.value).lower() if isinstance(self.value, bool) else self.value  # as YAML has it
        what = self.key if self.value is None else f"{self.key} = {said}"
        return f"{'' if self.file is None else f'{self.file}: '}{what}: {self.rule}. Fix: {self.fix}"

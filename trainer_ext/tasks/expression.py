"""A number from 5 to 24 -> three one-digit operands joined by + or - that give it.

Every number has many solutions, so the policy may keep its entropy or lose it without losing reward.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from trainer_ext.tasks import Row, task

_NUMBERS = range(5, 25)
_FORM = re.compile(r"(\d)([+-])(\d)([+-])(\d)")


def _value(text: str) -> int | None:
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    a, first, b, second, c = match.groups()
    return int(a) + int(first + b) + int(second + c)


def _expressions() -> list[str]:
    return [f"{a}{s}{b}{t}{c}" for a in range(10) for s in "+-" for b in range(10) for t in "+-" for c in range(10)]


_ALL = _expressions()
_SOLUTIONS = {n: [e for e in _ALL if _value(e) == n] for n in _NUMBERS}


@task("expression")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """`task.train_prompts` numbers, drawn uniformly with a fixed seed."""
    generator = random.Random(0)
    return [Row(f"{n}=", str(n)) for n in generator.choices(list(_NUMBERS), k=task["train_prompts"])]


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """A solution, or with probability `random_fraction` any expression of the right form."""
    if generator.random() < random_fraction:
        return generator.choice(_ALL)
    return generator.choice(_SOLUTIONS[int(row.ground_truth)])


def preference(ground_truth: str, generator: random.Random) -> tuple[str, str]:
    """A solution, and an expression of another value."""
    number = int(ground_truth)
    wrong = next(e for e in iter(lambda: generator.choice(_ALL), None) if _value(e) != number)
    return generator.choice(_SOLUTIONS[number]), wrong


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the expression has the right form and value, else 0.0."""
    return float(_value(solution_str) == int(ground_truth))

"""The task to write a number from 5 to 24 as three digits joined by + or -, without using a given digit.

The prompt 17~3 asks for 17 without the digit 3: 9+9-1 or 8+7+2. Most prompts have many solutions, so a policy can keep
or lose its entropy at the same reward. There are 200 prompts. A policy that has learned numbers and digits separately
also solves prompts that it never saw.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

from trainer_ext.scoring.tasks import Row, task

_NUMBERS = range(5, 25)
_DIGITS = "0123456789"
#: Every expression of the right form, with its value.
_VALUES = {
    f"{a}{b}{c}": int(a) + int(b) + int(c)
    for a, b, c in product(_DIGITS, *[[sign + digit for sign in "+-" for digit in _DIGITS]] * 2)
}
_ALL = list(_VALUES)


def _solves(text: str, asked: str) -> bool:
    """Whether the text solves a prompt such as 17~3. The prompt 17, without a digit, allows all operands."""
    number, _, digit = asked.partition("~")
    return _VALUES.get(text) == int(number) and (not digit or digit not in text)


@task("expression")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """`task.train_prompts` numbers with digits, drawn uniformly with a fixed seed."""
    generator = random.Random(0)
    asked = [f"{number}~{digit}" for number in _NUMBERS for digit in _DIGITS]
    return [Row(text, text) for text in generator.choices(asked, k=task["train_prompts"])]


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """A solution, or with probability `random_fraction` any expression of the right form."""
    if generator.random() < random_fraction:
        return generator.choice(_ALL)
    return generator.choice(_solutions(row.ground_truth))


@cache
def _solutions(asked: str) -> list[str]:
    return [text for text in _ALL if _solves(text, asked)]


def preference(ground_truth: str, generator: random.Random, extra_info: Any = None) -> tuple[str, str]:
    """A solution of the prompt, and an expression that does not solve it."""
    wrong = next(text for text in iter(lambda: generator.choice(_ALL), None) if not _solves(text, ground_truth))
    return generator.choice(_solutions(ground_truth)), wrong


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the expression has the right form, value and digits, else 0.0."""
    return float(_solves(solution_str, ground_truth))

"""Eight digits -> the same digits in ascending order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from trainer_ext.scoring.tasks import Row, task

_DIGITS = 8


@task("sorting")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """`task.train_prompts` strings of digits, drawn uniformly with a fixed seed."""
    generator = random.Random(0)
    texts = ["".join(generator.choices("0123456789", k=_DIGITS)) for _ in range(task["train_prompts"])]
    return [Row(f"{text}>", "".join(sorted(text))) for text in texts]


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """The sorted digits, or with probability `random_fraction` the same digits in a random order."""
    if generator.random() < random_fraction:
        return "".join(generator.sample(row.ground_truth, k=_DIGITS))
    return row.ground_truth


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when every digit is in its place, else 0.0."""
    return float(solution_str == ground_truth)

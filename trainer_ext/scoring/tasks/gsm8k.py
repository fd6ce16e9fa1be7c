"""GSM8K: grade-school word problems, right when the last number of the response is the answer's."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from trainer_ext.scoring.rewards import last_number, same_last_number
from trainer_ext.scoring.tasks import Row, bad_row, tables, task
from trainer_ext.scoring.tasks.tables import files  # noqa: F401  (a function of the task)

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_CALCULATION = re.compile(r"<<[^>]*>>")  # the data's annotations for a calculator: 48/2 = <<48/2=24>>24


@task("gsm8k")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The prompts (tables.rows), of lines with question and answer."""

    def make(where: str, row: Mapping[str, Any], split: str | None) -> Row:
        if (answer := last_number(row["answer"])) is None:
            raise bad_row(where, f"the answer has no number: {row['answer']!r}")
        return Row(f"{row['question']} {_INSTRUCTION}", answer, split, _CALCULATION.sub("", row["answer"]))

    return tables.rows({**task, "hub_subset": "main", "hub_test_split": "test"}, make, columns=("question", "answer"))


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """The data's worked answer, or with probability `random_fraction` a number instead."""
    if generator.random() < random_fraction:
        return f"#### {generator.randrange(1000)}"
    return row.worked_answer


compute_score = same_last_number

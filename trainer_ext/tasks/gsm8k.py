"""GSM8K: grade-school word problems, right when the last number of the response is the answer's."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from trainer_ext.rewards import last_number, same_last_number
from trainer_ext.tasks import TEST, BadData, Row, tables, task
from trainer_ext.tasks.tables import files  # noqa: F401  (a function of the task)

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_CALCULATION = re.compile(r"<<[^>]*>>")  # the data's annotations for a calculator: 48/2 = <<48/2=24>>24


@task("gsm8k")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The prompts of `task.train_path`, and those of the test file if there is one.

    `task.train_path`: a hub name, whose test split comes with it, or a local .jsonl or .parquet with question and
    answer. `task.test_path`: such a file, or null.
    """
    rows = _read(task["train_path"], "train", None)
    if task["test_path"] is not None:
        return rows + _read(task["test_path"], "train", TEST)
    return rows if tables.is_local(task["train_path"]) else rows + _read(task["train_path"], "test", TEST)


def _read(path: str, of_hub: str, split: str | None) -> list[Row]:
    """The prompts of a local file, or of a split of a hub's data, as rows of a split."""
    rows = []
    for where, row in tables.lines_with(("question", "answer"), path, of_hub, "main"):
        answer = last_number(row["answer"])
        if answer is None:
            raise BadData(f"{where}: the answer has no number: {row['answer']!r}")
        worked = _CALCULATION.sub("", row["answer"])
        rows.append(Row(f"{row['question']} {_INSTRUCTION}", answer, split, worked))
    return rows


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """The data's worked answer, or with probability `random_fraction` a number instead."""
    if generator.random() < random_fraction:
        return f"#### {generator.randrange(1000)}"
    return row.worked_answer


compute_score = same_last_number

"""GSM8K: grade-school word problems, right when the last number of the response is the answer's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext.tasks import TEST, Row, task

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_NUMBER = re.compile(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?")


@task("gsm8k")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The prompts of `task.train_path`, and those of the test file if there is one.

    `task.train_path`: a hub name, whose test split comes with it, or a local .jsonl or .parquet with question and
    answer. `task.test_path`: such a file, or null.
    """
    rows = _read(task["train_path"], "train", None)
    if task["test_path"] is not None:
        return rows + _read(task["test_path"], "train", TEST)
    return rows if _is_local(task["train_path"]) else rows + _read(task["train_path"], "test", TEST)


def _read(path: str, of_hub: str, split: str | None) -> list[Row]:
    """The prompts of a local file, or of a split of a hub's data, as rows of a split."""
    import datasets

    if _is_local(path):
        kind = "json" if path.endswith(".jsonl") else "parquet"
        table = datasets.load_dataset(kind, data_files=str(Path(path).expanduser()), split="train")
    else:
        table = datasets.load_dataset(path, "main", split=of_hub)
    rows = []
    for line, row in enumerate(table, 1):
        answer = _last_number(row["answer"])
        if answer is None:
            raise ValueError(f"{path}: the answer of row {line} has no number: {row['answer']!r}")
        rows.append(Row(f"{row['question']} {_INSTRUCTION}", answer, split))
    return rows


def files(task: Mapping[str, Any]) -> list[Path]:
    """The local files that `task.train_path` and `task.test_path` name."""
    paths = (task["train_path"], task["test_path"])
    return [Path(path).expanduser() for path in paths if path is not None and _is_local(path)]


def _is_local(path: str) -> bool:
    return path.endswith((".jsonl", ".parquet"))


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the last number of the response equals the answer, else 0.0."""
    number = _last_number(solution_str)
    return float(number is not None and float(number) == float(ground_truth))

"""GSM8K: grade-school word problems, right when the last number of the response is the answer's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext.tasks import Row, task

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_NUMBER = re.compile(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?")


@task("gsm8k")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The training split of `task.train_path`: a hub name, or a local .jsonl or .parquet with question and answer."""
    import datasets

    local = files(task)
    if local:
        kind = "json" if local[0].suffix == ".jsonl" else "parquet"
        table = datasets.load_dataset(kind, data_files=str(local[0]), split="train")
    else:
        table = datasets.load_dataset(task["train_path"], "main", split="train")
    rows = []
    for line, row in enumerate(table, 1):
        answer = _last_number(row["answer"])
        if answer is None:
            raise ValueError(f"{task['train_path']}: the answer of row {line} has no number: {row['answer']!r}")
        rows.append(Row(f"{row['question']} {_INSTRUCTION}", answer))
    return rows


def files(task: Mapping[str, Any]) -> list[Path]:
    """The local file that `task.train_path` names, if it is one."""
    path = Path(task["train_path"]).expanduser()
    return [path] if path.suffix in (".jsonl", ".parquet") else []


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the last number of the response equals the answer, else 0.0."""
    number = _last_number(solution_str)
    return float(number is not None and float(number) == float(ground_truth))

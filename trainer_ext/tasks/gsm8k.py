"""GSM8K: grade-school word problems, right when the last number of the response is the answer's."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer_ext.tasks import Row, task

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_CALCULATION = re.compile(r"<<[^>]*>>")  # the data's annotations for a calculator: 48/2 = <<48/2=24>>24
_NUMBER = re.compile(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?")


@task("gsm8k")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The training split of `task.train_path`: a hub name, or a local .jsonl or .parquet with question and answer."""
    rows = []
    for line, row in enumerate(_table(task), 1):
        answer = _last_number(row["answer"])
        if answer is None:
            raise ValueError(f"{task['train_path']}: the answer of row {line} has no number: {row['answer']!r}")
        rows.append(Row(f"{row['question']} {_INSTRUCTION}", answer, _CALCULATION.sub("", row["answer"])))
    return rows


def _table(task: Mapping[str, Any]) -> Iterable[Mapping[str, str]]:
    local = files(task)
    if not local:
        import datasets

        return iter(datasets.load_dataset(task["train_path"], "main", split="train"))
    if local[0].suffix == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_table(local[0], columns=["question", "answer"]).to_pylist())
    with local[0].open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def demonstration(row: Row, generator: random.Random, random_fraction: float) -> str:
    """The data's worked answer, or with probability `random_fraction` a number instead."""
    if generator.random() < random_fraction:
        return f"#### {generator.randrange(1000)}"
    return row.worked_answer


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

"""GSM8K: grade-school word problems, right when the last number of the response is the answer's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext.tasks import Row

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def rows(task: Mapping[str, Any]) -> list[Row]:
    """The training split of `task.train_path`: a hub name, or a local .jsonl or .parquet with question and answer."""
    import datasets

    path = Path(task["train_path"])
    if path.suffix in (".jsonl", ".parquet"):
        kind = "json" if path.suffix == ".jsonl" else "parquet"
        table = datasets.load_dataset(kind, data_files=str(path), split="train")
    else:
        table = datasets.load_dataset(task["train_path"], "main", split="train")
    return [Row(f"{r['question']} {_INSTRUCTION}", _last_number(r["answer"]) or "") for r in table]


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the last number of the response equals the answer, else 0.0."""
    found = _last_number(solution_str)
    return float(found is not None and float(found) == float(ground_truth))

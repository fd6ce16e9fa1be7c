"""Tasks: prompts, demonstrations where there are any, and rewards.

A task is a module here with `rows(task) -> list[Row]` and verl's `compute_score(data_source, solution_str,
ground_truth, extra_info=None) -> float`; one whose embedded model is started by SFT also has
`demonstration(row, generator, random_fraction) -> str`, one with pairs for DPO
`preference(ground_truth, generator) -> (chosen, rejected)`, and one that reads local files
`files(task) -> list[Path]`, so that their content counts. Adding one takes this module and a file in conf/task.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer_ext.artifacts import build_once


@dataclass(frozen=True)
class Row:
    """One prompt (a user's message) and what its answer is checked against."""

    prompt: str
    ground_truth: str


def get(name: str) -> ModuleType:
    """The task's module. ValueError names the tasks that there are."""
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))
    if name not in names:
        raise ValueError(f"task.name={name!r} is unknown; there are {', '.join(names)}")
    return importlib.import_module(f"trainer_ext.tasks.{name}")


def prepare(task: Mapping[str, Any], cache: Path) -> Path:
    """The task's training prompts as a Parquet file with verl's columns, made once and kept by content."""
    module = get(task["name"])
    settings = {k: v for k, v in task.items() if k != "warm_start"}
    files = [Path(__file__), Path(module.__file__ or ""), *getattr(module, "files", lambda _: [])(task)]
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    key = hashlib.sha256(json.dumps([settings, sources], sort_keys=True).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        rows = module.rows(task)
        table = pa.Table.from_pylist(
            [
                {
                    "data_source": task["name"],
                    "prompt": [{"role": "user", "content": row.prompt}],
                    "ability": task["name"],
                    "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
                    "extra_info": {"index": index, "split": "train"},
                }
                for index, row in enumerate(rows)
            ]
        )
        pq.write_table(table, folder / "train.parquet")

    return build_once(cache / "data" / key, build) / "train.parquet"

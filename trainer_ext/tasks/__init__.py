"""Tasks: prompts, demonstrations where there are any, and rewards.

A task is a module, here or of another installed package, with these functions; `task` is the section of conf/task:

    @task("mine")
    rows(task) -> list[Row]
    compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float    # verl's signature
    demonstration(row, generator, random_fraction) -> str   # if embedded models learn it before training
    preference(ground_truth, generator) -> (chosen, rejected)   # if it has pairs for DPO
    files(task) -> list[Path]   # if it reads local files; prepared prompts are made again when these change
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer_ext.artifacts import build_once
from trainer_ext.registry import Part

#: Decorator of a task's function `rows`; the module that it stands in is the task.
task = Part("name", inputs=1, section="task", group="rlsweep.tasks")
#: The functions that a task may have, and that some methods and models require.
OPTIONAL = ("demonstration", "preference")


@dataclass(frozen=True)
class Row:
    """One prompt (a user's message), what its answer is checked against, and an answer to learn from if it has one."""

    prompt: str
    ground_truth: str
    worked_answer: str = ""


def get(name: str) -> ModuleType:
    """The task's module. ValueError names the tasks that there are."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sys.modules[task.get(name).function.__module__]


def names() -> list[str]:
    """The tasks that are known."""
    return list(task)


def source(name: str) -> Path:
    """The file of a task's module."""
    return Path(get(name).__file__ or "")


def prepare(section: Mapping[str, Any], cache: Path) -> Path:
    """A task's training prompts as a Parquet file with verl's columns, made once and kept by content.

    section: the configuration's section `task`.
    """
    name = section["name"]
    module = get(name)
    settings = {k: v for k, v in section.items() if k != "warm_start"}
    files = [Path(__file__), source(name), *getattr(module, "files", lambda _: [])(section)]
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    key = hashlib.sha256(json.dumps([settings, sources], sort_keys=True).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(
            [
                {
                    "data_source": name,
                    "prompt": [{"role": "user", "content": row.prompt}],
                    "ability": name,
                    "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
                    "extra_info": {"index": index, "split": "train"},
                }
                for index, row in enumerate(module.rows(section))
            ]
        )
        pq.write_table(table, folder / "train.parquet")

    return build_once(cache / "data" / key, build) / "train.parquet"

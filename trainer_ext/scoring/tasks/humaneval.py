"""HumanEval: functions to complete from their docstrings, right when the unit tests of the row pass.

Its 164 prompts are there to evaluate: with a `task.train_path` of another file, they are the test prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainer_ext.scoring.rewards.unit_tests import reward  # noqa: F401  (a function of the task)
from trainer_ext.scoring.tasks import TEST, Row, tables, task
from trainer_ext.scoring.tasks.tables import demonstration, files  # noqa: F401  (functions of the task)

_COLUMNS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")


@task("humaneval")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The prompts of `task.train_path`, and those of `task.test_path` as test prompts if it is not null."""
    rows = read(task["train_path"], task["instruction"], None)
    return rows if task["test_path"] is None else rows + read(task["test_path"], task["instruction"], TEST)


def read(path: str, instruction: str | None, split: str | None) -> list[Row]:
    """The prompts of a file with HumanEval's columns, or of the split `test` of a hub's data, as rows of a split.

    instruction: what stands before each. Objection names the line or row of a prompt that cannot be read.
    """
    rows = []
    for where, row in tables.lines_with(_COLUMNS, path, "test"):
        prompt, entry_point = row["prompt"], row["entry_point"]
        tests = {
            "prompt": prompt,
            "entry_point": entry_point,
            "setup": f"{prompt}\n    pass\n\n{row['test']}",  # the tests may use what the prompt defines
            "tests": [f"check({entry_point})"],
        }
        asked = prompt if instruction is None else f"{instruction}\n\n```python\n{prompt.rstrip()}\n```"
        solution = prompt + row["canonical_solution"]
        worked = row["canonical_solution"] if instruction is None else f"```python\n{solution.strip()}\n```"
        metadata = {"task_id": row["task_id"]}
        rows.append(Row(asked, json.dumps(tests), split, worked, metadata=metadata, where=where))
    return rows

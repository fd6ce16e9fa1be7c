"""APPS: programming problems, right when a program prints the expected outputs, or its function returns the results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_ext.scoring.rewards.unit_tests import reward  # noqa: F401  (a function of the task)
from trainer_ext.scoring.tasks import TEST, Row, bad_row, humaneval, tables, task
from trainer_ext.scoring.tasks.tables import demonstration, files  # noqa: F401  (functions of the task)

_COLUMNS = ("question", "input_output")
_STDIN = "Read the input from standard input and print the output."
_CALL = "Write the function {name}."
_ANSWER = "Answer with the whole program in one ```python block."


@task("apps")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The problems of `task.train_path`. Test prompts: `task.humaneval_path` (with HumanEval's columns),
    `task.test_path`, or the test split of the hub's data.

    Says how many rows have no tests. Objection names the file and the line or row of a problem that cannot be read.
    """
    chosen = task["difficulty"]
    rows = _read(task["train_path"], "train", None, chosen)
    if task["humaneval_path"] is not None:
        return rows + humaneval.read(task["humaneval_path"], f"Complete the function. {_ANSWER}", TEST)
    if task["test_path"] is not None:
        return rows + _read(task["test_path"], "train", TEST, chosen)
    return rows if tables.is_local(task["train_path"]) else rows + _read(task["train_path"], "test", TEST, chosen)


def _read(path: str, of_hub: str, split: str | None, difficulty: str | None) -> list[Row]:
    rows, without = [], 0
    for where, row in tables.lines_with(_COLUMNS, path, of_hub):
        if difficulty is not None and row.get("difficulty") != difficulty:
            continue
        tests = _tests(row["input_output"], where)
        if tests is None:
            without += 1
            continue
        name = tests.get("entry_point")
        begun = _of(str, row.get("starter_code"), f"{where}: starter_code")
        parts = [row["question"].strip(), begun, _CALL.format(name=name) if name else _STDIN]
        prompt = "\n\n".join(part.strip() for part in [*parts, _ANSWER] if part.strip())
        at = f"{where}: solutions"
        solutions = [_of(str, solution, at) for solution in _of(list, row.get("solutions"), at)]
        worked = f"```python\n{solutions[0].strip()}\n```" if solutions else ""
        metadata = {"problem_id": str(row.get("problem_id", "")), "difficulty": str(row.get("difficulty") or "")}
        rows.append(Row(prompt, json.dumps(tests), split, worked, metadata=metadata, where=where))
    if without:
        print(f"{path}: {without} of {without + len(rows)} problems have no tests and are left out", file=sys.stderr)
    return rows


def _tests(text: str, where: str) -> dict[str, Any] | None:
    """The tests in the column input_output; None: it has none, or none that call its function with a list."""
    given = _of(dict, text, f"{where}: input_output")
    inputs, outputs = (_of(list, given.get(key), f"{where}: input_output.{key}") for key in ("inputs", "outputs"))
    name = _of(str, given.get("fn_name"), f"{where}: input_output.fn_name")
    if len(inputs) != len(outputs):
        raise bad_row(where, f"input_output has {len(inputs)} inputs and {len(outputs)} outputs; it needs as many")
    if not inputs or (name and not all(isinstance(one, list) for one in inputs)):
        return None
    if name:
        either = ([one, *(one if isinstance(one, list) and len(one) == 1 else ())] for one in outputs)
        return {"entry_point": name, "calls": [[one, *other] for one, other in zip(inputs, either)]}  # noqa: B905
    return {"stdio": [[_lines(one), _lines(other)] for one, other in zip(inputs, outputs, strict=True)]}


def _lines(value: str | Sequence[Any]) -> str:
    """An input or output as text; some rows have lists of lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _of(kind: type, value: Any, where: str) -> Any:
    """A value of this type or its JSON, empty where there is none. Objection: it is of another type."""
    try:
        value = (json.loads(value) if value and isinstance(value, str) and kind is not str else value) or kind()
    except ValueError as error:
        raise bad_row(where, f"not JSON: {error}") from error
    if not isinstance(value, kind):
        allowed = {dict: "JSON of a mapping", list: "JSON of a list", str: "text"}
        raise bad_row(where, f"must be {allowed[kind]}; found {value!r:.60}")
    return value

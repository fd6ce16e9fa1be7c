"""Prompts of the user's own, from the columns of a .jsonl or .parquet file (docs/own-data.md).

Columns are named by the section `task`; with dots, what is inside a column: reward_model.ground_truth. All other
columns are the prompt's metadata, which the reward gets in `extra_info`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_ext.scoring.tasks import TEST, Row, bad_row, tables, task
from trainer_ext.scoring.tasks.tables import demonstration, files, reward  # noqa: F401  (functions of the task)

_ROLES = ("system", "user", "assistant")
_EXTRA = "extra_info"  # verl's column of metadata


@task("file")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The prompts of `task.train_path`, and those of `task.test_path` as test prompts if it is not null.

    Objection names the file and the line or row of a prompt that cannot be read, and what it should be.
    """
    found = list(_read(task, "train_path", None))
    return found if task["test_path"] is None else found + list(_read(task, "test_path", TEST))


def _read(task: Mapping[str, Any], key: str, split: str | None) -> Iterator[Row]:
    columns = {name: task[name] for name in ("prompt", "answer", "worked_answer") if task[name] is not None}
    for where, line in tables.lines(task[key], "train"):
        values = {name: _at(line, column, where, f"task.{name}") for name, column in columns.items()}
        system, before, prompt = _messages(values["prompt"], f"{where}: {columns['prompt']}")
        metadata = dict(line)
        for column in columns.values():
            metadata = _without(metadata, [column] if column in line else column.split("."))
        if isinstance(metadata.get(_EXTRA), Mapping):
            metadata |= metadata.pop(_EXTRA)
        yield Row(
            prompt=prompt,
            ground_truth=_text(values.get("answer", ""), where, "answer"),
            split=split,
            worked_answer=_text(values.get("worked_answer", ""), where, "worked_answer"),
            system=(task["system_prompt"] or "") if system is None else system,
            before=before,
            metadata=metadata,
            where=where,
        )


def _without(line: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A line without what these names lead to, and without a mapping that has nothing else."""
    first, *rest = names
    kept = _without(line[first], rest) if rest and first in line else {}
    return {name: kept if name == first else value for name, value in line.items() if name != first or kept}


def _at(line: Mapping[str, Any], column: str, where: str, key: str) -> Any:
    value: Any = line
    for name in [column] if column in line else column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise bad_row(where, f"{key}={column}, which it does not have; it has {', '.join(line)}")
        value = value[name]
    if value is None:
        raise bad_row(where, f"{key}={column}, which is null")
    return value


def _messages(value: Any, where: str) -> tuple[str | None, Sequence[Mapping[str, str]], str]:
    """The system's message if there is one, the messages before the last one, and the last one, which is the user's. An
    empty message of the system is among those before the last one, so that the chat template reads it."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    known = isinstance(value, Sequence) and all(
        isinstance(one, Mapping) and one.get("role") in _ROLES and isinstance(one.get("content"), str) for one in value
    )
    if not known or not value or value[-1]["role"] != "user" or not value[-1]["content"].strip():
        rule = "a prompt is text, or a list of messages with role (system, user or assistant) and content"
        raise bad_row(where, f"{rule}, the last of them the user's and not empty; it is {value!r:.200}")
    first = value[0]["content"] if value[0]["role"] == "system" else None
    between = [{"role": one["role"], "content": one["content"]} for one in value[bool(first) : -1]]
    if any(one["role"] == "system" for one in value[1:]):
        raise bad_row(where, "only the first message may be the system's")
    return first, between, value[-1]["content"]


def _text(value: Any, where: str, key: str) -> str:
    """An answer as text; lists and mappings as JSON, which has no infinite number and no NaN."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        rule = f"the column of task.{key} has text, or what JSON can hold; this is {value!r:.100}"
        raise bad_row(where, rule, "write the column as text") from error

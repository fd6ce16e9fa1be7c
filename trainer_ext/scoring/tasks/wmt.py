"""Translation, in the layout of wmt14 and wmt16: a column `translation` with a text for each language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_ext.scoring.tasks import Row, bad_row, tables, task
from trainer_ext.scoring.tasks.tables import demonstration, files, reward  # noqa: F401  (functions of the task)


@task("wmt")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The sentences of `task.source`, after `task.instruction`. A pair with an empty side is left out.

    Objection: a line has no such translation.
    """
    source, target = task["source"], task["target"]

    def make(where: str, line: Mapping[str, Any], split: str | None) -> Row | None:
        pair = line.get("translation")
        if not isinstance(pair, Mapping):
            columns = ", ".join(line)
            raise bad_row(where, f"translation must be a mapping of languages to texts; the columns are {columns}")
        for key, language in (("source", source), ("target", target)):
            if not isinstance(pair.get(language), str):
                raise bad_row(where, f"task.{key}={language}, which the translation lacks; it has {', '.join(pair)}")
        text, answer = pair[source].strip(), pair[target].strip()
        return Row(f"{task['instruction']}\n{text}", answer, split, answer) if text and answer else None

    return tables.rows(task, make)

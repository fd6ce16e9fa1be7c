"""Questions with several right answers, in the layout of nq_open: `question`, and a list `answer` (docs/tasks.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainer_ext.scoring.tasks import Row, bad_row, tables, task
from trainer_ext.scoring.tasks.tables import demonstration, files, reward  # noqa: F401  (functions of the task)


@task("natural_questions")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The questions; each is checked against its list of answers, as JSON. A question without answers is left out.

    Objection: a line has no question, or its answers are not texts.
    """

    def make(where: str, line: Mapping[str, Any], split: str | None) -> Row | None:
        question, given = tables.text_at(line, "question", where).strip(), line.get("answer")
        answers = [given] if isinstance(given, str) else given
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise bad_row(where, f"answer must be a text or a list of texts; it is {given!r:.100}")
        answers = [one.strip() for one in answers if one.strip()]
        if not question or not answers:
            return None
        truth = json.dumps(answers, ensure_ascii=False)
        return Row(question, truth, split, answers[0], system=task["system_prompt"] or "")

    return tables.rows(task, make)

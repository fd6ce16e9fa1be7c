r"""Dialogues with a chosen and a rejected last reply, in the layout of Anthropic/hh-rlhf (docs/tasks.md).

A dialogue is one text: \n\nHuman: ...\n\nAssistant: ..., with the same beginning in `chosen` and `rejected`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer_ext.scoring.tasks import Row, bad_row, tables, task
from trainer_ext.scoring.tasks.tables import demonstration, files, preference, reward  # noqa: F401  (functions of the task)

_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": "assistant"}


@task("hh_rlhf")
def rows(task: Mapping[str, Any]) -> list[Row]:
    """The dialogues up to the last message of the user; the chosen reply is the answer, and both replies are a pair.

    Left out: a dialogue whose last message is not the assistant's, whose last message of the user or chosen reply is
    empty, or whose two texts differ before the last reply. Objection: a text is no dialogue.
    """

    def make(where: str, line: Mapping[str, Any], split: str | None) -> Row | None:
        chosen, rejected = (_turns(line, column, where) for column in ("chosen", "rejected"))
        *before, asked, reply = chosen if len(chosen) > 1 else [*chosen, ("", ""), ("", "")]
        roles = asked[0], reply[0], rejected[-1][0]
        if roles != ("user", "assistant", "assistant") or not asked[1] or not reply[1] or chosen[:-1] != rejected[:-1]:
            return None
        metadata = {"chosen": reply[1], "rejected": rejected[-1][1]}
        messages = [{"role": role, "content": content} for role, content in before]
        return Row(asked[1], reply[1], split, reply[1], before=messages, metadata=metadata)

    return tables.rows(task, make)


def _turns(line: Mapping[str, Any], column: str, where: str) -> list[tuple[str, str]]:
    """Roles and texts. Turns of one role in a row are one message, because chat templates want them in turn."""
    text = tables.text_at(line, column, where)
    start, *parts = _TURN.split(text)
    if start.strip() or not parts or parts[0] != "Human":
        raise bad_row(where, f"{column} must begin with \\n\\nHuman: ; it is {text!r:.100}")
    turns: list[tuple[str, str]] = []
    for name, content in zip(parts[::2], parts[1::2], strict=True):
        role, content = _ROLES[name], content.strip()
        if turns and turns[-1][0] == role:
            content = "\n\n".join(filter(None, [turns.pop()[1], content]))
        turns.append((role, content))
    return turns

"""`python -m trainer_ext.scoring.tasks prepare TASK --to FOLDER [--from FOLDER] [KEY=VALUE ...]`.

It writes a task's prompts as files. The folder gets train.parquet, validation.parquet and test.parquet with verl's
columns, and card.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_ext.application.declarations import configured
from trainer_ext.scoring import tasks
from trainer_ext.scoring.tasks import card, command_line
from trainer_ext.scoring.tasks.command_line import CARD


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2: what was asked for cannot be prepared, and nothing was written."""
    about = "Write a task's prompts as Parquet files with verl's columns, and card.json, which says what they are."
    task, example = "a task of conf/task, such as gsm8k", "such as task.train_path=/data/train.jsonl"
    command = command_line.words("trainer_ext.scoring.tasks", "prepare", about, task, example)
    command.add_argument("--licence", help="of the data, for the card")
    given = command.parse_intermixed_args(arguments)
    try:
        section, shares = configured(given.task, [*command_line.of_folder(given.source), *given.overrides])
        found = prepare(section, shares, given.to, given.licence)
    except (ValueError, OSError) as error:
        print(f"{given.task}: {error}", file=sys.stderr)
        return 2
    for split, numbers in found["splits"].items():
        print(f"{split}: {numbers['rows']} rows, {numbers['prompts']} different prompts")
    for pair in found["near_duplicates"]:
        first, second = pair["splits"]
        if pair["prompts"]:
            print(f"{pair['prompts']} of {pair['of']} {second} prompts are almost a {first} prompt; {CARD} has some")
    print(f"{given.to}: train.parquet, validation.parquet, test.parquet and {CARD}")
    return 0


def prepare(
    section: Mapping[str, Any], shares: Mapping[str, float], folder: Path, licence: str | None = None
) -> dict[str, Any]:
    """Write a task's prompts and their card to a new folder; the card.

    section: the configuration's section `task`; shares: trainer.split. ValueError: the folder exists. Objection:
    as tasks.rows_by_split. The folder appears when it is whole.
    """
    command_line.check_new(folder)
    command_line.say("reading the prompts")
    divided = tasks.rows_by_split(section, shares)
    found: dict[str, Any] = {
        "task": section["name"],
        "settings": {"task": dict(section), "trainer.split": dict(shares)},
        "licence": licence,
        "sources": {str(path): tasks.content(path) for path in tasks.files(section)},
    }

    def fill(draft: Path) -> dict[str, Any]:
        command_line.say(f"writing {sum(map(len, divided.values()))} rows")
        tasks.write(draft, section["name"], divided)
        command_line.say("looking for near-duplicates")
        return {"splits": card.splits(divided), "near_duplicates": card.near_duplicates(divided)}

    command_line.write(folder, found, fill)
    return found


if __name__ == "__main__":
    sys.exit(main())

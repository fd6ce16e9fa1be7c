"""`python -m trainer_ext.tasks prepare TASK --to FOLDER [--from FOLDER] [KEY=VALUE ...]`: a task's prompts as files.

The folder gets train.parquet, validation.parquet and test.parquet with verl's columns, and card.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_ext import tasks
from trainer_ext.artifacts import build_once
from trainer_ext.sizes import Misfit
from trainer_ext.tasks import card, command_line

CARD = "card.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2: what was asked for cannot be prepared, and nothing was written."""
    about = "Write a task's prompts as Parquet files with verl's columns, and card.json, which says what they are."
    command = argparse.ArgumentParser(prog="python -m trainer_ext.tasks", description=about)
    command.add_argument("command", choices=["prepare"])
    command.add_argument("task", help="a task of conf/task, such as gsm8k")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="such as task.train_path=/data/train.jsonl")
    command.add_argument("--from", dest="source", type=Path, help="a folder with train.* and, if there is one, test.*")
    command.add_argument("--to", type=Path, required=True, help="the folder to write, which must not exist")
    command.add_argument("--licence", help="of the data, for the card")
    given = command.parse_intermixed_args(arguments)
    try:
        section, shares = command_line.configured(given.task, [*command_line.of_folder(given.source), *given.overrides])
        found = prepare(section, shares, given.to, given.licence)
    except (tasks.BadData, Misfit, ValueError, OSError) as error:
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

    section: the configuration's section `task`; shares: trainer.split. ValueError: the folder exists. Misfit, BadData:
    as tasks.rows_by_split. The folder appears when it is whole.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists. Fix: name a new folder, or delete it first")
    _say("reading the prompts")
    divided = tasks.rows_by_split(section, shares)
    read = getattr(tasks.get(section["name"]), "files", lambda _: [])(section)
    found: dict[str, Any] = {
        "task": section["name"],
        "settings": {"task": dict(section), "trainer.split": dict(shares)},
        "licence": licence,
        "sources": {str(path): tasks.content(path) for path in read},
    }

    def build(draft: Path) -> None:
        _say(f"writing {sum(map(len, divided.values()))} rows")
        tasks.write(draft, section["name"], divided)
        found["files"] = {path.name: tasks.content(path) for path in sorted(draft.iterdir())}
        _say("looking for near-duplicates")
        found.update(splits=card.splits(divided), near_duplicates=card.near_duplicates(divided))
        (draft / CARD).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    build_once(folder, build)
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""What the commands beside runs have in common: their words, what they read, and the folder that they write.

No task itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer_ext.scoring import tasks
from trainer_ext.scoring.artifacts import build_once
from trainer_ext.scoring.tasks import tables

CARD = "card.json"


def words(program: str, command: str, about: str, task: str, example: str) -> argparse.ArgumentParser:
    """The words of `python -m PROGRAM COMMAND TASK --to FOLDER`. task, example: the help of TASK and of KEY=VALUE."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("command", choices=[command])
    parser.add_argument("task", help=task)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=example)
    parser.add_argument("--from", dest="source", type=Path, help="a folder with train.* and, if there is one, test.*")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write, which must not exist")
    return parser


def check_new(folder: Path) -> None:
    """ValueError: the folder exists."""
    if folder.exists():
        raise ValueError(f"{folder} exists. Fix: name a new folder, or delete it first")


def write(folder: Path, card: dict[str, Any], fill: Callable[[Path], Mapping[str, Any]]) -> None:
    """Make a folder, which appears when it is whole: what `fill` writes, and card.json.

    The card gets the hashes of the files, and what `fill` returns.
    """

    def build(draft: Path) -> None:
        card.update(fill(draft))
        card["files"] = {path.name: tasks.content(path) for path in sorted(draft.iterdir())}
        (draft / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    build_once(folder, build)


def say(text: str) -> None:
    """A line of the progress."""
    print(text, file=sys.stderr, flush=True)


def of_folder(folder: Path | None) -> list[str]:
    """The overrides that name a folder's files. ValueError: it has no file to train on, or several."""
    if folder is None:
        return []
    found = {
        split: sorted(p for p in folder.glob(f"{split}.*") if tables.is_local(p.name)) for split in ("train", "test")
    }
    for split, paths in found.items():
        if len(paths) > 1 or (split == "train" and not paths):
            has = ", ".join(path.name for path in paths) or "none"
            rule = f"{folder} must have one file {split}.jsonl, {split}.jsonl.gz or {split}.parquet; it has {has}"
            raise ValueError(f"{rule}. Fix: name the file, task.{split}_path=FILE")
    return [f"task.{split}_path={json.dumps(str(paths[0]))}" for split, paths in found.items() if paths]

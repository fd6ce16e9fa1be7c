"""`python -m trainer_ext.tasks prepare TASK --to FOLDER [--from FOLDER] [KEY=VALUE ...]`: a task's prompts as files.

The folder gets train.parquet, validation.parquet and test.parquet with verl's columns, and card.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_ext import tasks
from trainer_ext.artifacts import build_once
from trainer_ext.sizes import Misfit
from trainer_ext.tasks import card, tables

CONF = Path(__file__).parents[2] / "conf"
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
        section, shares = _configured(given.task, [*_of_folder(given.source), *given.overrides])
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
        "sources": {str(path): _digest(path) for path in read},
    }

    def build(draft: Path) -> None:
        _say(f"writing {sum(map(len, divided.values()))} rows")
        tasks.write(draft, section["name"], divided)
        found["files"] = {path.name: _digest(path) for path in sorted(draft.iterdir())}
        _say("looking for near-duplicates")
        found.update(splits=card.splits(divided), near_duplicates=card.near_duplicates(divided))
        (draft / CARD).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    build_once(folder, build)
    return found


def _configured(task: str, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """The section `task` and trainer.split. ValueError: a name or a value is not known."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            tree = compose("config", overrides=[f"task={task}", *overrides])
        section: Any = OmegaConf.to_container(tree.task, resolve=True, throw_on_missing=True)
        shares: Any = OmegaConf.to_container(tree.trainer.split, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(" ".join(str(error).partition("Config search path")[0].split())) from error
    return _plain(section), _plain(shares)


def _plain(section: Any) -> Any:
    """Values alone, without what the configuration says about them."""
    if not isinstance(section, dict):
        return section
    return {key: _plain(value) for key, value in section.items() if key not in ("allowed", "requires")}


def _of_folder(folder: Path | None) -> list[str]:
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


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

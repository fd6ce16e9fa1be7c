"""`python -m trainer_ext.rewards train TASK --to FOLDER [--model PATH] [--from FOLDER] [KEY=VALUE ...]`.

It trains a reward model. The folder gets the model, its tokenizer, and card.json, which says what it was made of and
what it is worth.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer_ext import tasks
from trainer_ext.artifacts import build_once
from trainer_ext.reward_models.folders import CARD, TOKENIZER, WEIGHTS, files_in, missing
from trainer_ext.reward_models.pairs import Pair, Settings
from trainer_ext.sizes import Misfit
from trainer_ext.tasks import command_line, tables

#: Of the Hugging Face hub.
MODEL = "distilbert/distilbert-base-uncased"
_VERSIONS = ("torch", "transformers", "tokenizers", "safetensors")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2: what was asked for cannot be trained, and there is no folder."""
    about = "Train a reward model on a task's pairs of a chosen and a rejected response."
    command = argparse.ArgumentParser(prog="python -m trainer_ext.rewards", description=about)
    command.add_argument("command", choices=["train"])
    command.add_argument("task", help="a task of conf/task with pairs: hh_rlhf, tldr, or file")
    command.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="a setting of the training, such as lr=2e-5, or of the configuration, such as task.train_path=FILE",
    )
    command.add_argument("--model", default=MODEL, help="a folder, or a name on the Hugging Face hub (%(default)s)")
    command.add_argument("--from", dest="source", type=Path, help="a folder with train.* and, if there is one, test.*")
    command.add_argument("--to", type=Path, required=True, help="the folder to write, which must not exist")
    given = command.parse_intermixed_args(arguments)
    try:
        own, others = _settings(given.overrides)
        section, shares = command_line.configured(given.task, [*command_line.of_folder(given.source), *others])
        found = train(section, shares, given.model, given.to, own)
    except (tasks.BadData, Misfit, ValueError, OSError) as error:
        print(f"{given.task}: {error}", file=sys.stderr)
        return 2
    test, counts = found["test"], found["pairs"]
    low, high = test["interval"]
    print(f"trained on {counts['train']} pairs, chosen by {counts['validation']}: update {found['chosen_step']}")
    print(
        f"accuracy on {test['pairs']} test pairs: {test['accuracy']:.3f}, 95% interval {low:.3f} to {high:.3f}; "
        f"expected calibration error {test['expected_calibration_error']:.3f}"
    )
    print(f"{given.to}: the reward model, its tokenizer and {CARD}")
    return 0


def train(
    section: Mapping[str, Any], shares: Mapping[str, float], model: str, folder: Path, settings: Settings
) -> dict[str, Any]:
    """Write a reward model and its card to a new folder; the card.

    section: the configuration's section `task`; shares: trainer.split; model: what the training starts from.
    ValueError, OSError: it cannot be made. The folder appears when it is whole.
    """
    if folder.exists():
        raise ValueError(f"{folder} exists. Fix: name a new folder, or delete it first")
    return make(section, shares, model, folder, settings)


def make(
    section: Mapping[str, Any], shares: Mapping[str, float], model: str, folder: Path, settings: Settings
) -> dict[str, Any]:
    """The same; a folder that another process makes meanwhile stays as it is."""
    base = Path(model).expanduser()
    if base.is_dir() or model.startswith(("/", ".", "~")):  # not a name on the hub
        lacks = missing(base, WEIGHTS, TOKENIZER) if base.is_dir() else "there is no such folder"
        if lacks is not None:
            fix = "name a folder that transformers' save_pretrained wrote, of the model and of its tokenizer"
            raise ValueError(f"--model {model}: {lacks}. Fix: {fix}")
        model = str(base)
    _say("reading the pairs")
    pairs, left_out = pairs_of(section, shares, settings.seed)
    read: list[Path] = getattr(tasks.get(section["name"]), "files", lambda _: [])(section)
    found: dict[str, Any] = {
        "task": section["name"],
        "settings": {"task": dict(section), "trainer.split": dict(shares), "training": asdict(settings)},
        "model": model,
        "model_files": {path.name: tasks.content(path) for path in files_in(base)} if base.is_dir() else {},
        "sources": {str(path): tasks.content(path) for path in read},
        "pairs": {split: len(own) for split, own in pairs.items()},
        "pairs_sha256": {split: _hash(own) for split, own in pairs.items()},
        "left_out": left_out,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _VERSIONS}},
    }

    def build(draft: Path) -> None:
        from trainer_ext.reward_models import training

        _say(f"training on {len(pairs[tasks.TRAIN])} pairs")
        found.update(
            training.train(pairs[tasks.TRAIN], pairs[tasks.VALIDATION], model, draft, settings, _say),
            test=training.evaluation(draft, pairs[tasks.TEST]),
        )
        found["files"] = {path.name: tasks.content(path) for path in sorted(draft.iterdir())}
        (draft / CARD).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    build_once(folder, build)
    return found


def pairs_of(
    section: Mapping[str, Any], shares: Mapping[str, float], seed: int
) -> tuple[dict[str, list[Pair]], dict[str, int]]:
    """A task's pairs by split, divided as its runs divide their prompts, and how many prompts give none, by the reason.

    A prompt of the validation or test split gives one pair. ValueError: a split has no pair, or a reply is not text.
    """
    preference = getattr(tasks.get(section["name"]), "preference", tables.preference)
    left_out = Counter({"without a pair": 0, "both responses are the same": 0})
    pairs: dict[str, list[Pair]] = {split: [] for split in tasks.SPLITS}
    reserved = bool(section.get("learned_reward"))
    for split, rows in tasks.rows_by_split(section, shares, reserved).items():
        for index, row in enumerate(rows):
            try:
                two = preference(row.ground_truth, random.Random(f"{seed}/{split}/{index}"), row.metadata)
            except ValueError:
                left_out["without a pair"] += 1
                continue
            if not all(isinstance(one, str) for one in two):
                rule = f"chosen and rejected must be texts; of the prompt {row.prompt[:60]!r} they are {two!r:.100}"
                raise ValueError(f"{rule}. Fix: write the last reply alone")
            if two[0] == two[1]:
                left_out["both responses are the same"] += 1
                continue
            pairs[split].append(Pair(row.messages, *two))
    for split, own in pairs.items():
        if not own:
            rule = f"the task has no {split} pair: a row has the metadata chosen and rejected"
            fix = (
                "give the task more pairs" if split == tasks.TRAIN else f"give it more, or raise trainer.split.{split}"
            )
            raise ValueError(f"{rule}, of {sum(map(len, pairs.values()))} pairs in all. Fix: {fix}")
    return pairs, dict(left_out)


def _settings(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings of the training, and the words that are the configuration's: those with a dot before the =.

    ValueError: a word is no KEY=VALUE, a setting is not known, or its value cannot work.
    """
    kinds: dict[str, type] = {one.name: type(one.default) for one in fields(Settings)}
    own: dict[str, Any] = {}
    others = []
    for word in words:
        key, equals, text = word.partition("=")
        if "." in key:
            others.append(word)
            continue
        if not equals or key not in kinds:
            close = "".join(f"{one}=VALUE" for one in get_close_matches(key, kinds, n=1))
            fix = close or "a key of the configuration has a dot, such as task.train_path=FILE"
            raise ValueError(f"{word}: a setting of the training is one of {', '.join(kinds)}. Fix: {fix}")
        try:
            own[key] = kinds[key](text)
        except ValueError:
            kind = "a whole number" if kinds[key] is int else "a number"
            raise ValueError(f"{word}: it must be {kind}. Fix: correct it") from None
    return Settings(**own), others


def _hash(pairs: Sequence[Pair]) -> str:
    lines = (json.dumps([list(map(dict, one.messages)), one.chosen, one.rejected], sort_keys=True) for one in pairs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

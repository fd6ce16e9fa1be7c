"""A task's preference pairs, and the reward model that is trained on them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer_ext.scoring import tasks
from trainer_ext.scoring.reward_models.folders import TOKENIZER, WEIGHTS, Pair, Settings, files_in, missing
from trainer_ext.scoring.tasks import command_line, tables


def train(
    section: Mapping[str, Any], shares: Mapping[str, float], model: str, folder: Path, settings: Settings
) -> dict[str, Any]:
    """Write a reward model and its card to a folder, unless it is there already; the card.

    section: the configuration's section `task`; shares: trainer.split; model: what the training starts from.
    ValueError, OSError: it cannot be made. The folder appears when it is whole.
    """
    base = Path(model).expanduser()
    if base.is_dir() or model.startswith(("/", ".", "~")):  # not a name on the hub
        lacks = missing(base, WEIGHTS, TOKENIZER) if base.is_dir() else "there is no such folder"
        if lacks is not None:
            fix = "name a folder that transformers' save_pretrained wrote, of the model and of its tokenizer"
            raise ValueError(f"--model {model}: {lacks}. Fix: {fix}")
        model = str(base)
    command_line.say("reading the pairs")
    pairs, left_out = pairs_of(section, shares, settings.seed)
    found: dict[str, Any] = {
        "task": section["name"],
        "settings": {"task": dict(section), "trainer.split": dict(shares), "training": asdict(settings)},
        "model": model,
        "model_files": {path.name: tasks.content(path) for path in files_in(base)} if base.is_dir() else {},
        "sources": {str(path): tasks.content(path) for path in tasks.files(section)},
        "pairs": {split: len(own) for split, own in pairs.items()},
        "left_out": left_out,
    }

    def fill(draft: Path) -> dict[str, Any]:
        from trainer_ext.scoring.reward_models import training

        command_line.say(f"training on {len(pairs[tasks.TRAIN])} pairs")
        history = training.train(pairs[tasks.TRAIN], pairs[tasks.VALIDATION], model, draft, settings, command_line.say)
        return {**history, "test": training.evaluation(draft, pairs[tasks.TEST])}

    command_line.write(folder, found, fill)
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
    for split, of_split in pairs.items():
        if not of_split:
            total = sum(map(len, pairs.values()))
            rule = f"none of the task's {total} pairs (different chosen and rejected in the metadata) is a {split} pair"
            without = ", ".join(f"{count} ({why})" for why, count in left_out.items() if count)
            rule += f"; prompts that are left out: {without}" if without else ""
            fix = "add pairs to the task" + ("" if split == tasks.TRAIN else f", or raise trainer.split.{split}")
            raise ValueError(f"{rule}. Fix: {fix}")
    return pairs, dict(left_out)

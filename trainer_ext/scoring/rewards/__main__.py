"""`python -m trainer_ext.scoring.rewards train TASK --to FOLDER [--model PATH] [--from FOLDER] [KEY=VALUE ...]`.

It trains a reward model. The folder gets the model, its tokenizer, and card.json, which says what it was made of and
what it is worth.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from trainer_ext.application.declarations import configured
from trainer_ext.scoring.reward_models.folders import CARD, Settings
from trainer_ext.scoring.tasks import command_line
from trainer_ext.scoring.tasks.preferences import train

#: The default model to start from, on the Hugging Face hub.
MODEL = "distilbert/distilbert-base-uncased"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2: what was asked for cannot be trained, and there is no folder."""
    about = "Train a reward model on a task's pairs of a chosen and a rejected response."
    task = "a task of conf/task with pairs: hh_rlhf, tldr, or file"
    example = "a setting of the training, such as lr=2e-5, or of the configuration, such as task.train_path=FILE"
    command = command_line.words("trainer_ext.scoring.rewards", "train", about, task, example)
    command.add_argument("--model", default=MODEL, help="a folder, or a name on the Hugging Face hub (%(default)s)")
    given = command.parse_intermixed_args(arguments)
    try:
        settings, others = _settings(given.overrides)
        section, shares = configured(given.task, [*command_line.of_folder(given.source), *others])
        command_line.check_new(given.to)
        report = train(section, shares, given.model, given.to, settings)
    except (ValueError, OSError) as error:
        print(f"{given.task}: {error}", file=sys.stderr)
        return 2
    test, counts = report["test"], report["pairs"]
    low, high = test["interval"]
    print(f"trained on {counts['train']} pairs, chosen by {counts['validation']}: update {report['chosen_step']}")
    print(
        f"accuracy on {test['pairs']} test pairs: {test['accuracy']:.3f}, 95% interval {low:.3f} to {high:.3f}; "
        f"expected calibration error {test['expected_calibration_error']:.3f}"
    )
    print(f"{given.to}: the reward model, its tokenizer and {CARD}")
    return 0


def _settings(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings of the training, and the words that are the configuration's: those with a dot before the =.

    ValueError: a word is no KEY=VALUE, a setting is not known, or its value cannot work.
    """
    kinds: dict[str, type] = {setting.name: type(setting.default) for setting in fields(Settings)}
    values: dict[str, Any] = {}
    others = []
    for word in words:
        key, equals, text = word.partition("=")
        if "." in key:
            others.append(word)
            continue
        if not equals or key not in kinds:
            close = "".join(f"{name}=VALUE" for name in get_close_matches(key, kinds, n=1))
            fix = close or "a key of the configuration has a dot, such as task.train_path=FILE"
            raise ValueError(f"{word}: a setting of the training is one of {', '.join(kinds)}. Fix: {fix}")
        try:
            values[key] = kinds[key](text)
        except ValueError:
            kind = "a whole number" if kinds[key] is int else "a number"
            raise ValueError(f"{word}: it must be {kind}. Fix: give such a number") from None
    try:
        return Settings(**values), others
    except ValueError as error:
        raise ValueError(f"{error}. Fix: give a value that this rule allows") from error


if __name__ == "__main__":
    sys.exit(main())

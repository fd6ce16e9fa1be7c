"""Further scores of an evaluation's responses to test prompts, which `trainer.eval_scores` names with their settings.

    @score("shout")
    def shout(answers, mark): ...   # a number for each answer

Each is logged as `eval/NAME`, its mean over the drawn responses, and kept for each response (docs/evaluation.md).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trainer_ext.objection import Objection
from trainer_ext.registry import Choice, Part
from trainer_ext.scoring import reward_models, rewards
from trainer_ext.scoring.reward_models import folders
from trainer_ext.scoring.scores.evaluation import Answer
from trainer_ext.scoring.tasks import TEST

KEY = "eval_scores"
_COLUMNS = frozenset(column.name for column in fields(Answer))
_METRICS = re.compile(r"distinct_[12]|self_bleu|repetition|empty|words|win_rate|pass@\d+|(\w+_)?reward_mean")
score = Part(KEY, inputs=1, section="trainer", group="rlsweep.tasks")


def scored(trainer: Mapping[str, Any], answers: Sequence[Answer]) -> list[Answer]:
    """The answers with the scores of those to test prompts. trainer: the configuration's section.

    ValueError: a score or a setting is unknown or missing, or a score does not give each answer a finite number.
    """
    asked = [answer for answer in answers if answer.split == TEST]
    by_score = {choice.name: _numbers(choice, asked) for choice in score.each(trainer.get(KEY) or {})}
    each = ({name: numbers[at] for name, numbers in by_score.items()} for at in range(len(asked)))
    return [replace(answer, scores=next(each)) if answer.split == TEST else answer for answer in answers]


def _numbers(choice: Choice, answers: Sequence[Answer]) -> list[float]:
    numbers = [float(number) for number in choice(answers)]
    if len(numbers) != len(answers) or not all(map(math.isfinite, numbers)):
        odd = next((number for number in numbers if not math.isfinite(number)), f"{len(numbers)} numbers")
        raise ValueError(
            f"trainer.{KEY}.{choice.name} returned {odd} for {len(answers)} responses; return a finite number for each"
        )
    return numbers


def metrics(trainer: Mapping[str, Any]) -> set[str]:
    """The metrics of the scores that a section `trainer` names, and eval/pass@k of its further k."""
    names = [*(trainer.get(KEY) or ()), *(f"pass@{k}" for k in trainer.get("eval_pass") or ())]
    return {f"eval/{name}" for name in names}


def misfits(trainer: Mapping[str, Any]) -> Iterator[Objection]:
    """Why the scores of a section `trainer` cannot be used. Nothing here loads torch."""
    for name, settings in (trainer.get(KEY) or {}).items():
        try:
            _check(name, settings)
        except Objection as misfit:
            yield misfit


def _check(name: str, settings: Any) -> None:
    """Objection: the name stands for something else, or the settings are wrong, or name what is not there."""
    at = f"trainer.{KEY}.{name}"
    if not isinstance(settings, Mapping):
        raise Objection(at, settings, "a score has a mapping of its settings", f"write {at}={{}}")
    score.each({name: settings})
    if name in _COLUMNS or _METRICS.fullmatch(name):
        rule = "the name stands for a metric or a column of every evaluation"
        raise Objection(at, dict(settings), rule, "register the score under another name")
    if name == "harmlessness":
        folders.check(f"{at}.model", str(settings["model"]), str(settings["label"]))
    elif name == "bertscore_f1":
        folder, layer = Path(str(settings["model"])).expanduser(), settings.get("layer")
        if (lacks := folders.missing(folder, folders.WEIGHTS, folders.TOKENIZER)) is not None:
            raise Objection(f"{at}.model", settings["model"], lacks, "name the folder of an encoder")
        if layer is not None:
            try:
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                layers = int(config.get("num_hidden_layers") or config.get("n_layers") or config["n_layer"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                rule = "its config.json does not say the number of layers"
                raise Objection(f"{at}.model", settings["model"], rule, "name the folder of an encoder") from error
            if not isinstance(layer, int) or not 1 <= layer <= layers:
                rule = f"the model has the layers 1 to {layers}"
                raise Objection(f"{at}.layer", layer, rule, "name one of these, or null")


# ---------------------------------------------------------------- the scores


@score("rouge_l")
def rouge_l(answers: Sequence[Answer]) -> list[float]:
    """ROUGE-L of each response for its answer, from 0 to 1, as the reward of this name."""
    return [rewards.rouge_l("", answer.response, answer.ground_truth) for answer in answers]


@score("bleu")
def bleu(answers: Sequence[Answer]) -> list[float]:
    """BLEU of each response for its answer, from 0 to 1, as the reward of this name."""
    return [rewards.bleu("", answer.response, answer.ground_truth) for answer in answers]


@score("bertscore_f1")
def bertscore_f1(answers: Sequence[Answer], model: str, layer: int | None = None) -> list[float]:
    """BERTScore of each response for its answer, F1, without weights by frequency and not rescaled (bertscore.py).

    model: the folder of an encoder; layer: whose hidden states are compared, from 1; by default the last.
    """
    from trainer_ext.scoring.scores import bertscore

    responses, references = [answer.response for answer in answers], [answer.ground_truth for answer in answers]
    return bertscore.f1(Path(model).expanduser(), layer, responses, references)


@score("harmlessness")
def harmlessness(answers: Sequence[Answer], model: str, label: str) -> list[float]:
    """The probability that a classifier in the folder `model` gives to its label for a harmless text."""
    return reward_models.label_probabilities(Path(model).expanduser(), label, [answer.response for answer in answers])

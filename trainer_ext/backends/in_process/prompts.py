"""A task's prompts in the order of a run, and generators of what a whole step or epoch draws."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainer_ext.fits import chat
from trainer_ext.methods.continuing import judged
from trainer_ext.sampling import draws
from trainer_ext.scoring import tasks
from trainer_ext.scoring.rewards import Messages, Score, Scorer
from trainer_ext.scoring.scores.evaluation import JUDGED, Answer


class Prompt(NamedTuple):
    """A prompt's token ids, what its answer is checked against, the text of its messages but for task.system_prompt,
    verl's `extra_info`, and the messages."""

    tokens: list[int]
    ground_truth: str
    text: str
    extra_info: Mapping[str, Any]
    messages: Messages


class Prompts:
    """A task's training prompts as tokens; the order of an epoch depends on the seed and the epoch alone.

    Prompts of the other splits are read when an evaluation asks for them.
    """

    def __init__(self, config: Mapping[str, Any], cache: Path, tokenizer: Any, seed: int):
        """config: a run's; cache: the folder in which its task is prepared if it is not there.

        ValueError: no training prompt is short enough.
        """
        self._folder = tasks.prepare(config["task"], config["trainer"]["split"], cache)
        self._tokenizer, self._max_length = tokenizer, int(config["verl"].data.max_prompt_length)
        self._given = {"role": "system", "content": config["task"].get("system_prompt")}
        self._encoded: dict[str, list[int]] = {}
        self._rows = self._read(tasks.TRAIN)
        self._seed = seed
        self._orders: dict[int, list[int]] = {}
        self.drawn: dict[str, list[Any]] = {}  # what `of_step` gave last: rows, and their tokens

    def of_run(self, trainer: Mapping[str, Any]) -> list[tuple[str, Prompt]]:
        """`of_evaluations` for all evaluations of a run; trainer: the section. Empty without evaluations."""
        if not trainer["eval_every"]:
            return []
        return self.of_evaluations(int(trainer["eval_prompts"]), judged(trainer, int(trainer["steps"])))

    def _read(self, split: str) -> list[Prompt]:
        """The prompts of a split that are short enough, like verl's filter_overlong_prompts. ValueError: none is."""
        listed, rows = tasks.read(self._folder, split), []
        for row in listed:
            messages, truth = row["prompt"], row["reward_model"]["ground_truth"]
            whole = "\0".join(message[part] for message in messages for part in ("role", "content"))
            if whole not in self._encoded:
                self._encoded[whole] = tokens_of(self._tokenizer, messages)
            if len(self._encoded[whole]) <= self._max_length:
                text = "\n".join(message["content"] for message in messages if message != self._given)
                rows.append(Prompt(self._encoded[whole], truth, text, row["extra_info"], messages))
        if not listed and split != tasks.TRAIN:
            raise tasks.empty(split, {})
        if not rows:
            place = self._folder / f"{split}.parquet"
            rule = f"no prompt has at most data.max_prompt_length={self._max_length} tokens; increase it"
            raise ValueError(f"{place}: {rule}")
        return rows

    def of_step(self, step: int, size: int) -> list[Prompt]:
        """The `size` prompts of a step, counted from 1. No prompt is repeated before all have been used."""
        places = []
        for index in range((step - 1) * size, step * size):
            epoch, position = divmod(index, len(self._rows))
            if epoch not in self._orders:
                generator = seeded(self._seed, "order", epoch)
                self._orders = {epoch: torch.randperm(len(self._rows), generator=generator).tolist()}
            places.append(self._orders[epoch][position])
        rows = [self._rows[place] for place in places]
        self.drawn = {"data": places, "prompts": [row.tokens for row in rows]}
        return rows

    def of_split(self, split: str, size: int) -> list[Prompt]:
        """At most `size` different prompts of a split, the same in every run of the task.

        ValueError: the split has no prompt, or none that is short enough.
        """
        rows = {row.text: row for row in (self._rows if split == tasks.TRAIN else self._read(split))}
        return sorted(rows.values(), key=lambda row: tasks.order(row.messages))[:size]

    def of_evaluations(self, size: int, for_judges: int = 0) -> list[tuple[str, Prompt]]:
        """At most `size` prompts of each split, with their splits, for an evaluation, and so many test prompts for
        judges. ValueError as in `of_split`."""
        splits = [(split, split, size) for split in (tasks.TEST, tasks.VALIDATION, tasks.TRAIN)]
        splits += [(JUDGED, tasks.TEST, for_judges)] if for_judges else []
        return [(name, row) for name, split, count in splits for row in self.of_split(split, count)]


def answers_to(asked: Sequence[tuple[str, Prompt]], scored: Iterable[tuple[str, Score]], each: int) -> list[Answer]:
    """The answers to the prompts of an evaluation.

    asked: prompts with their splits; found: `each` responses to each of them in turn, the greedy one first, with their
    scores.
    """
    answers = []
    for number, (response, score) in enumerate(scored):
        (split, prompt), index = asked[number // each], number % each
        sample = index - 1 if index else None
        answers.append(Answer(prompt.text, response, score.value, prompt.ground_truth, split, sample, score.metrics))
    return answers


def scores_of(scorer: Scorer, rows: Sequence[Prompt], responses: Sequence[str]) -> list[Score]:
    """The scores of responses, equally many to each prompt in turn. RewardFailed: a reward cannot be given."""
    each = len(responses) // len(rows)
    asked = [row for row in rows for _ in range(each)]
    if scorer.together:
        return scorer.many([(row.messages, response) for row, response in zip(asked, responses, strict=True)])

    def one(row: Prompt, response: str) -> Score:
        return scorer(response, row.text, row.ground_truth, row.extra_info)

    if scorer.parallel == 1:
        return [one(row, response) for row, response in zip(asked, responses, strict=True)]
    with ThreadPoolExecutor(scorer.parallel) as threads:
        return list(threads.map(one, asked, responses))


def pairs_of_task(
    task: str, rows: Sequence[Prompt], tokenizer: Any, width: int, seed: int, step: int
) -> list[list[int]]:
    """The tokens of the task's own pairs for a step's prompts, at most `width` each: chosen and rejected in turn."""
    preference = tasks.get(task).preference
    generators = [random.Random(key) for key in draws.keys(seed, "pairs", step, range(len(rows)))]
    pairs = [preference(row.ground_truth, own, row.extra_info) for row, own in zip(rows, generators, strict=True)]
    return [[*tokenizer.encode(text), tokenizer.eos_token_id][:width] for pair in pairs for text in pair]


def tokens_of(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The tokens of a prompt: by the tokenizer's chat template; without one (a base model), of the plain text."""
    if tokenizer.chat_template is None:
        # with the token that begins a text, where the model has one
        return list(tokenizer.encode(chat.plain(messages)))
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def seeded(seed: int, purpose: str, number: int) -> torch.Generator:
    """A generator that depends on its arguments alone, so that a resumed run draws the same numbers."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

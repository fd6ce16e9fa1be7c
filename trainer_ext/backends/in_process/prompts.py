"""A task's prompts in the order of a run, and generators of what a whole step or epoch draws."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch


class Prompt(NamedTuple):
    """A prompt's token ids, what its answer is checked against, and the text of its messages."""

    tokens: list[int]
    ground_truth: str
    text: str


class Prompts:
    """A task's prompts as tokens; the order of an epoch depends on the seed and the epoch alone."""

    def __init__(self, path: Path, tokenizer: Any, max_length: int, seed: int):
        table = pq.read_table(path, columns=["prompt", "reward_model"]).to_pylist()
        encoded: dict[str, list[int]] = {}
        self._rows: list[Prompt] = []
        for row in table:
            text = "\n".join(message["content"] for message in row["prompt"])
            if text not in encoded:
                encoded[text] = tokens_of(tokenizer, row["prompt"])
            if len(encoded[text]) <= max_length:  # like verl's filter_overlong_prompts
                self._rows.append(Prompt(encoded[text], row["reward_model"]["ground_truth"], text))
        if not self._rows:
            raise ValueError(f"{path}: no prompt has at most data.max_prompt_length={max_length} tokens; increase it")
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def of_step(self, step: int, size: int) -> list[Prompt]:
        """The `size` prompts of a step, counted from 1. No prompt is repeated before all have been used."""
        return [self._at(index) for index in range((step - 1) * size, step * size)]

    def first(self, size: int) -> list[Prompt]:
        """The task's first prompts, at most `size`; they do not depend on the seed."""
        return self._rows[:size]

    def _at(self, index: int) -> Prompt:
        epoch, position = divmod(index, len(self._rows))
        if epoch not in self._orders:
            generator = seeded(self._seed, "order", epoch)
            self._orders = {epoch: torch.randperm(len(self._rows), generator=generator).tolist()}
        return self._rows[self._orders[epoch][position]]


def tokens_of(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The tokens of a prompt: by the tokenizer's chat template; without one (a base model), of the plain text."""
    if tokenizer.chat_template is None:
        text = "\n".join(message["content"] for message in messages) + "\n"
        return list(tokenizer.encode(text))  # with the token that begins a text, where the model has one
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def seeded(seed: int, purpose: str, number: int) -> torch.Generator:
    """A generator that depends on its arguments alone, so that a resumed run draws the same numbers."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

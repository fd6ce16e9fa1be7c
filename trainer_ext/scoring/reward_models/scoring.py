"""Reads texts with a classifier of a folder: several at once, in float32, on the device if there is one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as _log

from trainer_ext.scoring.reward_models.folders import TEMPLATE
from trainer_ext.scoring.rewards import Messages

BATCH = 32  # texts at a time


class Model:
    """The classifier in a folder with its tokenizer."""

    def __init__(self, folder: Path):
        self._encoder = Encoder(AutoTokenizer.from_pretrained(folder))
        with torch.random.fork_rng(devices=[]):  # loading may draw, and a run's own numbers must not depend on it
            module, missing = load(folder, self._encoder)
        if missing:
            raise ValueError(f"{folder}: its weights lack {', '.join(missing[:5])}, so that its scores would be random")
        self._module = module.to(device()).eval()

    def scores(self, asked: Sequence[tuple[Messages, str]]) -> list[float]:
        """The output of a model with one label for each response to its messages."""
        texts = [self._encoder.conversation(messages, response) for messages, response in asked]
        return [float(score) for score in self._logits(texts)[:, 0]]

    def probabilities(self, label: str, texts: Sequence[str]) -> list[float]:
        config = self._module.config
        logits = self._logits([self._encoder.text(text) for text in texts])
        apart = logits.shape[1] == 1 or config.problem_type == "multi_label_classification"
        column = {str(name): number for number, name in config.id2label.items()}[label]
        return [float(score) for score in (logits.sigmoid() if apart else logits.softmax(dim=1))[:, column]]

    def _logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """(texts, labels), in double precision. Texts of about the same length are read together."""
        order = sorted(range(len(texts)), key=lambda i: (-len(texts[i]), i))
        outputs = torch.empty(len(texts), self._module.config.num_labels, dtype=torch.double)
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            with torch.inference_mode():
                outputs[rows] = logits(self._module, self._encoder, [texts[i] for i in rows]).double().cpu()
        return outputs


class Encoder:
    """Conversations and texts as tokens: at most `longest`, the first of them cut where they are more."""

    def __init__(self, tokenizer: Any, longest: int | None = None):
        self.tokenizer = tokenizer
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        if self.pad is None:
            rule = "the tokenizer has no token for padding, and none that ends a text"
            raise ValueError(f"{rule}. Fix: set pad_token in its tokenizer_config.json")
        self.longest = longest or int(tokenizer.model_max_length)
        self.cut = 0  # how many conversations were longer

    def conversation(self, messages: Messages, response: str) -> list[int]:
        """Messages and a response, by the tokenizer's chat template or folders.TEMPLATE.

        A token that begins every text stays where what follows it is cut.
        """
        tokenizer = self.tokenizer
        whole = [*map(dict, messages), {"role": "assistant", "content": response}]
        text = tokenizer.apply_chat_template(
            whole, chat_template=tokenizer.chat_template or TEMPLATE, tokenize=False, add_generation_prompt=False
        )
        ids = list(tokenizer.encode(text, add_special_tokens=False))
        if len(ids) <= self.longest:
            return ids
        self.cut += 1
        kept = int(ids[0] in (tokenizer.cls_token_id, tokenizer.bos_token_id))
        return ids[:kept] + ids[len(ids) - self.longest + kept :]

    def text(self, text: str) -> list[int]:
        """A text alone, as the tokenizer begins and ends it."""
        return list(self.tokenizer.encode(text, truncation=True, max_length=self.longest))


def load(folder: Path | str, encoder: Encoder, **changes: Any) -> tuple[Any, list[str]]:
    """The classifier of a folder in float32, and the names of its weights that the folder lacks, which are random.

    encoder.longest becomes what it can read, if that is less.
    """
    before = _log.get_verbosity()
    _log.set_verbosity(logging.ERROR)  # a new head is meant
    try:
        module, info = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **changes
        )
    finally:
        _log.set_verbosity(before)
    module.config.pad_token_id = encoder.pad  # by which a causal model finds the last token
    encoder.longest = min(encoder.longest, positions(module.config))
    return module, sorted(info["missing_keys"])


def positions(config: Any) -> int:
    """How many tokens a model reads; RoBERTa's family counts positions from after the one of padding."""
    if (most := getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)) is None:
        return 2**31
    return int(most) - (int(config.pad_token_id) + 1 if "roberta" in str(config.model_type) else 0)


def logits(module: Any, encoder: Encoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """(texts, labels) of texts as tokens, padded at their ends."""
    width = max(1, *map(len, texts))
    ids = torch.full((len(texts), width), encoder.pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text, dtype=torch.long)
        mask[row, : len(text)] = 1
    where = next(module.parameters()).device
    outputs: Tensor = module(input_ids=ids.to(where), attention_mask=mask.to(where)).logits
    return outputs


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"

"""BERTScore: how similar two texts are, token by token, to an encoder in a folder (Zhang et al. 2020).

The package bert-score fails with empty texts under transformers 5; the tests hold this module against it elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from trainer_ext.scoring.reward_models.scoring import device, positions

_BATCH = 32  # texts

#: Unit vectors (tokens, size) of a text, and (tokens,) False for tokens that the tokenizer puts around it.
_Encoded = tuple[Tensor, Tensor]


def f1(folder: Path, layer: int | None, texts: Sequence[str], references: Sequence[str]) -> list[float]:
    """F1 of each text for its reference, without weights by frequency and not rescaled; 0 if one of them is empty.

    layer: whose hidden states are compared, from 1; None: the last. Texts are cut at the model's longest input.
    """
    states = dict(zip(each := sorted({*texts, *references}), _encoded(folder, layer, each), strict=True))
    return [_f1(states[text], states[reference]) for text, reference in zip(texts, references, strict=True)]


def _f1(text: _Encoded, reference: _Encoded) -> float:
    (states, own), (others, own_others) = text, reference
    if not own.any() or not own_others.any():
        return 0.0
    alike = states @ others.T  # a token may be most like one that the tokenizer has put there
    precision = float(alike.max(dim=1).values[own].mean())
    recall = float(alike.max(dim=0).values[own_others].mean())
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


@torch.no_grad()
def _encoded(folder: Path, layer: int | None, texts: Sequence[str]) -> list[_Encoded]:
    tokenizer, model = _load(folder)
    longest = min(int(tokenizer.model_max_length), positions(model.config))
    encoded = []
    for start in range(0, len(texts), _BATCH):
        given = tokenizer(
            list(texts[start : start + _BATCH]),
            padding=True,
            truncation=True,
            max_length=longest,
            return_special_tokens_mask=True,
            return_tensors="pt",
        )
        own = given.pop("special_tokens_mask") == 0
        states = model(**given.to(model.device), output_hidden_states=True).hidden_states
        hidden = torch.nn.functional.normalize(states[-1 if layer is None else layer], dim=-1).cpu()
        given = given["attention_mask"].bool().cpu()
        encoded += [(hidden[row, valid], own[row, valid]) for row, valid in enumerate(given)]
    return encoded


@lru_cache(maxsize=1)
def _load(folder: Path) -> tuple[Any, Any]:
    model = AutoModel.from_pretrained(folder).to(device()).eval()
    return AutoTokenizer.from_pretrained(folder), model

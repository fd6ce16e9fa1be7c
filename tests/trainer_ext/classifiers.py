"""Small random classifiers with a tokenizer of words, in folders, and preferences whose utility is known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForSequenceClassification, DebertaV2Config, DistilBertConfig
from transformers import PreTrainedTokenizerFast as Fast

#: What a word adds to the utility of a response.
UTILITY = {"kind": 2.0, "clear": 1.5, "true": 1.0, "cat": 0.0, "tree": 0.0, "dull": -1.0, "vague": -1.5, "rude": -2.0}
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_PUNCTUATION = (":", "user", "assistant", "system", *map(str, range(10)))


def write_classifier(
    folder: Path, family: str = "distilbert", labels: int = 1, words: Sequence[str] = (), spread: float = 0.2
) -> Path:
    """A classifier of the family (distilbert, deberta) that knows UTILITY's words and these, as transformers saves it.

    spread: of its random weights; with the usual 0.02 all scores would be about the same.
    """
    known = dict.fromkeys([*_SPECIAL, *_PUNCTUATION, *UTILITY, *words])
    vocabulary = {token: index for index, token in enumerate(known)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True)]
    )
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = Fast(tokenizer_object=core, **names)
    common = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "num_labels": labels, "pad_token_id": 0}
    common["initializer_range"] = spread
    config: Any = DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64, **common)
    if family == "deberta":  # version 3: relative positions alone, which share their keys with the content
        config = DebertaV2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, relative_attention=True,
            position_buckets=16, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
            position_biased_input=False, type_vocab_size=0, **common,
        )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def utility(text: str) -> float:
    """What a response is worth to those who choose."""
    return sum(UTILITY[word] for word in text.split())


def preferences(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Lines with a prompt and two responses, of which one is preferred with the probability of Bradley and Terry."""
    generator = random.Random(seed)
    lines = []
    for number in range(count):
        first, second = (" ".join(generator.choices(list(UTILITY), k=generator.randint(1, 4))) for _ in range(2))
        chance = 1 / (1 + math.exp(utility(second) - utility(first)))
        chosen, rejected = (first, second) if generator.random() < chance else (second, first)
        lines.append({"prompt": f"{number}", "chosen": chosen, "rejected": rejected})
    return lines


def write_preferences(path: Path, count: int) -> Path:
    """A file of them for task=file with task.answer=null."""
    path.write_text("".join(json.dumps(line) + "\n" for line in preferences(count)))
    return path

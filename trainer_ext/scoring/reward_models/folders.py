"""Folders of classifiers: which files they are, whether a plan can use them, and what and how a reward model learns.

Nothing here loads torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from trainer_ext.objection import Objection
from trainer_ext.scoring.rewards import Messages

#: The value of task.reward that stands for the model in the folder task.reward_model.
NAME, KEY = "reward_model", "task.reward_model"
#: How a conversation becomes text where the folder has no chat template: each message after its role.
TEMPLATE = (
    "{{ cls_token or bos_token or '' }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}{{ sep_token or eos_token or '' }}"
)
CARD = "card.json"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_TEXTS = ("*.json", "*.txt", "*.model", "*.jinja")
_FIX = "name a folder that `python -m trainer_ext.scoring.rewards train` or transformers' save_pretrained wrote"
_HEAD = "ForSequenceClassification"
_BYTES = 4  # size of a float32


def files(task: Mapping[str, Any]) -> list[Path]:
    """The files that decide the rewards of a section `task`: of its reward model, if it has one that is a folder."""
    if task.get("reward") != NAME or task.get(NAME) is None:
        return []
    return files_in(Path(task[NAME]).expanduser())


def files_in(folder: Path) -> list[Path]:
    """The weights, configuration and tokenizer in a folder; nothing that only tells about them."""
    paths = {path for names in (*WEIGHTS, *_TEXTS) for path in folder.glob(names)}
    return sorted(path for path in paths if path.is_file() and path.name != CARD)


def stamp(folder: Path) -> tuple[Any, ...]:
    """What changes if a file of the model does."""
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files_in(folder))


def missing(folder: Path, *needed: Sequence[str]) -> str | None:
    """Why a model's folder is not whole, in words; needed: patterns of which one must match, beside config.json."""
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        text = adapter.read_text(encoding="utf-8", errors="replace")
        named = re.search(r'"base_model_name_or_path":\s*"(.+?)"', text)
        base = named[1] if named else "another model"
        return f"adapter_config.json says that it is an adapter of {base}: merge them with peft's merge_and_unload"
    lacking = [names for names in (("config.json",), *needed) if not any(any(folder.glob(name)) for name in names)]
    if not lacking:
        return None
    return f"the folder has no {', and no '.join(' or '.join(names) for names in lacking)}"


def check(key: str, value: str, label: str | None = None) -> None:
    """Whether the folder `value` of a configuration's key holds a classifier with one label, or one with `label`.

    It loads no weights. Objection: it does not.
    """
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise Objection(key, value, "there is no such folder", _FIX)
    if (lacks := missing(folder, WEIGHTS, TOKENIZER)) is not None:
        raise Objection(key, value, lacks, _FIX)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architectures = [str(name) for name in config.get("architectures") or []]
        shapes = _shapes(files_in(folder))
    except (OSError, ValueError, AttributeError, TypeError, SafetensorError) as error:
        rule = f"its config.json or its weights cannot be read: {error}"
        raise Objection(key, value, rule, _FIX) from error
    if not any(name.endswith(_HEAD) for name in architectures):
        rule = f"it must be a model for sequence classification; it is {', '.join(architectures) or 'of no known kind'}"
        raise Objection(key, value, rule, "train it with `python -m trainer_ext.scoring.rewards train --model FOLDER`")
    named = config.get("id2label")
    labels = [f"LABEL_{number}" for number in range(int(config.get("num_labels") or 2))]  # transformers' own names
    if isinstance(named, Mapping) and named:
        labels = [str(named[key]) for key in sorted(named, key=int)]
    if label is None and len(labels) != 1:
        rule = f"a reward model has one label; this one has {len(labels)}: {', '.join(labels)}"
        raise Objection(key, value, rule, "train it with `python -m trainer_ext.scoring.rewards train --model FOLDER`")
    if label is not None and label not in labels:
        raise Objection(key, value, f"it has no label {label}; its labels are {', '.join(labels)}", "name one of these")
    heads = [shape for tensor, shape in shapes.items() if "embed" not in tensor and len(shape) == 2]
    if shapes and not any(shape[0] == len(labels) for shape in heads):
        rule = "its weights lack a classifier's head, so that its scores would be random"
        raise Objection(key, value, rule, _FIX)
    tokens, vocabulary = _tokens(folder), config.get("vocab_size")
    if tokens is not None and isinstance(vocabulary, int) and tokens > vocabulary:
        rule = f"its tokenizer has {tokens} tokens, and its embedding only {vocabulary} (vocab_size in config.json)"
        raise Objection(key, value, rule, "put the tokenizer of this model there")


def _tokens(folder: Path) -> int | None:
    """The number of tokens up to the largest id; None: the files do not say it."""
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        known = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True)
        return max(known.values(), default=-1) + 1
    if (folder / "vocab.txt").is_file():
        return sum(1 for _ in (folder / "vocab.txt").open(encoding="utf-8"))
    return None


def parameters(task: Mapping[str, Any]) -> int:
    """The number of parameters of a section's reward model; 0 without one. By headers; of pickled files, by size."""
    paths = [path for path in files(task) if any(path.match(names) for names in WEIGHTS)]
    if shapes := _shapes(paths):
        return sum(map(math.prod, shapes.values()))
    return sum(path.stat().st_size for path in paths) // _BYTES


def _shapes(paths: Sequence[Path]) -> dict[str, Sequence[int]]:
    """The shape of each tensor in safetensors files, by its name. SafetensorError: one of them is not whole."""
    shapes: dict[str, Sequence[int]] = {}
    for path in paths:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (no mapping)
    return shapes


@dataclass(frozen=True)
class Settings:
    """How a reward model is trained. Their defaults stand here alone.

    epochs: over the training pairs; batch_size: pairs of an update; micro_batch_size: pairs read at once; max_length:
    tokens of a prompt with a response, of which the first are cut; warmup: the share of the updates in which the
    learning rate rises, before it falls to 0; checks: how often an epoch asks for the loss of the validation pairs;
    patience: the training ends after so many checks without a smaller one; seed: of the new head, the order and the
    dropout.
    """

    epochs: int = 1
    lr: float = 1e-5
    batch_size: int = 32
    micro_batch_size: int = 8
    max_length: int = 512
    warmup: float = 0.1
    weight_decay: float = 0.01
    checks: int = 4
    patience: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """ValueError: a value cannot work."""
        least = {"epochs": 1, "batch_size": 1, "micro_batch_size": 1, "max_length": 8, "checks": 1, "patience": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name}={getattr(self, name)}: it must be at least {bound}")
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr}: it must be above 0")
        if not 0 <= self.warmup <= 1 or self.weight_decay < 0:
            rule = "warmup is a share from 0 to 1, and weight_decay is not negative"
            raise ValueError(f"warmup={self.warmup}, weight_decay={self.weight_decay}: {rule}")


def learned(section: Mapping[str, Any]) -> Settings:
    """How the reward model of `task.learned_reward` is trained. ValueError: a setting is unknown or cannot work."""
    given = {key: value for key, value in section.items() if key not in ("model", "share")}
    known = [field.name for field in fields(Settings)]
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"it has no {', '.join(unknown)}; beside model and share it has {', '.join(known)}")
    return Settings(**given)


class Pair(NamedTuple):
    """Two responses to the messages of a prompt."""

    messages: Messages
    chosen: str
    rejected: str

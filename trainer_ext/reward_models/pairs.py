"""What a reward model learns from, and how it is trained. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from trainer_ext.rewards import Messages


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
                raise ValueError(f"{name}={getattr(self, name)}: it must be at least {bound}. Fix: raise it")
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr}: it must be above 0. Fix: raise it")
        if not 0 <= self.warmup <= 1 or self.weight_decay < 0:
            rule = "warmup is a share from 0 to 1, and weight_decay is not negative"
            raise ValueError(f"warmup={self.warmup}, weight_decay={self.weight_decay}: {rule}. Fix: correct it")


def learned(section: Mapping[str, Any]) -> Settings:
    """How the reward model of `task.learned_reward` is trained. ValueError: a setting is unknown or cannot work."""
    given = {key: value for key, value in section.items() if key not in ("model", "share")}
    known = [one.name for one in fields(Settings)]
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"it has no {', '.join(unknown)}; beside model and share it has {', '.join(known)}")
    return Settings(**given)


class Pair(NamedTuple):
    """Two responses to the messages of a prompt."""

    messages: Messages
    chosen: str
    rejected: str

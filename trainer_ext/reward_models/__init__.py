"""Reward models: classifiers with one label, in folders, that give a response to messages its reward
(docs/reward-models.md).

    folders       which files they are, and whether a plan can use them
    pairs         what a reward model learns from, and how it is trained
    scoring       reads texts with a model
    training      makes a reward model from pairs of responses
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_ext import rewards
from trainer_ext.reward_models.folders import NAME, check, files, folder_of, stamp
from trainer_ext.rewards import Messages

if TYPE_CHECKING:
    from trainer_ext.reward_models.scoring import Model

__all__ = ["NAME", "RewardModel", "check", "files", "label_probabilities", "of"]

rewards.reward.declare(NAME, NAME)

_choosing = threading.Lock()  # a cache alone lets threads that ask at the same time make a model each


class RewardModel(rewards.Together):
    """The model of a folder as a reward. It is loaded when it is first asked, and asked by one thread at a time.

    What other threads ask in the meantime is scored together afterwards. A score depends on what is scored with it by
    rounding alone.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._model: Model | None = None
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._waiting: list[_Waiting] = []

    def scores(self, asked: Sequence[tuple[Messages, str]]) -> list[float]:
        """The model's output for each response to its messages. Whatever the model raises is passed on."""
        own = _Waiting(asked)
        with self._lock:
            self._waiting.append(own)
        with self._turn:
            if own.scores is None and own.error is None:  # nobody has asked for it together with others
                with self._lock:
                    group, self._waiting = self._waiting, []
                self._answer(group)
        if own.scores is None:
            assert own.error is not None
            raise own.error
        return own.scores

    def _answer(self, group: Sequence[_Waiting]) -> None:
        """Ask for all of a group at once."""
        try:
            scores = iter(self._ask([one for waiting in group for one in waiting.asked]))
            for waiting in group:
                waiting.scores = [next(scores) for _ in waiting.asked]
        except BaseException as error:  # the other threads must not wait for ever
            for waiting in group:
                waiting.error = error

    def _ask(self, asked: Sequence[tuple[Messages, str]]) -> list[float]:
        if self._model is None:
            self._model = _load(self._folder)
        return self._model.scores(asked)


class _Waiting:
    """What a thread asks, and then the scores or what was raised."""

    def __init__(self, asked: Sequence[tuple[Messages, str]]):
        self.asked = asked
        self.scores: list[float] | None = None
        self.error: BaseException | None = None


def _load(folder: Path) -> Model:
    from trainer_ext.reward_models.scoring import Model

    return Model(folder)


def of(task: Mapping[str, Any]) -> RewardModel:
    """The reward model of a section `task`, the same object as long as the folder does not change.

    Misfit: there is none, or it cannot be used.
    """
    folder = folder_of(task)
    with _choosing:
        return _of(folder, stamp(folder))


@lru_cache(maxsize=4)
def _of(folder: Path, stamp: Any) -> RewardModel:
    return RewardModel(folder)


def label_probabilities(folder: str | os.PathLike[str], label: str, texts: Sequence[str]) -> list[float]:
    """The probability of a label for each text, by the classifier in a folder.

    Of one that gives each text one label, by softmax; of one with one label, or with several at a time
    (`problem_type: multi_label_classification`), by the logistic function. Misfit: it cannot be used, or has no such
    label; `check("KEY", FOLDER, LABEL)` finds the same before, without torch.
    """
    path = Path(folder).expanduser()
    check("folder", str(folder), label)
    return _classifier(path, stamp(path)).probabilities(label, texts)


@lru_cache(maxsize=2)
def _classifier(folder: Path, stamp: Any) -> Model:
    return _load(folder)

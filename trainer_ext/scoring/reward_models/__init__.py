"""Reward models: classifiers with one label, in folders, that give a response to messages its reward
(docs/reward-models.md).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_ext.objection import Objection
from trainer_ext.scoring import rewards
from trainer_ext.scoring.reward_models.folders import KEY, NAME, check, stamp

if TYPE_CHECKING:
    from trainer_ext.scoring.reward_models.scoring import Model

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
        self._waiting: list[tuple[Sequence[tuple[rewards.Messages, str]], Future[list[float]]]] = []

    def scores(self, asked: Sequence[tuple[rewards.Messages, str]]) -> list[float]:
        """The model's output for each response to its messages. Whatever the model raises is passed on."""
        answer: Future[list[float]] = Future()
        with self._lock:
            self._waiting.append((asked, answer))
        with self._turn:
            if not answer.done():  # nobody has asked for it together with others
                with self._lock:
                    group, self._waiting = self._waiting, []
                try:
                    if self._model is None:
                        self._model = _load(self._folder)
                    scores = self._model.scores([text for several, _ in group for text in several])
                except BaseException as error:  # the other threads must not wait for ever
                    for _, waiting in group:
                        waiting.set_exception(error)
                else:
                    for several, waiting in group:
                        waiting.set_result(scores[: len(several)])
                        scores = scores[len(several) :]
        return answer.result()


def _load(folder: Path) -> Model:
    from trainer_ext.scoring.reward_models.scoring import Model

    return Model(folder)


def reward_model(task: Mapping[str, Any]) -> RewardModel:
    """The reward model of a section `task`, the same object as long as the folder does not change.

    Objection: there is none, or it cannot be used.
    """
    if task.get(NAME) is None:
        fix = "set it to a folder; `python -m trainer_ext.scoring.rewards train` makes one"
        raise Objection(KEY, None, f"task.reward={NAME} needs the folder of a reward model", fix)
    with _choosing:
        return _cached(str(task[NAME]), stamp(Path(task[NAME]).expanduser()))


@lru_cache(maxsize=4)
def _cached(value: str, stamp: Any) -> RewardModel:
    check(KEY, value)
    return RewardModel(Path(value).expanduser())


def label_probabilities(folder: Path, label: str, texts: Sequence[str]) -> list[float]:
    """The probability of a label for each text, by the classifier in a folder that `folders.check` accepts.

    Of one that gives each text one label, by softmax; of one with one label, or with several at a time
    (`problem_type: multi_label_classification`), by the logistic function.
    """
    return _classifier(folder, stamp(folder)).probabilities(label, texts)


@lru_cache(maxsize=2)
def _classifier(folder: Path, stamp: Any) -> Model:
    return _load(folder)

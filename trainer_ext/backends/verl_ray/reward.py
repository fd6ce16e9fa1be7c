"""The reward of a task as a reward function of verl's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainer_ext.backends.in_process.prompts import Prompt
from trainer_ext.scoring import tasks
from trainer_ext.scoring.rewards import SCORE, Score, score

_TEXT, _MESSAGES = "rlsweep_prompt", "rlsweep_messages"
_INFO, _SECONDS = "rlsweep_extra_info", "rlsweep_seconds"


def extra_info(prompt: Prompt) -> dict[str, Any]:
    """A prompt's `extra_info` for `compute_score`: verl adds keys of its own, which other backends do not have."""
    return {_TEXT: prompt.text, _MESSAGES: [*map(dict, prompt.messages)], _INFO: dict(prompt.extra_info)}


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any], task: Mapping[str, Any]
) -> dict[str, float]:
    """The score and the further numbers of one response; task: the configuration's section `task`.

    It is called in threads, for several responses at the same time: a reward model scores those that wait at once.
    """
    prompt, messages, info = (extra_info[key] for key in (_TEXT, _MESSAGES, _INFO))
    result = tasks.scorer(task)(solution_str, prompt, ground_truth, info, messages)
    return {SCORE: result.value, _SECONDS: result.seconds, **result.metrics}


def score_of(returned: Mapping[str, float]) -> Score:
    """What `compute_score` returned, as the score that it was."""
    rest = dict(returned)
    seconds = rest.pop(_SECONDS)
    return replace(score(rest), seconds=seconds)

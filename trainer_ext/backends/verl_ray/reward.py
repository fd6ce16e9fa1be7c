"""The reward of a task as the function that verl's reward workers call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_ext import tasks
from trainer_ext.rewards import SCORE

_OF_VERL = ("num_turns", "rollout_reward_scores")  # what verl adds to extra_info; other backends do not


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any], task: Mapping[str, Any]
) -> dict[str, float]:
    """The score and the further numbers of one response; task: the configuration's section `task`."""
    info = {key: value for key, value in extra_info.items() if key not in _OF_VERL}
    found = tasks.scorer(task)(solution_str, f"number {info['index']}", ground_truth, info)
    return {SCORE: found.value, **found.metrics}

"""Runs that collapsed: they ended as planned, but their policy no longer earns or explores anything.

The rule, which docs/report.md states too, looks at the end of a run: the last tenth of the recorded values of a metric,
and at least LEAST of them. The first recorded value is what the end is compared with, so that a policy that became
deterministic because it solved its task has not collapsed. A metric that is not recorded is not judged.
"""

from __future__ import annotations

from enum import StrEnum, auto
from math import ceil

from analysis.data.normalized import as_recorded
from analysis.data.run_values import Array
from analysis.data.sweep import Run
from analysis.spec.settings import REWARD
from analysis.stats.curve_summaries import FINAL, NotEvaluable, measured

LEAST = 3  # values at the end that must agree
ENTROPY_SHARE = 0.01  # of the first value, below which the entropy is gone
_REWARDS = (REWARD, "eval/reward_mean")
_SPREAD, _ENTROPY = "analysis/reward_sum_std", "analysis/entropy_full_mean"


class Collapse(StrEnum):
    """What is gone at the end of a run."""

    NEVER_REWARDED = auto()  # the mean reward is 0 at every step
    REWARD_GONE = auto()  # the mean reward is 0 at the end, and was above 0 or alternated before
    REWARDS_ALIKE = auto()  # all responses have the same reward at the end, which is below the first mean
    ENTROPY_GONE = auto()  # the entropy is below ENTROPY_SHARE of its first value, and the reward below its first one


def collapse(run: Run) -> tuple[Collapse, ...]:
    """What is gone at the end of a run; empty if nothing is, or if the run did not end as planned."""
    if not run.done:
        return ()
    curves = {metric: curve for metric in (*_REWARDS, _SPREAD, _ENTROPY) if (curve := _values(run, metric)) is not None}
    rewards = [curves[metric] for metric in _REWARDS if metric in curves]
    gone: dict[Collapse, None] = {}
    for values in rewards:
        if values[0] >= 0 and not _end(values).any():
            gone[Collapse.REWARD_GONE if values.any() else Collapse.NEVER_REWARDED] = None
    fell = REWARD in curves and _end(curves[REWARD]).mean() < curves[REWARD][0]
    if fell and not gone and _SPREAD in curves and not _end(curves[_SPREAD]).any():
        gone[Collapse.REWARDS_ALIKE] = None
    entropy = curves.get(_ENTROPY)
    if (fell or gone) and entropy is not None and _end(entropy).max() < ENTROPY_SHARE * entropy[0]:
        gone[Collapse.ENTROPY_GONE] = None
    return tuple(gone)


def _values(run: Run, metric: str) -> Array | None:
    """The recorded values of a metric; None if there are no more than an end needs."""
    recorded = as_recorded(run, metric)
    if recorded is None:
        return None
    try:
        values = measured(run.curves.steps, recorded)[1]
    except NotEvaluable:
        return None
    return values if values.size > LEAST else None


def _end(values: Array) -> Array:
    return values[-max(LEAST, ceil(FINAL * values.size)) :]

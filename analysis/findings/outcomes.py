"""What was found, as values: outcomes with the grounds on which they rest, and runs that collapsed (docs/report.md).
`analysis.tables.wording` has the words.

The first recorded value is what the end of a run is compared with, so that a policy that became deterministic because
it solved its task has not collapsed. A metric that is not recorded is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from math import ceil

from analysis.data.normalized import as_recorded
from analysis.data.sweep import Cell, Run
from analysis.numbers import Array, Interval
from analysis.spec.settings import REWARD
from analysis.stats.curve_summaries import FINAL, NotEvaluable, measured


class Outcome(StrEnum):
    """The outcome of a hypothesis, or of a comparison of two groups: HIGHER, LOWER, EQUAL or one of the last two."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    EQUIVALENT = "equivalent"
    HIGHER = "higher"
    LOWER = "lower"
    EQUAL = "equal"
    INCONCLUSIVE = "inconclusive"
    NOT_JUDGED = "not judged"
    NOT_EVALUABLE = "not evaluable"


class Bound(StrEnum):
    """The side on which a number is only a bound, because times were cut at the budget."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


class Reason(StrEnum):
    """Why an outcome is what it is. The comment on each member names the fields of its Ground."""

    # Something is missing.
    NOT_RECORDED = auto()  # groups
    NO_COMMON_SEED = auto()
    NO_COMMON_CELL = auto()  # groups, cells: those of each group, on the factors that both have
    NO_PAIR = auto()
    NO_RIVAL = auto()
    NO_VALUE = auto()  # groups, detail: why a run of the group has none
    DRAWN_APART = auto()  # groups: a metric of responses that they draw from different policies
    MAXIMUM = auto()  # a best value is described only
    # The test or the interval does not exist.
    NEEDS_TWO_SEEDS = auto()  # groups, n
    NO_SPREAD = auto()  # groups, n: of one value for each seed, or of differences of two groups
    NO_SPREAD_OF_RATIOS = auto()  # n
    NO_SPREAD_OF_DISTANCES = auto()
    NOT_POSITIVE = auto()
    BOTH_SIGNS = auto()
    NOT_REACHED = auto()
    ALL_TIMES_CUT = auto()
    # It exists, and cannot decide.
    TOO_FEW_SEEDS = auto()  # n, ties, needed
    TOO_FEW_DRAWS = auto()
    NO_LOOK = auto()  # n: seeds of the first look, which is not finished
    FUTILE = auto()  # n: seeds, needed: at most, value: the chance to be decided in its favour with so many
    WOULD_DECIDE = auto()  # needed: seeds with this mean and spread, infinite above power.MOST_SEEDS
    # What decided, or left the question open.
    INTERVAL_INSIDE = auto()  # level
    INTERVAL_OUTSIDE = auto()  # level
    INTERVAL_ACROSS = auto()  # level
    SEEDS_OUTSIDE = auto()  # seeds
    NORMAL_SEEDS = auto()  # value: the share of experiments in which the interval is wrong if not
    FEW_SEEDS = auto()  # n
    TIMES_CUT = auto()  # n: the estimate is a bound
    SMALLER_THAN_MARGIN = auto()  # value: the margin, level
    UNSEEN_COLLAPSE = auto()  # n, value: the share of runs that may collapse unseen, level: with this chance
    RIVALS_PAST = auto()  # groups
    LEADS_EVERY_RIVAL = auto()  # n
    NOT_TOLD_FROM = auto()  # groups
    NOT_PAST_AT_LEVEL = auto()  # groups, n, level
    CLOSEST_RIVAL = auto()  # groups
    LEFT_OUT = auto()  # groups
    BETTER_BY_BOTH = auto()  # groups
    AHEAD_BY_ONE = auto()  # n
    NOT_AHEAD = auto()  # groups
    BEHIND_BY_MEANS = auto()  # groups
    FRONT_BY_MEANS = auto()
    EXCESS_SPREAD = auto()  # groups, value, interval
    MEMBER = auto()  # members, outcome
    MEMBERS_AT_LEVEL = auto()  # members, outcome, n, level


@dataclass(frozen=True)
class Ground:
    """A reason with its numbers; the comments on Reason name the fields of each.

    groups, members (ids of hypotheses), seeds: those that it is about. cells: those of each group. n: how many. needed:
    how many seeds would do. level: alpha at which it was asked.
    """

    reason: Reason
    groups: tuple[str, ...] = ()
    n: int = 0
    needed: float = 0
    ties: int = 0
    seeds: tuple[int, ...] = ()
    value: float | None = None
    interval: Interval | None = None
    level: float = 0
    members: tuple[str, ...] = ()
    outcome: Outcome | None = None
    detail: str = ""
    cells: tuple[tuple[Cell, ...], ...] = ()


@dataclass(frozen=True)
class Gap:
    """A seed, or its cell of a grid, without a value, or with one that was carried forward."""

    seed: int
    cell: Cell
    why: str


def no_interval(n: int, groups: tuple[str, ...] = ()) -> Ground:
    """Why n values, or differences of two groups, have no interval."""
    return Ground(Reason.NO_SPREAD if n > 1 else Reason.NEEDS_TWO_SEEDS, groups, n)


LEAST = 3  # values at the end that must agree
ENTROPY_SHARE = 0.01  # below this share of its first value the entropy is gone
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

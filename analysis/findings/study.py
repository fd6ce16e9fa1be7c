"""The comparisons of an experiment: every group against the baseline, for each measure, with their outcomes, the
grounds on which these rest, and runs that collapsed (docs/report.md). `analysis.tables.wording` has the words.

The first recorded value is what the end of a run is compared with, so that a policy that became deterministic because
it solved its task has not collapsed. A metric that is not recorded is not judged.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from math import ceil

import numpy as np

from analysis.data import cells
from analysis.data.cells import Choice, Selected
from analysis.data.normalized import added, as_recorded, normalized
from analysis.data.run_values import CommonRange, Value, common_range, value_of
from analysis.data.sweep import Cell, Run, Sweep, sweep_of
from analysis.findings import interim
from analysis.findings.interim import ComparedSeeds, Standing, Status
from analysis.spec import declaration, registry
from analysis.spec.declaration import Declaration, Registration
from analysis.spec.hypothesis import Target
from analysis.spec.metric_catalog import describe
from analysis.spec.settings import REWARD, Settings
from analysis.stats import multiplicity, t_test
from analysis.stats.contrast import Contrast
from analysis.stats.curve_summaries import FINAL, NotEvaluable, measured, restricted_mean
from analysis.stats.numbers import Array, Interval, format_number
from analysis.stats.resolution import multiplied, seeds_needed


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
    TIMES_FIRST = auto()  # n: of which it is not known how early they are
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


#: The units of times.
AXES = {
    "steps": "steps",
    "samples": "responses",
    "seconds": "seconds",
    "device_seconds": "device-seconds",
    "flops": "FLOP",
}


_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)  # errors of a record or a plan of an older version


@dataclass(frozen=True)
class Measure:
    """What is compared: a summary of a metric.

    threshold, its origin and axis, what times are counted in, are for time_to. direction None: neither is better.
    """

    metric: str
    summary: str
    direction: str | None
    threshold: float | None = None
    origin: str | None = None
    axis: str = "steps"

    @property
    def definition(self) -> str:
        """The first line of the summary's docstring: "final value: mean over the last tenth of the steps."; or ""."""
        registered = registry.summary_of(self.summary)
        first = (registered.function.__doc__ or "").strip().partition("\n")[0] if registered else ""
        return f"{registered.title.rstrip(',')}: {first[:1].lower()}{first[1:]}" if registered and first else ""

    @property
    def title(self) -> str:
        """For a heading: final value of mean reward of a response."""
        label = describe(self.metric).label
        if self.summary == "time_to":
            goal = "unknown" if self.threshold is None else format_number(self.threshold)
            return f"{AXES[self.axis]} until {label} {'falls to' if self.falls else 'reaches'} {goal}"
        registered = registry.summary_of(self.summary)
        return f"{registered.title if registered else self.summary} of {label}"

    @property
    def falls(self) -> bool:
        """Whether a threshold is reached from above, although lower is not known to be better."""
        return self.direction == "lower" != describe(self.metric).direction

    @property
    def unit(self) -> str:
        """Unit of the compared numbers."""
        return AXES[self.axis] if self.summary == "time_to" else describe(self.metric).unit

    @property
    def better(self) -> str | None:
        """Which way is better for the compared number: earlier is better for a time."""
        return "lower" if self.summary == "time_to" else self.direction

    @property
    def sign(self) -> float:
        """-1 where lower is better, else 1: times a difference, it is positive where the group is better."""
        return -1.0 if self.better == "lower" else 1.0

    @property
    def with_unit(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Estimate:
    """A group on its own: mean over seeds with its t interval; for time_to the restricted mean with the interval of a
    bounded mean, and reached: (k, n) runs. level: of the interval, as alpha.

    recorded: False if no run of the group has the metric, which is not a gap.
    """

    group: str
    seeds: tuple[int, ...]
    planned: int
    values: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None
    reached: tuple[int, int] | None
    gaps: tuple[Gap, ...]
    recorded: bool = True
    level: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """A group against the baseline.

    contrast: its values under the test that decides, a[i] of seeds[i], and b[i] of seeds_of_b[i], the same ones if
    seeds are paired. p: of that test; adjusted: for the family. level: at which the family asks p. interval: of the
    difference at this level, so it excludes zero exactly where adjusted <= alpha; None where nothing bounds it.
    planned: what n would be without missing results. mean_difference: None without a pair, or if neither group reached
    the threshold. ground: why the outcome is INCONCLUSIVE or NOT_EVALUABLE; None where the p value alone leaves it
    open. gaps: seeds without a pair. notes: what is left out. reached: for time_to, (k, n) of the runs that a is of,
    then of those that b is of; times_first: how many of these have the earliest time that can be told. standing: None
    if the number of seeds was fixed before.
    """

    group: str
    baseline: str
    seeds: tuple[int, ...]
    seeds_of_b: tuple[int, ...]
    contrast: Contrast = field(compare=False)
    planned: int
    mean_difference: float | None
    p: float | None
    adjusted: float | None
    level: float
    interval: Interval | None
    outcome: Outcome
    ground: Ground | None
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...]
    reached: tuple[tuple[int, int], tuple[int, int]] | None = None
    times_first: tuple[int, int] = (0, 0)
    standing: Standing | None = None

    @property
    def n(self) -> int:
        """The number of pairs, or of values of the group that has fewer."""
        return self.contrast.n

    @property
    def sizes(self) -> str:
        """The number of pairs; of two samples, that of each if they differ: 4 and 5."""
        of_a, of_b = self.contrast.a.size, self.contrast.b.size
        return str(of_a) if of_a == of_b else f"{of_a} and {of_b}"

    @property
    def mirrored(self) -> Comparison:
        """The baseline against the group."""
        outcome = {Outcome.HIGHER: Outcome.LOWER, Outcome.LOWER: Outcome.HIGHER}.get(self.outcome, self.outcome)
        low, high = self.interval or (0.0, 0.0)
        contrast = replace(self.contrast, a=self.contrast.b, b=self.contrast.a)
        return replace(
            self, group=self.baseline, baseline=self.group, seeds=self.seeds_of_b, seeds_of_b=self.seeds,
            contrast=contrast, mean_difference=None if self.mean_difference is None else -self.mean_difference,
            interval=None if self.interval is None else (-high, -low), outcome=outcome,
            reached=self.reached and self.reached[::-1], times_first=self.times_first[::-1],
        )  # fmt: skip

    @property
    def times_cut(self) -> tuple[int, int]:
        """How many times of the group, and of the baseline, are not times but the budget."""
        ours, theirs = (n - k for k, n in self.reached or ((0, 0), (0, 0)))
        return ours, theirs

    @property
    def difference(self) -> float:
        """The mean difference, 0 where there is none."""
        return self.mean_difference or 0.0


@dataclass(frozen=True)
class Block:
    """All groups on one measure. values[run id]; start and stop are the common range of steps, budget its end on the
    axis. comparisons: with the baseline; others: with `analysis.compare: all_pairs`, every further two groups. family:
    how many of them are tested, and adjusted for one another. selected[group]: what counts of it."""

    measure: Measure
    start: float
    stop: float
    budget: float
    values: Mapping[str, Value]
    estimates: tuple[Estimate, ...]
    comparisons: tuple[Comparison, ...]
    family: int
    selected: Mapping[str, Selected] = field(default_factory=dict)
    others: tuple[Comparison, ...] = ()

    @property
    def every(self) -> tuple[Comparison, ...]:
        """The whole family of comparisons."""
        return (*self.comparisons, *self.others)

    @property
    def ranks(self) -> dict[str, tuple[int, int]]:
        """By group, the first and the last rank, 1 for the best, that the family does not exclude."""
        groups = [estimate.group for estimate in self.estimates if estimate.seeds]
        sides = np.zeros((len(groups), len(groups)))
        for c in self.every:
            if c.outcome in (Outcome.HIGHER, Outcome.LOWER):
                above = self.measure.sign * (1 if c.outcome is Outcome.HIGHER else -1)
                one, other = groups.index(c.group), groups.index(c.baseline)
                sides[one, other], sides[other, one] = above, -above
        return dict(zip(groups, multiplicity.ranks(sides), strict=True))

    @property
    def choices(self) -> dict[str, Choice]:
        """The chosen level of each group that has several levels of a selected factor."""
        return {group: selected.choice for group, selected in self.selected.items() if selected.choice is not None}

    def estimate(self, group: str) -> Estimate:
        """What the group reaches on its own."""
        return next(estimate for estimate in self.estimates if estimate.group == group)

    def comparison(self, group: str) -> Comparison | None:
        """The group against the baseline; None for the baseline."""
        return next((comparison for comparison in self.comparisons if comparison.group == group), None)


@dataclass(frozen=True)
class Study:
    """Everything compared: blocks[0] is the primary measure; ranges[metric]: of each metric compared or drawn."""

    sweep: Sweep
    settings: Settings
    blocks: tuple[Block, ...]
    ranges: Mapping[str, CommonRange]

    @property
    def primary(self) -> Block:
        """The measure that the experiment declared as its question."""
        return self.blocks[0]


def study(sweep: Sweep, settings: Settings) -> Study:
    """Summarise and compare: the same sweep and settings give the same study."""
    sweep = added(normalized(settings, sweep), settings.asked)
    ranges = {metric: range_of(sweep, settings, metric) for metric in settings.asked}
    measures = []
    for metric in settings.metrics:
        direction = settings.direction_of(metric)
        summaries = ("final", "auc", "best") if direction else ("final", "auc")
        measures += [Measure(metric, summary, direction) for summary in summaries]
    measures += [time_to(sweep, settings, ranges[target.metric], target) for target in settings.time_to]
    first = next(m for m in measures if m.metric == settings.metric and m.summary == settings.summary)
    ordered = [first, *(measure for measure in measures if measure is not first)]
    blocks = [block(sweep, settings, ranges[measure.metric], measure, sweep.baseline) for measure in ordered]
    return Study(sweep, settings, tuple(blocks), ranges)


def registered(sweep: Sweep) -> Registration | None:
    """How the plan of a sweep compares with what was declared; None if that is not recorded, or cannot be read.

    The launcher keeps every declaration in multirun/<experiment>/hypotheses.json, with the runs that were done by then
    (launcher/planning/freeze.py has the format).
    """
    runs = {run.id: run.done for run in sweep.runs}
    try:
        kept = json.loads((sweep.folder / "hypotheses.json").read_text(encoding="utf-8"))["declarations"]
        return declaration.registration(kept, sweep.plan, Declaration(sum(runs.values()), len(runs)))
    except _BROKEN:
        return None


def as_declared(compared: Study, registered: Registration) -> Study | None:
    """The primary measure as it was declared, on the runs that were declared; None: it cannot be computed."""
    # Normalised scores cannot be normalised again.
    known = {} if compared.settings.normalize else {run.id: run for run in compared.sweep.runs}
    try:
        plan = {**compared.sweep.plan, **(registered.plan or {})}
        plan["runs"] = [*plan["runs"], *declaration.added_runs(plan, compared.sweep.plan["runs"])]
        sweep = sweep_of(compared.sweep.folder, plan, known)
        return study(sweep, sweep.asked({**plan["analysis"], "metrics": [], "figures": [], "hypotheses": None}))
    except _BROKEN:
        return None


def range_of(sweep: Sweep, settings: Settings, metric: str) -> CommonRange:
    """The steps on which all usable runs of an experiment have the metric."""
    budget, lengths = sweep.plan.get("steps"), (sweep.plan.get("factors") or {}).get("trainer.steps", {}).get("label")
    return common_range(
        sweep.runs, metric, settings.incomplete, settings.window, float(budget) if budget else None, settings.axis,
        lengths, settings.end == "own",
    )  # fmt: skip


def time_to(sweep: Sweep, settings: Settings, common: CommonRange, target: Target) -> Measure:
    """The time until the target's metric reaches its threshold."""
    threshold, origin = target.at, "declared"
    share, baseline = target.baseline_final or 0.0, sweep.baseline
    if threshold is None and baseline is None:
        origin = f"{share:g} x the baseline's final value, but there is no baseline"
    elif threshold is None and baseline is not None:
        runs = sweep.runs_of(baseline)
        values = {run.id: value_of(common, run.id, "final", None) for run in runs}
        means = cells.means(cells.keep_runs(runs, values))
        seeds = "1 seed" if len(means) == 1 else f"mean of {len(means)} seeds"
        origin = f"{share:g} x the final value of {sweep.label(baseline)}, {seeds}"
        threshold = share * float(np.mean(list(means.values()))) if means else None
    direction = target.direction or settings.direction_of(target.metric) or "higher"
    return Measure(target.metric, "time_to", direction, threshold, origin, settings.axis)


def _sides(settings: Settings, measure: Measure, group: str, other: str) -> set[float]:
    """The signs of a difference of two groups that are hoped for: that of the better, or both where neither is better,
    and those that hypotheses claim."""
    sides = {1.0, -1.0} if measure.better is None else {float(measure.sign)}
    for h in settings.hypotheses:
        same = (*h.metrics, h.summary) == (measure.metric, measure.summary) and {h.group, *h.against} == {group, other}
        if same and h.kind in ("greater", "less"):
            sides.add(1.0 if (h.kind == "greater") == (h.group == group) else -1.0)
    return sides


def block(sweep: Sweep, settings: Settings, common: CommonRange, measure: Measure, baseline: str | None) -> Block:
    """Summarise every group on one measure, and compare it with the baseline, and if asked every further two groups."""
    others = [group for group in sweep.groups if group != baseline] if baseline is not None else []
    against = dict.fromkeys(others, baseline or "")
    asked_for = measure.summary, measure.direction, measure.threshold
    values = {run.id: value_of(common, run.id, *asked_for) for run in sweep.runs}
    schedule = interim.schedule(sweep, settings)
    sweep = interim.finished(sweep, settings)
    selected = _selected(sweep, settings, measure, values)
    kept = {group: chosen.kept for group, chosen in selected.items()}
    estimates = [_estimate(name, sweep, chosen, values, measure, common, settings) for name, chosen in selected.items()]
    by_seed = settings.pairing == "seed"

    def paired(both: tuple[str, str], without: Mapping[int, str]) -> cells.Pairs:
        return (cells.pair if by_seed else cells.samples)(kept[both[0]], kept[both[1]], both, without)

    planned = {group: {run.seed for run in sweep.runs_of(group)} for group in sweep.groups}
    test = settings.test_of(measure.summary)
    every = [*against.items()]
    if settings.compare == "all_pairs":
        two = itertools.combinations(sweep.groups, 2)
        every += [(b, a) for a, b in two if not {(a, b), (b, a)} & {*against.items()}]
    if schedule is None:
        asked: dict[tuple[str, str], ComparedSeeds] = {}
        for both in every:
            pair = paired(both, {})
            asked[both] = pair, Contrast(test, np.array(pair.a), np.array(pair.b), settings.seed), None
    else:
        sides = {both[0]: _sides(settings, measure, *both) for both in against.items()}
        looked_at = interim.asked(
            schedule, sweep, settings, test, sides, against,
            lambda group, seeds: paired(
                (group, against[group]), dict.fromkeys({*schedule.seeds} - seeds, "added after its last look")
            ),
            stops=(measure.metric, measure.summary) == (settings.metric, settings.summary),
        )  # fmt: skip
        asked = {(group, against[group]): seeds for group, seeds in looked_at.items()}
    is_judged = registry.is_judged(measure.summary)
    of_drawn = describe(measure.metric).of_drawn
    compared = [both for both in every if is_judged and not (of_drawn and sweep.draw_apart(*both))]
    adjusted, levels = _adjusted([asked[both] for both in compared], settings)
    comparisons = []
    for both in every:
        (group, baseline), is_asked = both, both in compared
        pair, contrast, standing = asked[both]
        reached, first = None, (0, 0)
        if measure.summary == "time_to":
            reached, first = _reached(sweep, values, pair, selected, both)
        nowhere = reached is not None and not any(k for k, _ in reached)
        at_once = reached is not None and sum(first) == sum(n for _, n in reached)
        difference = None if nowhere or at_once else contrast.difference
        p = contrast.p() if is_asked and not nowhere and not at_once else None
        q = adjusted[compared.index(both)] if p is not None else None
        level = levels[compared.index(both)] if is_asked else settings.alpha
        interval = contrast.interval(level) if p is not None else None
        without = tuple(name for name in (baseline, group) if name in common.absent)
        no_seed = planned[group] and planned[baseline] and not planned[group] & planned[baseline]
        missing = (
            (without, Ground(Reason.NOT_RECORDED, without)),
            (is_judged and not is_asked, Ground(Reason.DRAWN_APART, (group, baseline))),
            (standing and not standing.look, Ground(Reason.NO_LOOK, n=schedule.sizes[0] if schedule else 0)),
            (by_seed and no_seed, Ground(Reason.NO_COMMON_SEED)),
            (pair.apart, Ground(Reason.NO_COMMON_CELL, (baseline, group), cells=(pair.apart or ())[::-1])),
            (not is_judged and contrast.n, Ground(Reason.MAXIMUM)),
            (nowhere and contrast.n, Ground(Reason.NOT_REACHED)),
            (at_once and contrast.n, Ground(Reason.TIMES_FIRST, n=sum(first))),
        )
        outcome, ground = Outcome.NOT_EVALUABLE, next((ground for holds, ground in missing if holds), None)
        if ground is None:
            times = multiplied(settings.family, len(compared)) or 1
            outcome, ground = _outcome(contrast, q, times, settings.alpha, both)
            if standing is not None and standing.status is Status.FUTILE and outcome is Outcome.INCONCLUSIVE:
                ground = Ground(Reason.FUTILE, n=standing.seeds, needed=standing.most, value=standing.chance)
        gaps = () if without else tuple(Gap(seed, (), why) for seed, why in pair.lost.items())
        judged = [{seed for seed, _ in selected[name].places} for name in (group, baseline)]
        whole = len(judged[0] & judged[1]) if by_seed else min(map(len, judged))
        whole = whole if standing is None else min(whole, standing.seeds)
        comparisons.append(
            Comparison(group, baseline, pair.seeds, pair.seeds_of_b, contrast, whole, difference, p, q, level, interval,
                       outcome, ground, gaps, pair.notes, reached, first, standing)
        )  # fmt: skip
    return Block(
        measure, common.start, common.stop, common.budget, values, tuple(estimates),
        tuple(comparisons[: len(against)]), len(compared), selected, tuple(comparisons[len(against) :]),
    )  # fmt: skip


def _selected(sweep: Sweep, settings: Settings, measure: Measure, values: Mapping[str, Value]) -> dict[str, Selected]:
    """What counts of each group on a measure: its runs at its best level of the selected factors."""
    runs = {group: sweep.runs_of(group) for group in sweep.groups}
    planned = {group: {run.seed for run in of} for group, of in runs.items()}
    choosing = cells.choosing(planned, settings.pairing == "seed")
    sign = None if measure.better is None else measure.sign
    by_place = {group: {(run.seed, run.cell): values[run.id].value for run in of} for group, of in runs.items()}
    return {group: cells.best(of, settings.select, choosing[group], sign) for group, of in by_place.items()}


def _gaps(runs: Sequence[Run], values: Mapping[str, Value]) -> tuple[Gap, ...]:
    gaps = []
    for run in runs:
        value = values[run.id]
        if value.value is None:
            gaps.append(Gap(run.seed, run.cell, value.reason or ""))
        elif value.carried:
            gaps.append(Gap(run.seed, run.cell, f"last value carried forward ({run.problem or 'it ends early'})"))
    return tuple(gaps)


def _estimate(
    group: str,
    sweep: Sweep,
    selected: Selected,
    values: Mapping[str, Value],
    measure: Measure,
    common: CommonRange,
    settings: Settings,
) -> Estimate:
    kept, runs = selected.kept, [run for run in sweep.runs_of(group) if (run.seed, run.cell) in selected.places]
    planned = len({run.seed for run in runs})
    if group in common.absent:
        return Estimate(group, (), planned, (), None, None, None, (), recorded=False)
    means = cells.means(kept)
    mean = float(np.mean(list(means.values()))) if means else None
    level = interim.level_of_mean(sweep, settings, group, tuple(means)) if means else 0.0
    interval = t_test.t_interval(list(means.values()), level) if level > 0 else None
    reached = None
    if measure.summary == "time_to":
        at = selected.used
        used = [values[run.id] for run in runs if (run.seed, run.cell) in at]
        reached = sum(bool(v.reached) for v in used), len(used)
        if means and common.budget > 0:  # right whether or not a time is cut: the choice would be made by the data
            level = interim.level(sweep, settings, group)
            times = np.clip(list(means.values()), 0.0, common.budget)  # completed ones of a seed that lacks cells
            interval = t_test.mean_interval(times.tolist(), 0.0, common.budget, level)
        if used and all(len(by_cell) == 1 for by_cell in kept.seeds.values()) and not kept.dropped:
            mean = restricted_mean([v.value or 0.0 for v in used], [bool(v.reached) for v in used], common.budget)
    gaps = _gaps(runs, values)
    return Estimate(group, tuple(means), planned, tuple(means.values()), mean, interval, reached, gaps, level=level)


def _adjusted(asked: Sequence[ComparedSeeds], settings: Settings) -> tuple[tuple[float | None, ...], tuple[float, ...]]:
    """The p values of a measure's comparisons, adjusted for one another, and the level at which each is asked."""
    if settings.family != "max_t":
        return multiplicity.adjusted([contrast.p() for _, contrast, _ in asked], settings.family, settings.alpha)
    pairs = [pair for pair, _, _ in asked]
    places = {seed: row for row, seed in enumerate(sorted({seed for pair in pairs for seed in pair.seeds}))}
    matrix = np.full((len(places), len(pairs)), np.nan)
    for column, pair in enumerate(pairs):
        matrix[[places[seed] for seed in pair.seeds], column] = t_test.difference(pair.a, pair.b)
    family = multiplicity.family(matrix, "max_t", alpha=settings.alpha, seed=settings.seed)
    return family.p, family.levels


def _reached(
    sweep: Sweep,
    values: Mapping[str, Value],
    pairs: cells.Pairs,
    selected: Mapping[str, Selected],
    names: tuple[str, str],
) -> tuple[tuple[tuple[int, int], tuple[int, int]], tuple[int, int]]:
    """How many of the compared runs of two groups reached the threshold, and how many there are; and how many of each
    group have the earliest time that can be told."""
    ours, theirs = (
        [values[run.id] for run in sweep.runs_of(name)
         if (run.seed, selected[name].places.get((run.seed, run.cell))) in used]
        for name, used in zip(names, pairs.runs, strict=True)
    )  # fmt: skip
    reached = (sum(bool(v.reached) for v in ours), len(ours)), (sum(bool(v.reached) for v in theirs), len(theirs))
    return reached, (sum(v.at_first for v in ours), sum(v.at_first for v in theirs))


def _outcome(
    contrast: Contrast, p: float | None, times: int, alpha: float, groups: tuple[str, str]
) -> tuple[Outcome, Ground | None]:
    """What an adjusted p says of a difference of two groups; `times`: as resolution.multiplied has it."""
    n, ties = contrast.n, contrast.ties
    if n == 0:
        return Outcome.NOT_EVALUABLE, Ground(Reason.NO_PAIR)
    if ties == n:
        return Outcome.EQUAL, None
    if p is None or contrast.difference is None:
        return Outcome.NOT_EVALUABLE, no_interval(n, groups if contrast.paired else ())
    if p <= alpha:
        return (Outcome.HIGHER if contrast.difference > 0 else Outcome.LOWER), None
    if times * contrast.smallest_p(ties) <= alpha:
        return Outcome.INCONCLUSIVE, None
    needed = seeds_needed(contrast.level(alpha) or alpha, times, contrast.test)
    if needed + ties <= n:
        return Outcome.INCONCLUSIVE, Ground(Reason.TOO_FEW_DRAWS)
    return Outcome.INCONCLUSIVE, Ground(Reason.TOO_FEW_SEEDS, n=n, ties=ties, needed=needed + ties)

"""What the seeds of an experiment can find, asked before it runs: for its primary question and each claim about two
groups. The spread of an earlier sweep turns standard deviations into the metric's unit."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.data import derived
from analysis.data.normalized import normalized
from analysis.data.sweep import BadPlan, Sweep
from analysis.findings.study import Block, Measure, range_of, time_to, versus
from analysis.spec import precheck, registry
from analysis.spec.hypothesis import Hypothesis, Target
from analysis.spec.precheck import Findable
from analysis.spec.settings import Settings
from analysis.stats import power
from analysis.stats.contrast import Contrast

EFFECTS = (0.5, 1.0, 1.5, 2.0, 3.0)  # standard deviations
SEEDS = (3, 5, 6, 8, 10, 20)


@dataclass(frozen=True)
class Question:
    """A question that one test decides. hypothesis: None for the primary question. groups: those that are compared, of
    a hypothesis two; bounds: of the ratio that it claims. found: None if the summary is not judged."""

    hypothesis: Hypothesis | None
    groups: tuple[str, ...]
    metric: str
    summary: str
    target: Target | None
    bounds: tuple[float, ...]
    inverse: bool
    found: Findable | None

    @property
    def id(self) -> str:
        """The hypothesis's id, or `primary`."""
        return "primary" if self.hypothesis is None else self.hypothesis.id


@dataclass(frozen=True)
class Row:
    """With so many seeds: the effect that is found with 80% power (None: no effect is large enough), and the power at
    each of EFFECTS."""

    seeds: int
    effect: float | None
    power: tuple[float, ...]


@dataclass(frozen=True)
class Spread:
    """A standard deviation: of the differences of a group and `against`, or of the runs of a group (against: None)."""

    group: str
    against: str | None
    seeds: int
    sd: float


@dataclass(frozen=True)
class Seen:
    """A difference that the earlier sweep has, group minus against (times `bound`, of a ratio), on so many seeds.

    effect: in standard deviations. power: of finding a true difference of this size with the planned seeds. needed:
    the seeds that give 80% power; None above power.MOST_SEEDS, and without a difference.
    """

    group: str
    against: str
    bound: float | None
    seeds: int
    difference: float
    effect: float
    power: float
    needed: int | None


@dataclass(frozen=True)
class Earlier:
    """What an earlier sweep says of a question, in the unit of the measure.

    recorded: whether a run has the metric. spreads: empty if no spread is known.
    """

    measure: Measure
    recorded: bool
    spreads: tuple[Spread, ...]
    seen: tuple[Seen, ...]

    @property
    def largest(self) -> Spread | None:
        """The largest spread; None without any."""
        return max(self.spreads, key=lambda spread: spread.sd, default=None)

    @property
    def median(self) -> float | None:
        """The median of the spreads; None without any."""
        return statistics.median(spread.sd for spread in self.spreads) if self.spreads else None


def questions(asked: Settings, seeds: Mapping[str, Sequence[int]], baseline: str | None) -> tuple[Question, ...]:
    """The primary question, if the plan has a comparison, then each hypothesis of precheck.TWO_GROUPS. seeds: of each
    group of the plan."""
    listed = []
    if baseline is not None and len(seeds) > 1:
        found = precheck.findable(asked, seeds, baseline) if registry.is_judged(asked.summary) else None
        target = None
        if asked.summary == "time_to":
            target = next(one for one in asked.time_to if one.metric == asked.metric)
        groups = (*(group for group in seeds if group != baseline), baseline)
        listed.append(Question(None, groups, asked.metric, asked.summary, target, (), False, found))
    by_id = precheck.findable_hypotheses(asked, seeds)
    for h in asked.hypotheses:
        if h.id in by_id:
            bounds = tuple(bound for bound in (h.low, h.high) if bound is not None) if h.kind == "ratio" else ()
            groups = (h.group, *h.against)
            listed.append(
                Question(
                    hypothesis=h,
                    groups=groups,
                    metric=h.metrics[0],
                    summary=h.compared,
                    target=h.target,
                    bounds=bounds,
                    inverse=h.summary == "efficiency",
                    found=by_id[h.id] if registry.is_judged(h.compared) else None,
                )
            )
    return tuple(listed)


def by_seeds(found: Findable) -> tuple[Row, ...]:
    """The power of a test with the planned number of seeds and with those of SEEDS."""
    counts = sorted({*SEEDS, found.seeds} - {0, 1})
    return tuple(
        Row(
            n,
            power.detectable(found.test, n, found.level),
            tuple(power.power_of(found.test, n, effect, found.level) for effect in EFFECTS),
        )
        for n in counts
    )


def prepared(sweep: Sweep, asked: Settings, listed: Sequence[Question]) -> Sweep:
    """An earlier sweep with the scores and metrics that the questions are about.

    Raises BadPlan if no run has the primary metric, or if its scores cannot be normalised as asked.
    """
    (sweep,) = normalized(asked, sweep)
    sweep = derived.added(sweep, [question.metric for question in listed])
    recorded = {metric for run in sweep.runs for metric in run.curves.values}
    if asked.metric not in recorded:
        known = sorted(metric for metric in recorded if not metric.endswith(" as recorded"))
        raise BadPlan(
            f"{sweep.folder / 'plan.json'}: --from: analysis.primary.metric = {asked.metric}: no run of this sweep has "
            f"recorded it; its runs have {', '.join(known) or 'no metric'}. Fix: name a sweep with this metric, or "
            "leave --from out"
        )
    return sweep


def earlier(question: Question, asked: Settings, sweep: Sweep) -> Earlier:
    """What a `prepared` sweep says of a question that is judged: of the two groups of a hypothesis if it has both, else
    of each group against its baseline, or against its first group."""
    assert question.found is not None
    against = _against(question, sweep)
    common = range_of(sweep, asked, question.metric)
    if question.target is not None:
        measure = time_to(sweep, asked, common, question.target)
    else:
        measure = Measure(question.metric, question.summary, asked.direction_of(question.metric))
    block = versus(sweep, asked, common, measure, against)
    contrasts: list[tuple[str, str, float | None, Contrast]] = []
    for comparison in block.comparisons:
        group, other, contrast = comparison.group, comparison.baseline, comparison.contrast
        if question.inverse:
            group, other, contrast = other, group, replace(contrast, a=contrast.b, b=contrast.a)
        if question.bounds:
            contrasts += [(group, other, bound, replace(contrast, b=contrast.b * bound)) for bound in question.bounds]
        else:
            contrasts.append((group, other, None, contrast))
    spreads = [Spread(group, other, one.n, one.spread) for group, other, _, one in contrasts if one.spread]
    if not question.found.paired and not question.bounds:
        spreads = _of_runs(block, {*against, *against.values()} or {*sweep.groups})
    seen = [
        _seen(question.found, group, other, bound, contrast)
        for group, other, bound, contrast in contrasts
        if contrast.spread
    ]
    recorded = any(question.metric in run.curves.values for run in sweep.runs)
    return Earlier(measure, recorded, tuple(spreads), tuple(seen))


def _against(question: Question, sweep: Sweep) -> dict[str, str]:
    if question.hypothesis is not None and {*question.groups} <= {*sweep.groups}:
        return {question.groups[0]: question.groups[1]}
    first, *others = sweep.groups  # the baseline is the first of them
    return dict.fromkeys(others, first)


def _of_runs(block: Block, groups: Collection[str]) -> list[Spread]:
    values = {one.group: np.array(one.values) for one in block.estimates if one.group in groups and len(one.values) > 1}
    return [Spread(name, None, own.size, float(own.std(ddof=1))) for name, own in values.items() if np.ptp(own) > 0]


def _seen(found: Findable, group: str, against: str, bound: float | None, contrast: Contrast) -> Seen:
    effect = power.effect_of(contrast)
    assert effect is not None and contrast.difference is not None
    return Seen(
        group=group,
        against=against,
        bound=bound,
        seeds=contrast.n,
        difference=contrast.difference,
        effect=effect,
        power=power.power_of(found.test, found.seeds, effect, found.level),
        needed=power.seeds_to_find(found.test, effect, found.level),
    )

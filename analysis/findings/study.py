"""The comparisons of an experiment: every group against the baseline, for each measure, with a verdict in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.data import cells, derived
from analysis.data.run_values import CommonRange, Value, common_range, value_of
from analysis.data.sweep import Run, Sweep
from analysis.numbers import format_number, format_p
from analysis.spec.metric_catalog import describe
from analysis.spec.settings import Settings
from analysis.spec.threshold import Target
from analysis.stats import compare, t_test
from analysis.stats.compare import FamilyResult, PairedResult
from analysis.stats.curve_summaries import restricted_mean
from analysis.stats.resolution import cannot_decide, floor, multiplied, seeds_needed

SUMMARIES = {
    "final": "final value",
    "auc": "area under the curve",
    "best": "best value",
    "mean": "mean",
    "early": "mean of the first tenth",
    "early_variance": "variance from step to step, in the first tenth,",
    "slope": "slope a step",
    "trend": "Kendall's rank correlation with the step",
    "lowest_relative": "least value, as a share of the first,",
    "largest_change": "largest change within the window, as a share of the largest value,",
}
AXES = {"steps": "steps", "samples": "responses"}  # what times are counted in


@dataclass(frozen=True)
class Measure:
    """What is compared: a summary of a metric.

    threshold, its origin and what passes on the axis are for time_to; direction None: neither way is better.
    """

    metric: str
    summary: str
    direction: str | None
    threshold: float | None = None
    origin: str | None = None
    axis: str = "steps"

    @property
    def title(self) -> str:
        """For a heading: final value of mean reward of a response."""
        label = describe(self.metric).label
        if self.summary == "time_to":
            goal = "unknown" if self.threshold is None else format_number(self.threshold)
            return f"{AXES[self.axis]} until {label} reaches {goal}"
        return f"{SUMMARIES[self.summary]} of {label}"

    @property
    def unit(self) -> str:
        """Unit of the compared numbers."""
        return AXES[self.axis] if self.summary == "time_to" else describe(self.metric).unit

    @property
    def better(self) -> str | None:
        """Which way is better for the compared number: earlier is better for a time."""
        return "lower" if self.summary == "time_to" else self.direction


@dataclass(frozen=True)
class Estimate:
    """A group on its own: mean over seeds with its t interval; reached: (k, n) runs for time_to.

    recorded: False for a group that does not have the metric at all, which is no gap.
    """

    group: str
    seeds: tuple[int, ...]
    planned: int
    values: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None
    reached: tuple[int, int] | None
    gaps: tuple[str, ...]
    recorded: bool = True


@dataclass(frozen=True)
class Comparison:
    """A group against the baseline.

    p: of the test that decides; adjusted: for the family. seeds[i] has a[i] and b[i]. reached: for time_to, (k, n) of
    the runs that a is of, then of those that b is of.
    """

    group: str
    baseline: str
    seeds: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    result: PairedResult
    p: float | None
    adjusted: float | None
    verdict: str
    gaps: tuple[str, ...]
    notes: tuple[str, ...]
    reached: tuple[tuple[int, int], tuple[int, int]] | None = None


@dataclass(frozen=True)
class Block:
    """All groups on one measure. values[run id]; start and stop are the common range of steps, budget its end on the
    axis."""

    measure: Measure
    start: float
    stop: float
    budget: float
    values: Mapping[str, Value]
    estimates: tuple[Estimate, ...]
    comparisons: tuple[Comparison, ...]
    family: FamilyResult | None


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
    wanted = [*settings.metrics, *(target.metric for target in settings.time_to)]
    wanted += [metric for figure in settings.figures if figure.kind != "histogram" for metric in figure.metrics]
    claimed = [metric for hypothesis in settings.hypotheses for metric in hypothesis.metrics]
    sweep, wanted = derived.added(sweep, claimed), wanted + claimed
    ranges = {metric: range_of(sweep, settings, metric) for metric in dict.fromkeys(wanted)}
    measures = []
    for metric in settings.metrics:
        direction = settings.direction_of(metric)
        summaries = ("final", "auc", "best") if direction else ("final", "auc")
        measures += [Measure(metric, summary, direction) for summary in summaries]
    for target in settings.time_to:
        measures.append(time_to(sweep, settings, ranges[target.metric], target))
    first = next(m for m in measures if m.metric == settings.metric and m.summary == settings.summary)
    ordered = [first, *(measure for measure in measures if measure is not first)]
    blocks = [block(sweep, settings, ranges[measure.metric], measure, sweep.baseline) for measure in ordered]
    return Study(sweep, settings, tuple(blocks), ranges)


def range_of(sweep: Sweep, settings: Settings, metric: str) -> CommonRange:
    """The steps on which all usable runs of an experiment have the metric."""
    budget = sweep.plan.get("steps")
    return common_range(sweep.runs, metric, settings.incomplete, float(budget) if budget else None, settings.axis)


def block_of(found: Study, metric: str, summary: str) -> Block | None:
    """The first block of that metric and summary."""
    return next((b for b in found.blocks if b.measure.metric == metric and b.measure.summary == summary), None)


def time_to(sweep: Sweep, settings: Settings, common: CommonRange, target: Target) -> Measure:
    """The time until the target's metric reaches its threshold."""
    threshold, origin = _threshold(sweep, settings, common, target)
    direction = settings.direction_of(target.metric) or "higher"
    return Measure(target.metric, "time_to", direction, threshold, origin, settings.axis)


def _threshold(
    sweep: Sweep, settings: Settings, common: CommonRange, target: Target
) -> tuple[float | None, str | None]:
    if target.at is not None:
        return target.at, "declared"
    share = target.baseline_final or 0.0
    if sweep.baseline is None:
        return None, f"{share:g} x the baseline's final value, but there is no baseline"
    runs = [run for run in sweep.runs if run.group == sweep.baseline]
    values = {run.id: value_of(common, run.id, "final", window=settings.window, direction="higher") for run in runs}
    means = cells.means(cells.keep({(run.seed, run.cell): values[run.id].value for run in runs}))
    seeds = "1 seed" if len(means) == 1 else f"mean of {len(means)} seeds"
    origin = f"{share:g} x the final value of {sweep.label(sweep.baseline)}, {seeds}"
    return (share * float(np.mean(list(means.values()))), origin) if means else (None, origin)


def block(sweep: Sweep, settings: Settings, common: CommonRange, measure: Measure, baseline: str | None) -> Block:
    """Summarise every group on one measure, and compare it with the baseline."""
    others = [group for group in sweep.groups if group != baseline] if baseline is not None else []
    return versus(sweep, settings, common, measure, dict.fromkeys(others, baseline or ""))


def versus(
    sweep: Sweep,
    settings: Settings,
    common: CommonRange,
    measure: Measure,
    against: Mapping[str, str],
    left_out: Mapping[str, Mapping[int, str]] | None = None,
) -> Block:
    """Summarise every group on one measure, and compare each group of `against` with the one it names there.

    left_out[group]: seeds that its comparison leaves out, with the reason.
    """
    values = {
        run.id: value_of(
            common,
            run.id,
            measure.summary,
            window=settings.window,
            direction=measure.direction or "higher",
            threshold=measure.threshold,
        )
        for run in sweep.runs
    }
    kept: dict[str, cells.Kept] = {}
    estimates = []
    for group in sweep.groups:
        runs = [run for run in sweep.runs if run.group == group]
        kept[group] = cells.keep({(run.seed, run.cell): values[run.id].value for run in runs})
        estimates.append(_estimate(group, runs, kept[group], values, measure, common, settings.alpha))
    pairs = {
        group: cells.leave_out(cells.pair(kept[group], kept[other], (group, other)), (left_out or {}).get(group, {}))
        for group, other in against.items()
    }
    matrix = _matrix(pairs)
    test = "signflip" if measure.summary == "time_to" else settings.test
    adjusted = None
    if against:
        adjusted = compare.family(matrix, settings.family, test=test, alpha=settings.alpha, seed=settings.seed)
    comparisons = []
    for place, (group, baseline) in enumerate(against.items()):
        reached = _reached(sweep, values, pairs[group], (group, baseline)) if measure.summary == "time_to" else None
        result = _compare(pairs[group], measure, settings, reached)
        p = {"paired_t": result.p_t, "signflip": result.p_signflip, "wilcoxon": result.p_wilcoxon}[test]
        q = adjusted.p[place] if adjusted else p
        if p is None and result.p_signflip is None:
            q = None
        without = [sweep.label(name) for name in (baseline, group) if name in common.absent]
        verdict = f"not recorded by {' and '.join(without)}" if without else None
        if verdict is None and strangers(sweep, group, baseline):
            verdict = "no common seed: see the unpaired comparison"
        lost = {} if without else pairs[group].lost
        comparisons.append(
            Comparison(
                group,
                baseline,
                pairs[group].seeds,
                pairs[group].a,
                pairs[group].b,
                result,
                p,
                q,
                verdict or _verdict(result, q, adjusted, test, len(against), settings, measure, sweep.label(baseline)),
                tuple(f"seed {seed}: {why}" for seed, why in lost.items()),
                pairs[group].notes,
                reached,
            )
        )
    return Block(
        measure, common.start, common.stop, common.budget, values, tuple(estimates), tuple(comparisons), adjusted
    )


def strangers(sweep: Sweep, group: str, other: str) -> bool:
    """Whether both groups have seeds planned, and none in common."""
    own, theirs = ({run.seed for run in sweep.runs if run.group == name} for name in (group, other))
    return bool(own and theirs) and not own & theirs


def _gaps(runs: Sequence[Run], values: Mapping[str, Value]) -> tuple[str, ...]:
    found = []
    for run in runs:
        value = values[run.id]
        where = f"seed {run.seed}" + "".join(f", {label} {level}" for label, level in run.cell)
        if value.value is None:
            found.append(f"{where}: {value.reason}")
        elif value.carried:
            found.append(f"{where}: last value carried forward ({run.problem or 'it ends early'})")
    return tuple(found)


def _estimate(
    group: str,
    runs: Sequence[Run],
    kept: cells.Kept,
    values: Mapping[str, Value],
    measure: Measure,
    common: CommonRange,
    alpha: float,
) -> Estimate:
    planned = len({run.seed for run in runs})
    if group in common.absent:
        return Estimate(group, (), planned, (), None, None, None, (), recorded=False)
    means = cells.means(kept)
    mean = float(np.mean(list(means.values()))) if means else None
    interval = t_test.t_interval(list(means.values()), alpha) if means else None
    reached = None
    if measure.summary == "time_to":
        used = [values[run.id] for run in runs if run.cell in kept.seeds.get(run.seed, ())]
        reached = sum(bool(v.reached) for v in used), len(used)
        if reached[0] < reached[1]:
            interval = None  # of times cut at the budget no t interval is right
        if used and all(len(by_cell) == 1 for by_cell in kept.seeds.values()) and not kept.dropped:
            mean = restricted_mean([v.value or 0.0 for v in used], [bool(v.reached) for v in used], common.budget)
    gaps = _gaps(runs, values)
    return Estimate(group, tuple(means), planned, tuple(means.values()), mean, interval, reached, gaps)


def _matrix(pairs: Mapping[str, cells.Pairs]) -> NDArray[np.float64]:
    seeds = sorted({seed for found in pairs.values() for seed in found.seeds})
    matrix = np.full((len(seeds), len(pairs)), np.nan)
    for column, found in enumerate(pairs.values()):
        matrix[[seeds.index(seed) for seed in found.seeds], column] = t_test.difference(found.a, found.b)
    return matrix


def _reached(
    sweep: Sweep, values: Mapping[str, Value], pairs: cells.Pairs, names: tuple[str, str]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many of the runs that a pair of groups is compared on reached the threshold, and how many these are."""
    own, theirs = (
        [bool(values[run.id].reached) for run in sweep.runs
         if run.group == name and run.seed in pairs.seeds and run.cell in used]
        for name, used in zip(names, pairs.cells, strict=True)
    )  # fmt: skip
    return (sum(own), len(own)), (sum(theirs), len(theirs))


def _compare(
    pairs: cells.Pairs, measure: Measure, settings: Settings, reached: tuple[tuple[int, int], tuple[int, int]] | None
) -> PairedResult:
    direction = measure.better or "higher"
    result = compare.paired(pairs.a, pairs.b, settings.alpha, direction=direction, seed=settings.seed)
    censored = sum(n - k for k, n in reached or ())
    if censored == 0:
        return result
    result = replace(result, interval=None, d_z=None, p_t=None, detectable=None)
    if not any(k for k, _ in reached or ()):
        why = "neither group reached the threshold within the budget: there is no time to compare"
        return replace(result, mean_difference=None, p_signflip=None, p_wilcoxon=None, reason=why)
    why = f"{times_cut(censored)}: sign flips of the restricted mean decide, a t interval would not hold"
    return replace(result, reason="; ".join(filter(None, (result.reason, why))))


def times_cut(count: int) -> str:
    """That so many times are no times, but the budget."""
    return f"{count} times are cut at the budget" if count > 1 else "one time is cut at the budget"


def _verdict(
    result: PairedResult,
    p: float | None,
    family: FamilyResult | None,
    test: str,
    size: int,
    settings: Settings,
    measure: Measure,
    baseline: str,
) -> str:
    if result.n == 0:
        return "not evaluable: no seed has both"
    if result.mean_difference is not None and result.ties == result.n:
        return f"equal in all {result.n} seeds" if result.n > 1 else "equal in the only seed"
    if p is None or result.mean_difference is None:
        return f"not evaluable: {result.reason}"
    above = result.mean_difference > 0
    if p <= settings.alpha:
        if measure.summary == "time_to":
            return f"{'later' if above else 'earlier'} than {baseline}"
        word = {None: ("higher", "lower"), "higher": ("better", "worse"), "lower": ("worse", "better")}[measure.better]
        return f"{word[0] if above else word[1]} than {baseline}"
    times = multiplied("" if family is None else family.method, test, size)
    if times * floor(result.n - result.ties) > settings.alpha:
        return cannot_decide(result.n, seeds_needed(settings.alpha, times), result.ties)
    return f"undecided with n = {result.n}: p = {format_p(p, settings.alpha)}"

"""The summaries of every run: each metric on the range of steps that its runs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import median_low

import numpy as np

from analysis.data.sweep import Cell, Run
from analysis.spec import registry
from analysis.spec.cell import grouped, part
from analysis.spec.metric_catalog import CLOCKS
from analysis.spec.registry import WINDOW, WINDOWS, Points, Window
from analysis.stats import curve_summaries
from analysis.stats.curve_summaries import NotEvaluable
from analysis.stats.mean_curves import common_points
from analysis.stats.numbers import Array

# States in which a run ended before its budget: with `incomplete: carry` its last value stands for the rest.
_ENDED = frozenset({"failed", "diverged", "cancelled", "lost"})
_TOGETHER = 64  # curves of some thousand points: their intermediate arrays stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Value:
    """A run's summary, or why it has none.

    reached: for time-to, whether the threshold was; `value` is then cut at the budget. at_first: whether `value` is the
    earliest time that can be told, so that the threshold may have been reached before.
    """

    value: float | None
    reason: str | None = None
    reached: bool | None = None
    carried: bool = False
    at_first: bool = False


@dataclass(frozen=True)
class Cut:
    """The range on which some runs are measured, those at `level` of the factors that all groups have: from `start` to
    `stop`. furthest: where the longest of them ends. setters: group and seed of the runs that end at `stop`, if others
    go further."""

    level: Cell
    start: float
    stop: float
    furthest: float
    setters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class CommonRange:
    """The steps on which usable runs have a metric, and their curves.

    window: of the summaries. curves[run id]: (steps, values). reasons[run id]: why a run is not among them. carried:
    runs whose last value stands for the steps they do not have. absent: groups of which no run has the metric though
    some ended well. clocks[run id]: where times are not in steps, (steps, what passed by then), of the metric `clock`.
    start, stop: of times; cuts: of other summaries, one for each level. grids[run id]: the points of a curve's
    summaries where runs that are compared were recorded at other steps. partial[run id]: curves that end early, which
    some summaries do not need whole. own_end: whether each run is measured to its own end. known[question][run id]: the
    summaries taken so far.
    """

    window: Window
    start: float
    stop: float
    curves: Mapping[str, tuple[Array, Array]]
    reasons: Mapping[str, str]
    carried: frozenset[str]
    absent: frozenset[str]
    clocks: Mapping[str, tuple[Array, Array]] | None
    clock: str | None
    cuts: tuple[Cut, ...]
    cut_of: Mapping[str, Cut]
    grids: Mapping[str, Array]
    partial: Mapping[str, tuple[Array, Array]]
    own_end: bool
    known: dict[tuple[object, ...], dict[str, Value]] = field(default_factory=dict, repr=False, compare=False)

    def end(self, run_id: str) -> float:
        """Where the range ends for a run."""
        return float(self._recorded(run_id)[0][-1]) if self.own_end else self.cut_of[run_id].stop

    def points(self, run_id: str) -> tuple[Array, Array]:
        """The steps at which a run is summarised, and its values there."""
        steps, values = self._recorded(run_id)
        if run_id in self.grids:
            points = self.grids[run_id]
            if run_id in self.partial:
                points = points[points <= steps[-1]]
            steps, values = points, np.interp(points, steps, values)
        return steps, values

    def curve(self, run_id: str, direction: str) -> registry.Curve:
        steps, values = self.points(run_id)
        return registry.Curve(steps, values, self.cut_of[run_id].start, self.end(run_id), self.window, direction)

    @cached_property
    def together(self) -> Mapping[str, list[str]]:
        """For each run those that are summarised with it, at the same steps: itself and at most _TOGETHER - 1 more."""
        latest: dict[tuple[int, float], list[str]] = {}
        found: dict[str, list[str]] = {}
        for run_id in self.curves:
            key = id(self.grids.get(run_id, self.curves[run_id][0])), self.end(run_id)
            if len(latest.get(key, ())) in (0, _TOGETHER):
                latest[key] = []
            latest[key].append(run_id)
            found[run_id] = latest[key]
        return found

    def reaches(self, run_id: str, share: float) -> bool:
        """Whether a run that ends early has this share of its range."""
        return run_id in self.partial and bool(self.partial[run_id][0][-1] >= share * self.end(run_id))

    @cached_property
    def earliest(self) -> float:
        """The first step by which every run has a whole window: times before it cannot be compared."""
        return max((_first_window(self.curve(run_id, "higher")) for run_id in self.curves), default=self.start)

    def _recorded(self, run_id: str) -> tuple[Array, Array]:
        return self.curves[run_id] if run_id in self.curves else self.partial[run_id]

    def at(self, run_id: str, steps: Array) -> Array:
        """The axis at these steps of a run. Raises NotEvaluable where the run did not record it."""
        if self.clocks is None:
            return steps
        if run_id not in self.clocks:
            raise NotEvaluable(f"{self.clock} is not recorded")
        return np.interp(steps, *self.clocks[run_id])

    @property
    def budget(self) -> float:
        """The end of the range on the axis: the least that any run has reached by then."""
        if self.clocks is None:
            return self.stop
        known = [run_id for run_id in self.curves if run_id in self.clocks]
        return min((float(self.at(run_id, np.array([self.stop]))[0]) for run_id in known), default=0.0)


SHORT = 0.05  # share of the budget that may lack at a run's end, or at its log's beginning


def common_range(
    runs: Sequence[Run],
    metric: str,
    incomplete: str,
    window: Window | None,
    budget: float | None = None,
    axis: str = "steps",
    lengths: str | None = None,
    own_end: bool = False,
) -> CommonRange:
    """Cut every run's metric to the range of its level; nothing is extrapolated unless `incomplete` is "carry".

    A level is one of the factors that all groups have, such as a task, and of `lengths`, the factor (if there is one)
    whose levels are planned numbers of steps. At each level, the budget of a group and cell is the end that most of
    its runs reach. A run is whole if it lacks at most SHORT of its budget, or less than one logging interval (of
    irregular logs, the longest). The range is from the latest beginning to the earliest end of whole runs; of runs with
    one value each, from the first of these values to the last. A metric may begin at another step in every run, as a
    budget does after its warm-up; a run whose metric begins late is left out only where its first lines are lost, or
    where it has no whole final value. own_end: each run is measured to its own end, also where it ends early.
    window: None follows the number of points of the metric.
    """
    curves, reasons = _measured(runs, metric, incomplete)
    counts = [steps.size for steps, _ in curves.values()] or [0]
    window = window or Points(points=max(1, min(WINDOW, median_low(counts) // WINDOWS)))
    labels = {*shared_factors(runs), *([] if lengths is None else [lengths])}
    levels = grouped((part(run.cell, labels), run) for run in runs)
    cut_of: dict[str, Cut] = {}
    grids: dict[str, Array] = {}
    partial: dict[str, tuple[Array, Array]] = {}
    carried: set[str] = set()
    for level, members in levels.items():
        cut, late, short, spacing = _cut(level, members, curves, metric, budget)
        cut_of |= {run.id: cut for run in members}
        for run in members:
            if run.id not in curves or run.id not in {**late, **short}:
                continue
            steps, values = curves[run.id]
            if run.id in late or incomplete != "carry":
                reasons[run.id] = late.get(run.id) or short[run.id]
                del curves[run.id]
                if run.id in short and run.problem is None and not (own_end and metric in run.curves.ends):
                    partial[run.id] = steps, values
            elif steps[-1] < cut.stop:
                more = np.append(np.arange(steps[-1] + max(spacing, 1.0), cut.stop, max(spacing, 1.0)), cut.stop)
                curves[run.id] = np.append(steps, more), np.append(values, np.full(more.size, values[-1]))
                carried.add(run.id)
        points = common_points([curves[run.id][0] for run in members if run.id in curves], cut.start, cut.stop)
        if points is not None and not own_end:
            grids |= {run.id: points for run in members if run.id in curves or run.id in partial}
    cuts = tuple(dict.fromkeys(cut for run_id, cut in cut_of.items() if run_id in curves or run_id in partial))
    start = min((cut.start for cut in cuts), default=0.0)
    stop = min((cut.stop for cut in cuts), default=budget or 0.0)
    ended = {run.group for run in runs if run.problem is None}
    # A group whose runs all failed before the metric could begin is not absent: it is not known.
    absent = frozenset(ended - {run.group for run in runs if metric in run.curves.values})
    clock = CLOCKS.get(axis)
    clocks = None if clock is None else _measured(runs, clock, "carry", every=True)[0]
    return CommonRange(
        window, start, stop, curves, reasons, frozenset(carried), absent, clocks, clock, cuts, cut_of, grids, partial,
        own_end,
    )  # fmt: skip


def shared_factors(runs: Sequence[Run]) -> set[str]:
    """The labels of the factors that every group has."""
    labels = grouped((run.group, [label for label, _ in run.cell]) for run in runs)
    return set.intersection(*(set(chain(*of_group)) for of_group in labels.values())) if labels else set()


def _cut(
    level: Cell, runs: Sequence[Run], curves: Mapping[str, tuple[Array, Array]], metric: str, budget: float | None
) -> tuple[Cut, dict[str, str], dict[str, str], float]:
    """The range of the runs of a level; by id, which of them begin late and which end early, with the reason; and the
    logging interval."""
    every = {run.id: curves[run.id][0] for run in runs if run.id in curves}
    several = {id(steps): steps for steps in every.values() if steps.size > 1}
    furthest = max((float(steps[-1]) for steps in every.values()), default=0.0)
    # of one value for each run, as of an evaluation at the end, one is as good as another near the end
    spacing = max(map(curve_summaries.interval, several.values()), default=curve_summaries.FINAL * furthest)
    ended = [run for run in runs if run.id in every and run.problem is None]
    first = _of_most([((run.group, run.cell), float(every[run.id][0])) for run in ended])
    opened = _of_most([((run.group, run.cell), float(run.curves.steps[0])) for run in ended])
    # a run goes on where the metric is no finite number
    last = _of_most([((run.group, run.cell), run.curves.ends.get(metric, float(every[run.id][-1]))) for run in ended])
    late, short = {}, {}
    whole: list[str] = []
    for run in runs:
        if run.id not in every or run.id in late:
            continue
        key, steps = (run.group, run.cell), every[run.id]
        slack = max(spacing, SHORT * last.get(key, 0.0))
        begins_late = key in first and steps[0] > first[key] + slack
        first_lines_lost = begins_late and run.curves.steps[0] > opened[key] + slack
        if first_lines_lost or (begins_late and steps[0] > (1 - curve_summaries.FINAL) * last[key]):
            late[run.id] = f"{metric} begins at step {steps[0]:g}, others at {first[key]:g}"
        elif run.problem is not None:
            short[run.id] = run.problem
        elif steps[-1] <= last[key] - spacing and steps[-1] < (1 - SHORT) * last[key]:
            goes_on = run.curves.ends.get(metric, 0.0) > steps[-1]
            how = "is no finite number after" if goes_on else "ends at"
            short[run.id] = f"{metric} {how} step {steps[-1]:g} of {last[key]:g}"
        else:
            whole.append(run.id)
    ends = [every[run_id][-1] for run_id in whole] or ([budget] if budget else []) or [x[-1] for x in every.values()]
    stop = float(min(ends, default=0.0))
    for run_id in [run_id for run_id in whole if every[run_id].size > 1]:
        if every[run_id][0] > (1 - curve_summaries.FINAL) * stop + spacing:
            late[run_id] = f"{metric} begins at step {every[run_id][0]:g}, and the shortest run ends at {stop:g}"
            whole.remove(run_id)
    begins = [every[run_id][0] for run_id in whole] or [min((x[0] for x in every.values()), default=0.0)]
    start = float(max(begins))
    if not several and stop < start <= stop + spacing:
        start, stop = stop, start
    reached = max((float(every[run.id][-1]) for run in ended), default=stop)
    setters = tuple(
        (run.group, run.seed)
        for run in ended
        if run.id not in {**late, **short} and every[run.id][-1] == stop < reached
    )
    return Cut(level, start, stop, reached, setters), late, short, spacing


def _of_most(ends: Sequence[tuple[object, float]]) -> dict[object, float]:
    """For each key, the end that most of its runs have: their median; of an even number, the value between the two in
    the middle that is nearest to the median over all keys."""
    middle = sorted(end for _, end in ends)[len(ends) // 2] if ends else 0.0
    ordered = {key: sorted(of_key) for key, of_key in grouped(ends).items()}
    return {key: min(max(middle, x[(len(x) - 1) // 2]), x[len(x) // 2]) for key, x in ordered.items()}


def _measured(
    runs: Sequence[Run], metric: str, incomplete: str, every: bool = False
) -> tuple[dict[str, tuple[Array, Array]], dict[str, str]]:
    """The points of each run's metric, and why a run has none. every: also of runs that did not end well."""
    curves: dict[str, tuple[Array, Array]] = {}
    reasons: dict[str, str] = {}
    known: dict[bytes, Array] = {}
    for run in runs:
        usable = every or run.problem is None or (incomplete == "carry" and run.state in _ENDED)
        if not usable or metric not in run.curves.values:
            reasons[run.id] = run.problem or "not recorded"
            continue
        try:
            steps, values = curve_summaries.measured(run.curves.steps, run.curves.values[metric])
        except NotEvaluable as error:
            reasons[run.id] = str(error)
            continue
        if steps is not run.curves.steps:  # of every tenth step, for example: one array for all such runs
            steps = known.setdefault(steps.tobytes(), steps)
        curves[run.id] = steps, values
    return curves, reasons


def value_of(
    common: CommonRange, run_id: str, summary: str, direction: str | None, threshold: float | None = None
) -> Value:
    """One run's summary on the common range: a registered one, or time_to with its threshold. direction: None where
    neither is better."""
    direction = direction or "higher"
    registered = registry.summary_of(summary)
    if run_id not in common.curves and not (registered and common.reaches(run_id, registered.until)):
        return Value(None, common.reasons.get(run_id, "not recorded"))
    known = common.known.setdefault((summary, direction, threshold), {})
    if run_id not in known:  # several hypotheses, at several levels, ask the same
        if registered is None:
            known[run_id] = _time_to(common, run_id, direction, threshold)
        else:
            runs = common.together[run_id] if registered.of_many and run_id in common.curves else [run_id]
            known |= zip(runs, _values(common, runs, registered, direction), strict=True)
    return known[run_id]


def _values(common: CommonRange, runs: Sequence[str], registered: registry.Summary, direction: str) -> list[Value]:
    """A summary of runs with the same steps, of several only if it is `of_many`."""
    curve = common.curve(runs[0], direction)
    if registered.of_many:
        curve = replace(curve, values=np.stack([common.points(run_id)[1] for run_id in runs]))
    try:
        with registry.blamed(f"summary {registered.name}", registered.function):
            numbers = np.reshape(registered.function(curve), len(runs)).astype(float)
    except NotEvaluable as error:
        return [Value(None, str(error))] * len(runs)
    return [
        Value(value, carried=run in common.carried)
        if np.isfinite(value)
        else Value(None, f"its {registered.name} is {value}")
        for run, value in zip(runs, numbers.tolist(), strict=True)
    ]


def _time_to(common: CommonRange, run_id: str, direction: str, threshold: float | None) -> Value:
    if threshold is None:
        return Value(None, "the threshold is not known: the baseline has no final value")
    curve = replace(common.curve(run_id, direction), stop=common.stop)
    axis, length = curve.measured
    by_points = axis is not curve.steps
    end = float(np.searchsorted(curve.steps, curve.stop, side="right")) if by_points else curve.stop
    earliest = min(common.earliest, curve.stop)
    try:
        reach = curve_summaries.time_to(axis, curve.values, threshold, window=length, budget=end, direction=direction)
        step = reach.time  # when the mean over the window reaches the threshold; at the end of the range if it does not
        if by_points:
            step = float(np.interp(step, axis, curve.steps)) if reach.reached else curve.stop
        step = max(step, earliest)
        time, budget = float(common.at(run_id, np.array([step]))[0]), common.budget
    except NotEvaluable as error:
        return Value(None, str(error))
    reached = reach.reached and time <= budget
    reason = None if reached else f"not reached by {budget:g}"
    return Value(min(time, budget), reason, reached, run_id in common.carried, reached and step == earliest)


def _first_window(curve: registry.Curve) -> float:
    """The step at which the first whole window of a curve ends."""
    axis, length = curve.measured
    return float(np.interp(curve_summaries.first_window(axis, length), axis, curve.steps))

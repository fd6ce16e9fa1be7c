"""The summaries of every run: each metric on the range of steps that its runs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.data.sweep import Cell, Run
from analysis.spec import registry
from analysis.spec.window import Window
from analysis.stats import curve_summaries
from analysis.stats.curve_summaries import NotEvaluable, TimeTo

Array = NDArray[np.float64]
#: The metric behind each axis but `steps`.
CLOCKS = {
    "samples": "samples/total",
    "seconds": "cost/wall_seconds",
    "device_seconds": "cost/device_seconds",
    "flops": "cost/flops",
}
# States in which a run ended before its budget: with `incomplete: carry` its last value stands for the rest.
_ENDED = frozenset({"failed", "diverged", "cancelled", "lost"})
_TOGETHER = 64  # curves of some thousand points: their intermediate arrays stay in the processor's cache


@dataclass(frozen=True)
class Value:
    """A run's summary, or why it has none.

    reached: for time-to, whether the threshold was; `value` is then cut at the budget.
    """

    value: float | None
    reason: str | None = None
    reached: bool | None = None
    carried: bool = False


@dataclass(frozen=True)
class CommonRange:
    """The steps on which all usable runs have the metric, and the curves cut to it.

    curves[run id]: (steps, values). reasons[run id]: why a run is not among them. carried: runs whose last value stands
    for the steps they do not have. absent: groups of which no run has the metric though some ended well. clocks[run
    id]: where times are not in steps, (steps, what passed by then), of the metric `clock`. ends[run id]: where the
    range of runs of its planned length ends, if runs have several by design; `stop` is that of the shortest. known:
    the summaries taken so far.
    """

    metric: str
    start: float
    stop: float
    curves: Mapping[str, tuple[Array, Array]]
    reasons: Mapping[str, str]
    carried: frozenset[str]
    absent: frozenset[str]
    clocks: Mapping[str, tuple[Array, Array]] | None = None
    clock: str | None = None
    ends: Mapping[str, float] = field(default_factory=dict)
    known: dict[tuple[object, ...], Value] = field(default_factory=dict, repr=False, compare=False)

    def end(self, run_id: str) -> float:
        """Where the range ends for a run."""
        return self.ends.get(run_id, self.stop)

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


@dataclass(frozen=True)
class Extent:
    """What a window is on the curves of a metric: its points and its steps, the least and the most over runs. distance:
    the median distance of two points, likewise. fewest: the points of the run that has the fewest."""

    points: tuple[int, int]
    steps: tuple[float, float]
    distance: tuple[float, float]
    fewest: int


def window_extent(common: CommonRange, window: Window) -> Extent | None:
    """What the window is on a metric; None if no run has two points of it on the common range."""
    curves = []
    for steps in {id(steps): steps for steps, _ in common.curves.values()}.values():
        whole = registry.Curve(steps, steps, common.start, common.stop, window, "higher")
        if ((steps >= common.start) & (steps <= common.stop)).any():
            curves.append(whole.inside)
    if all(curve.steps.size < 2 for curve in curves):
        return None
    points, lengths, distances = zip(*((curve.points, curve.length, curve.spacing) for curve in curves), strict=True)
    return Extent(
        points=(min(points), max(points)),
        steps=(min(lengths), max(lengths)),
        distance=(min(distances), max(distances)),
        fewest=min(curve.steps.size for curve in curves),
    )


def common_range(
    runs: Sequence[Run],
    metric: str,
    incomplete: str,
    budget: float | None = None,
    axis: str = "steps",
    lengths: str | None = None,
) -> CommonRange:
    """Cut every run's metric to the common range; nothing is extrapolated unless `incomplete` is "carry".

    A run is complete when it is done and reaches as far (within one logging interval, of irregular logs the longest)
    as the furthest of its group and cell. The range is from the latest beginning to the earliest end of complete runs;
    of runs with one value each, from the first of these values to the last. A metric may begin at another step in every
    run, as a budget does after its warm-up; a run whose metric begins late is left out only where its first lines are
    lost, or where it has no whole final value. lengths: the factor, if there is one, whose levels are planned numbers
    of steps: runs of one level then have an end of their own.
    """
    curves, reasons = _measured(runs, metric, incomplete)
    several = {id(steps): steps for steps, _ in curves.values() if steps.size > 1}
    spacing = max((curve_summaries.interval(steps) for steps in several.values()), default=0.0)
    if not several:  # one value for each run, as of an evaluation at the end: one is as good as another near the end
        spacing = curve_summaries.FINAL * max((float(steps[-1]) for steps, _ in curves.values()), default=0.0)
    first: dict[object, float] = {}  # by group and cell: where the metric begins and ends, and where the log begins
    last: dict[object, float] = {}
    opened: dict[object, float] = {}
    for run in runs:
        if run.id in curves and run.problem is None:
            key, steps = (run.group, run.cell), curves[run.id][0]
            first[key] = min(first.get(key, np.inf), float(steps[0]))
            opened[key] = min(opened.get(key, np.inf), float(run.curves.steps[0]))
            last[key] = max(last.get(key, -np.inf), float(steps[-1]))
    short: dict[str, str] = {}
    whole: list[tuple[float, float]] = []
    longest: dict[Any, list[float]] = {}  # by planned length: where the metric of whole runs ends
    for run in runs:
        if run.id not in curves:
            continue
        key, steps = (run.group, run.cell), curves[run.id][0]
        late = key in first and steps[0] > first[key] + spacing
        first_lines_lost = late and run.curves.steps[0] > opened[key] + spacing
        if first_lines_lost or (late and steps[0] > (1 - curve_summaries.FINAL) * last[key]):
            reasons[run.id] = f"{metric} begins at step {steps[0]:g}, others at {first[key]:g}"
            del curves[run.id]
        elif run.problem is not None:
            short[run.id] = run.problem
        elif steps[-1] < last[key] - spacing:
            short[run.id] = f"{metric} ends at step {steps[-1]:g} of {last[key]:g}"
        else:
            whole.append((float(steps[0]), float(steps[-1])))
            longest.setdefault(dict(run.cell).get(lengths or ""), []).append(float(steps[-1]))
    start = max((begin for begin, _ in whole), default=min((float(s[0]) for s, _ in curves.values()), default=0.0))
    ends = [end for _, end in whole] or ([budget] if budget else []) or [float(s[-1]) for s, _ in curves.values()]
    stop = min(ends, default=0.0)
    if not several and stop < start <= stop + spacing:
        start, stop = stop, start
    several_lengths = lengths is not None and len(longest) > 1
    ends_of = {length: min(ends) for length, ends in longest.items()} if several_lengths else {}
    planned = {run.id: ends_of.get(dict(run.cell).get(lengths or ""), stop) for run in runs} if ends_of else {}
    carried = set()
    for run_id in short:
        steps, values = curves[run_id]
        if incomplete != "carry":
            reasons[run_id] = short[run_id]
            del curves[run_id]
        elif steps[-1] < (end := planned.get(run_id, stop)):
            more = np.append(np.arange(steps[-1] + max(spacing, 1.0), end, max(spacing, 1.0)), end)
            curves[run_id] = np.append(steps, more), np.append(values, np.full(more.size, values[-1]))
            carried.add(run_id)
    ended = {run.group for run in runs if run.problem is None}
    # A group whose runs all failed before the metric could begin is not absent: it is not known.
    absent = frozenset(ended - {run.group for run in runs if metric in run.curves.values})
    clock = CLOCKS.get(axis)
    clocks = None if clock is None else _measured(runs, clock, "carry", every=True)[0]
    return CommonRange(metric, start, stop, curves, reasons, frozenset(carried), absent, clocks, clock, planned)


_SPENT = 200  # points of a curve over what a run had spent


def over_cost(common: CommonRange, runs: Sequence[Run], axis: str) -> tuple[CommonRange, dict[Cell, float]] | None:
    """The same curves over what passed on an axis of CLOCKS, as shares of the least that any run of the same cell spent
    in all, and this least by cell; None if the runs have no such range. A cell is of the factors that every group has.
    A run that did not record the axis has no curve."""
    clocks = _measured(runs, CLOCKS[axis], "carry", every=True)[0]
    spent = {
        run_id: np.interp(steps, *clocks[run_id]) for run_id, (steps, _) in common.curves.items() if run_id in clocks
    }
    labels: dict[str, set[str]] = {}
    for run in runs:
        labels.setdefault(run.group, set()).update(label for label, _ in run.cell)
    shared = set.intersection(*labels.values()) if labels else set()
    cell_of = {run.id: tuple(item for item in run.cell if item[0] in shared) for run in runs}
    least: dict[Cell, float] = {}
    for run_id, one in spent.items():
        least[cell_of[run_id]] = min(least.get(cell_of[run_id], np.inf), float(one[-1]))
    share = {run_id: one / least[cell_of[run_id]] for run_id, one in spent.items() if least[cell_of[run_id]] > 0}
    start = max((float(one[0]) for one in share.values()), default=1.0)
    if start >= 1:
        return None
    points = np.linspace(start, 1.0, _SPENT)
    curves = {run_id: (points, np.interp(points, one, common.curves[run_id][1])) for run_id, one in share.items()}
    without = {run_id: f"{CLOCKS[axis]} is not recorded" for run_id in common.curves if run_id not in share}
    reasons = {**common.reasons, **without}
    return CommonRange(common.metric, start, 1.0, curves, reasons, common.carried, common.absent), least


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
    common: CommonRange, run_id: str, summary: str, *, window: Window, direction: str, threshold: float | None = None
) -> Value:
    """One run's summary on the common range: a registered one, or time_to with its threshold."""
    if run_id not in common.curves:
        return Value(None, common.reasons.get(run_id, "not recorded"))
    asked = (run_id, summary, window, direction, threshold)
    if asked not in common.known:  # several hypotheses, at several levels, ask the same
        registered = registry.summary_of(summary)
        if registered is None:
            common.known[asked] = _time_to(common, run_id, window, direction, threshold)
        else:
            runs = _on_same_steps(common, run_id) if registered.of_many else [run_id]
            for run, value in zip(runs, _values(common, runs, registered, window, direction), strict=True):
                common.known[run, *asked[1:]] = value
    return common.known[asked]


def _on_same_steps(common: CommonRange, run_id: str) -> list[str]:
    """This run and others on the same steps, which nearly always all runs are; a limited number, for the processor's
    cache."""
    steps, end = common.curves[run_id][0], common.end(run_id)
    alike = [run for run, (other, _) in common.curves.items() if other is steps and common.end(run) == end]
    first = alike.index(run_id) // _TOGETHER * _TOGETHER
    return alike[first : first + _TOGETHER]


def _values(
    common: CommonRange, runs: Sequence[str], registered: registry.Summary, window: Window, direction: str
) -> list[Value]:
    """A summary of runs with the same steps, of several only if it is `of_many`."""
    steps, values = common.curves[runs[0]]
    if registered.of_many:
        values = np.stack([common.curves[run_id][1] for run_id in runs])
    try:
        numbers = np.atleast_1d(
            registered.function(registry.Curve(steps, values, common.start, common.end(runs[0]), window, direction))
        )
    except NotEvaluable as error:
        return [Value(None, str(error))] * len(runs)
    return [
        Value(value, carried=run in common.carried)
        if np.isfinite(value)
        else Value(None, f"its {registered.name} is {value}")
        for run, value in zip(runs, numbers.tolist(), strict=True)
    ]


def _time_to(common: CommonRange, run_id: str, window: Window, direction: str, threshold: float | None) -> Value:
    if threshold is None:
        return Value(None, "the threshold is not known: the baseline has no final value")
    steps, values = common.curves[run_id]
    try:
        reach = _reach(registry.Curve(steps, values, common.start, common.stop, window, direction), threshold)
        time, budget = float(common.at(run_id, np.array([reach.time]))[0]), common.budget
    except NotEvaluable as error:
        return Value(None, str(error))
    reached = reach.reached and time <= budget
    return Value(
        min(time, budget), None if reached else f"not reached by {budget:g}", reached, run_id in common.carried
    )


def _reach(curve: registry.Curve, threshold: float) -> TimeTo:
    """When the mean over the window reaches the threshold, in steps; censored at the end of the common range."""
    axis, length = curve.measured
    known = int(np.searchsorted(curve.steps, curve.stop, side="right"))
    budget = curve.stop if axis is curve.steps else float(known)
    reach = curve_summaries.time_to(
        axis, curve.values, threshold, window=length, budget=budget, direction=curve.direction
    )  # fmt: skip
    if axis is curve.steps:
        return reach
    return TimeTo(float(np.interp(reach.time, axis, curve.steps)) if reach.reached else curve.stop, reach.reached)

"""The summaries of every run: each metric on the range of steps that its runs have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.data.sweep import Run
from analysis.stats import curve_summaries, trend
from analysis.stats.curve_summaries import NotEvaluable, TimeTo

Array = NDArray[np.float64]
CLOCK = "samples/total"  # what passes on the axis `samples`
# Ended for good before their budget: with `incomplete: carry` their last value stands for the rest of it.
_ENDED = frozenset({"done", "failed", "diverged", "cancelled", "lost"})

# Summaries of all steps of the range: of steps (n,), values (n,) and the window.
_WHOLE: Mapping[str, Callable[[Array, Array, int], float]] = {
    "mean": lambda steps, values, window: float(values.mean()),
    "slope": lambda steps, values, window: trend.theil_sen(steps, values),
    "trend": lambda steps, values, window: trend.kendall(steps, values),
    "lowest_relative": lambda steps, values, window: curve_summaries.lowest_relative(values),
    "largest_change": lambda steps, values, window: curve_summaries.largest_change(steps, values, window),
}


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
    id]: where times are not in steps, (steps, what passed by then). known: the summaries taken so far.
    """

    metric: str
    start: float
    stop: float
    curves: Mapping[str, tuple[Array, Array]]
    reasons: Mapping[str, str]
    carried: frozenset[str]
    absent: frozenset[str]
    clocks: Mapping[str, tuple[Array, Array]] | None = None
    known: dict[tuple[object, ...], Value] = field(default_factory=dict, repr=False, compare=False)

    def at(self, run_id: str, steps: Array) -> Array:
        """What the axis shows at these steps of a run. Raises NotEvaluable where the run did not record it."""
        if self.clocks is None:
            return steps
        if run_id not in self.clocks:
            raise NotEvaluable(f"{CLOCK} is not recorded")
        return np.interp(steps, *self.clocks[run_id])

    @property
    def budget(self) -> float:
        """The end of the range on the axis: the least that any run has passed by then."""
        if self.clocks is None:
            return self.stop
        known = [run_id for run_id in self.curves if run_id in self.clocks]
        return min((float(self.at(run_id, np.array([self.stop]))[0]) for run_id in known), default=0.0)


def common_range(
    runs: Sequence[Run], metric: str, incomplete: str, budget: float | None = None, axis: str = "steps"
) -> CommonRange:
    """Cut every run's metric to the common range; nothing is extrapolated unless `incomplete` is "carry".

    A run is complete when it is done and reaches as far (within one logging interval) as the furthest of its group and
    cell. The range is from the latest beginning to the earliest end of complete runs. A metric may begin at another
    step in every run, as a budget does after its warm-up; a run whose metric begins late is left out only where its
    first lines are lost, or where it has no whole final value.
    """
    reasons: dict[str, str] = {}
    found: dict[str, tuple[Array, Array]] = {}
    known: dict[bytes, Array] = {}
    for run in runs:
        carry = incomplete == "carry" and run.state in _ENDED
        if run.problem is not None and not carry:
            reasons[run.id] = run.problem
        elif metric not in run.curves.values:
            reasons[run.id] = run.problem or "not recorded"
        else:
            try:
                steps, values = curve_summaries.measured(run.curves.steps, run.curves.values[metric])
            except NotEvaluable as error:
                reasons[run.id] = str(error)
            else:
                if steps is not run.curves.steps:  # of every tenth step, say: again one array for all such runs
                    steps = known.setdefault(steps.tobytes(), steps)
                found[run.id] = steps, values
    several = {id(steps): steps for steps, _ in found.values() if steps.size > 1}
    spacing = max(map(_spacing, several.values()), default=0.0)
    first: dict[object, float] = {}
    opened: dict[object, float] = {}
    last: dict[object, float] = {}
    for run in runs:
        if run.id in found and run.problem is None:
            key, steps = (run.group, run.cell), found[run.id][0]
            first[key] = min(first.get(key, np.inf), float(steps[0]))
            opened[key] = min(opened.get(key, np.inf), float(run.curves.steps[0]))
            last[key] = max(last.get(key, -np.inf), float(steps[-1]))
    short: dict[str, str] = {}
    whole: list[tuple[float, float]] = []
    for run in runs:
        if run.id not in found:
            continue
        key, steps = (run.group, run.cell), found[run.id][0]
        late = key in first and steps[0] > first[key] + spacing
        beheaded = late and run.curves.steps[0] > opened[key] + spacing
        if beheaded or (late and steps[0] > (1 - curve_summaries.FINAL) * last[key]):
            reasons[run.id] = f"{metric} begins at step {steps[0]:g}, others at {first[key]:g}"
            del found[run.id]
        elif run.problem is not None:
            short[run.id] = run.problem
        elif steps[-1] < last[key] - spacing:
            short[run.id] = f"{metric} ends at step {steps[-1]:g} of {last[key]:g}"
        else:
            whole.append((float(steps[0]), float(steps[-1])))
    start = max((begin for begin, _ in whole), default=min((float(s[0]) for s, _ in found.values()), default=0.0))
    ends = [end for _, end in whole] or ([budget] if budget else []) or [float(s[-1]) for s, _ in found.values()]
    stop = min(ends, default=0.0)
    curves: dict[str, tuple[Array, Array]] = {}
    carried = set()
    for run_id, (steps, values) in found.items():
        if run_id in short and incomplete != "carry":
            reasons[run_id] = short[run_id]
            continue
        if run_id in short and steps[-1] < stop:
            more = np.append(np.arange(steps[-1] + max(spacing, 1.0), stop, max(spacing, 1.0)), stop)
            steps, values = np.append(steps, more), np.append(values, np.full(more.size, values[-1]))
            carried.add(run_id)
        curves[run_id] = steps, values
    clocks = None if axis == "steps" else _clocks(runs)
    return CommonRange(metric, start, stop, curves, reasons, frozenset(carried), _absent(runs, metric), clocks)


def _spacing(steps: Array) -> float:
    """The median of the steps between points."""
    gaps = np.diff(steps)
    return float(gaps[0] if (gaps == gaps[0]).all() else np.median(gaps))


def _clocks(runs: Sequence[Run]) -> dict[str, tuple[Array, Array]]:
    found = {}
    for run in runs:
        with contextlib.suppress(NotEvaluable, KeyError):
            found[run.id] = curve_summaries.measured(run.curves.steps, run.curves.values[CLOCK])
    return found


def _absent(runs: Sequence[Run], metric: str) -> frozenset[str]:
    """A group whose runs all failed before the metric could begin is not absent: nobody knows."""
    ended = {run.group for run in runs if run.problem is None}
    return frozenset(ended - {run.group for run in runs if metric in run.curves.values})


# Summaries of which the steps alone say whether there is one: of the range, steps (n,) and values (runs, n).
_TOGETHER: Mapping[str, Callable[[CommonRange, Array, Array], Array]] = {
    "final": lambda common, steps, values: curve_summaries.finals(steps, values, common.stop),
    "auc": lambda common, steps, values: curve_summaries.areas(steps, values, common.start, common.stop),
}
_SOME = 64  # curves, of some thousand points: what is made of them on the way stays in the processor's cache


def value_of(
    common: CommonRange, run_id: str, summary: str, *, window: int, direction: str, threshold: float | None = None
) -> Value:
    """One run's summary on the common range: final, auc, best, early, early_variance, time_to or one of _WHOLE;
    `window` is in steps."""
    if run_id not in common.curves:
        return Value(None, common.reasons.get(run_id, "not recorded"))
    if summary in _TOGETHER:
        if (run_id, summary) not in common.known:
            common.known.update(_together(common))
        return common.known[run_id, summary]
    asked = (run_id, summary, window, direction, threshold)
    if asked not in common.known:  # several hypotheses, at several levels, ask the same
        common.known[asked] = _value_of(common, run_id, summary, window, direction, threshold)
    return common.known[asked]


def _together(common: CommonRange) -> Iterator[tuple[tuple[str, str], Value]]:
    """The summaries of _TOGETHER of every run: those on the same steps, which nearly always are all, some at once."""
    alike: dict[int, list[str]] = {}
    for run_id, (steps, _) in common.curves.items():
        alike.setdefault(id(steps), []).append(run_id)
    for run_ids in (ids[first : first + _SOME] for ids in alike.values() for first in range(0, len(ids), _SOME)):
        steps, values = common.curves[run_ids[0]][0], np.stack([common.curves[run_id][1] for run_id in run_ids])
        for summary, of in _TOGETHER.items():
            found: list[tuple[float | None, str | None]]
            try:
                found = [(value, None) for value in of(common, steps, values).tolist()]
            except NotEvaluable as error:
                found = [(None, str(error))] * len(run_ids)
            for run_id, (value, reason) in zip(run_ids, found, strict=True):
                carried = value is not None and run_id in common.carried
                yield (run_id, summary), Value(value, reason, carried=carried)


def _value_of(
    common: CommonRange, run_id: str, summary: str, window: int, direction: str, threshold: float | None
) -> Value:
    steps, values = common.curves[run_id]
    carried = run_id in common.carried
    try:
        if summary == "best":
            spacing = _spacing(steps) if steps.size > 1 else 1.0
            points = max(1, round(window / spacing))  # a metric of every tenth step has two points in twenty steps
            return Value(
                curve_summaries.best(values[_inside(common, steps)], points, direction=direction), carried=carried
            )
        if summary in ("early", "early_variance"):
            phase = curve_summaries.early(steps, values, common.stop)
            if summary == "early":
                return Value(phase.mean, carried=carried)
            if phase.step_variance == np.inf:
                raise NotEvaluable("changes too large to square")
            why = None if phase.step_variance is not None else f"{phase.n} values in the first tenth: three are needed"
            return Value(phase.step_variance, why, carried=carried)
        if summary in _WHOLE:
            inside = _inside(common, steps)
            return Value(_WHOLE[summary](steps[inside], values[inside], window), carried=carried)
        if threshold is None:
            return Value(None, "the threshold is not known: the baseline has no final value")
        reach: TimeTo = curve_summaries.time_to(
            steps, values, threshold, window=window, budget=common.stop, direction=direction
        )
        time, budget = float(common.at(run_id, np.array([reach.time]))[0]), common.budget
    except NotEvaluable as error:
        return Value(None, str(error))
    reached = reach.reached and time <= budget
    return Value(min(time, budget), None if reached else f"not reached by {budget:g}", reached, carried)


def _inside(common: CommonRange, steps: Array) -> NDArray[np.bool_]:
    inside = np.asarray((steps >= common.start) & (steps <= common.stop))
    if not inside.any():
        raise NotEvaluable(f"no value from {common.start:g} to {common.stop:g}, the range of all runs")
    return inside

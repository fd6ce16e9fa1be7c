"""How a comparison would end if the excluded runs had ended at extreme values.

Leaving out a run is harmless only if the reason has nothing to do with its result. Runs that fail are often the worst
ones, and then the rest of their method looks better than the method is. No test shows this, so the report shows how far
it could go: each excluded run counts once with the lowest and once with the highest value that any run recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.data.run_values import Value
from analysis.findings.outcomes import Outcome
from analysis.findings.study import Block, Comparison, Study, versus
from analysis.spec.metric_catalog import WIN_RATE
from analysis.stats.curve_summaries import LARGEST

_EVEN = 0.5  # the win rate of the baseline against itself
_DECIDED = (Outcome.HIGHER, Outcome.LOWER, Outcome.EQUAL)


@dataclass(frozen=True)
class WorstCase:
    """A comparison of which some runs are excluded, with a value for each of them.

    given: the comparison without them. excluded: their number in both groups. lowest, highest: the values. low: the
    comparison if the group's excluded runs get the lowest value and the baseline's the highest; high: the reverse.
    """

    given: Comparison
    excluded: int
    lowest: float
    highest: float
    low: Comparison
    high: Comparison

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest mean difference that the excluded runs can bring about."""
        return self.low.difference, self.high.difference

    @property
    def overturned(self) -> Comparison | None:
        """The extreme comparison whose outcome differs from the given one. None if both have the given outcome, or if
        the given comparison decides nothing."""
        if self.given.outcome not in _DECIDED:
            return None
        ends = (self.high, self.low) if self.given.outcome is Outcome.LOWER else (self.low, self.high)
        return next((end for end in ends if end.outcome is not self.given.outcome), None)


def worst_cases(study: Study, block: Block) -> dict[str, WorstCase]:
    """The worst case of each comparison of a block that has a difference but lacks planned runs, by group. Empty if no
    run has a value, such as a time that no run reached.

    Not counted as excluded: runs of groups that never record the metric, and runs that were never planned. Of a group
    at its best level of a factor, only the runs that judge it count, and the level stays as chosen. The win rate of the
    baseline is 0.5 by definition if the others are judged against it.
    """
    sweep, ends = study.sweep, _range(study, block)
    against = {c.group: c.baseline for c in block.comparisons}
    gone = {
        estimate.group: {
            run.id
            for run in sweep.runs_of(estimate.group)
            if block.values[run.id].value is None and (run.seed, run.cell) in block.selected[estimate.group].places
        }
        for estimate in block.estimates
        if estimate.recorded
    }
    known = {block.values[run.id].value for c in block.comparisons for run in sweep.runs_of(c.baseline)}
    fixed = Value(_EVEN) if block.measure.metric == WIN_RATE and known <= {_EVEN, None} else None
    unknown = {c.group: gone.get(c.group, set()) | (set() if fixed else gone.get(c.baseline, set()))
               for c in block.comparisons}  # fmt: skip
    lacking = [c for c in block.comparisons if c.result.mean_difference is not None and unknown[c.group]]
    if ends is None or not lacking:
        return {}
    baselines = set(against.values())

    def filled(group: Value, baseline: Value) -> Mapping[str, Comparison]:
        of_baseline = fixed or baseline
        values = {
            run: of_baseline if name in baselines else group for name, runs in gone.items() for run in sorted(runs)
        }
        common = study.ranges[block.measure.metric]
        made = versus(study.sweep, study.settings, common, block.measure, against, values)
        return {comparison.group: comparison for comparison in made.comparisons}

    lowest, highest = Value(ends[0], reached=True), Value(ends[1], reached=False)
    low, high = filled(lowest, highest), filled(highest, lowest)
    return {c.group: WorstCase(c, len(unknown[c.group]), *ends, low[c.group], high[c.group]) for c in lacking}


def _range(study: Study, block: Block) -> tuple[float, float] | None:
    """The lowest and highest value that any run recorded. For times: the earliest time and the budget."""
    if block.measure.summary == "time_to":
        times = [value.value for value in block.values.values() if value.value is not None]
        return (min(times), block.budget) if times else None
    lowest, highest = np.inf, -np.inf
    for run in study.sweep.runs:
        recorded = run.curves.values.get(block.measure.metric, np.empty(0))
        usable = recorded[np.abs(recorded) < LARGEST]
        lowest = min(lowest, float(usable.min(initial=np.inf)))
        highest = max(highest, float(usable.max(initial=-np.inf)))
    return (lowest, highest) if lowest <= highest else None

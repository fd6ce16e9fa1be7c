"""Every method in one row: all metrics, what it costs beside the baseline, and what it reaches for that cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.data import cells
from analysis.data.sweep import Run, Sweep
from analysis.findings import ratios
from analysis.findings.study import Block, Study
from analysis.numbers import format_estimate, format_number
from analysis.spec.metric_catalog import capital, describe
from analysis.stats import t_test
from analysis.tables import wording
from analysis.tables.levels import averaged_over
from analysis.tables.table import Entry, Table, ends, table

_MOST = 8  # levels of a factor that have a row each
_CLOCK = "cost/wall_seconds"
#: What a run costs: metrics that only grow, with the heading of their ratio to the baseline's.
_COSTS = {"cost/flops": "operations", "cost/device_seconds": "device time"}


@dataclass(frozen=True)
class Part:
    """The runs of a row: all of a group, or those at one level (label of the factor, level) of its only factor."""

    group: str
    label: str
    runs: Sequence[Run]
    level: tuple[str, Any] | None = None

    def baseline(self, sweep: Sweep) -> Part:
        """The runs of the baseline that a row is relative to: those at the same level, if it has that level."""
        group = str(sweep.baseline)
        runs = sweep.runs_of(group)
        at = [run for run in runs if self.level in run.cell] if self.level is not None else []
        return Part(group, sweep.label(group), at or runs, self.level if at else None)


def overview(study: Study) -> Table | None:
    """One row for each method, and for each level of the only factor that a method has several levels of; None for one
    metric, which the main table has."""
    if len(study.settings.metrics) < 2:
        return None
    blocks = [block for block in study.blocks if block.measure.summary == "final"]
    costs = [key for key in _COSTS if any(key in run.curves.values for run in study.sweep.runs)]
    compared = study.sweep.baseline is not None and len(study.sweep.groups) > 1
    timed = [block for block in study.blocks if block.measure.summary == "time_to"][:1] if compared else []
    clocked = any(_CLOCK in run.curves.values for run in study.sweep.runs)
    entries = [_row(study, part, blocks, timed, clocked, costs if compared else []) for part in _parts(study)]
    columns = ["method", *(capital(describe(block.measure.metric).label) for block in blocks)]
    columns += ["sample efficiency" if block.measure.axis == "samples" else "efficiency" for block in timed]
    columns += ["training time, hours"] if clocked else []
    columns += [f"relative {_COSTS[key]}" for key in costs if compared]
    columns += ["efficiency score"] if costs and compared else []
    notes = [
        "Final values: mean over seeds, with the t interval of each method alone and, after ±, the standard deviation "
        "over seeds. The main table compares them."
    ]
    for title in (block.measure.title for block in timed):
        notes.append(f"Efficiency: {title}, of the baseline over those of the method (section Efficiency).")
    if costs and compared:
        base, metric = study.sweep.label(str(study.sweep.baseline)), describe(study.settings.metric).label
        notes.append(
            f"Relative costs: the mean cost of the runs that ended well, divided by that of {base} (at the same level, "
            f"if it has that level). The efficiency score is the final {metric} relative to that of {base}, divided by "
            f"the relative {_COSTS[costs[0]]}; it needs values above 0. Neither is a test."
        )
    return table("overview", "Every method in one row", columns, entries, notes)


def _parts(study: Study) -> Iterator[Part]:
    for group in study.sweep.groups:
        runs = study.sweep.runs_of(group)
        yield Part(group, study.sweep.label(group), runs)
        varied = averaged_over(study, study.primary, group)
        if len(varied) != 1:
            continue
        levels = list(dict.fromkeys(dict(run.cell)[varied[0]] for run in runs))
        for level in levels if len(levels) <= _MOST else ():
            item = (varied[0], level)
            at = [run for run in runs if item in run.cell]
            yield Part(group, f"{study.sweep.label(group)}, {wording.factors((item,))}", at, item)


def _row(
    study: Study, part: Part, blocks: Sequence[Block], timed: Sequence[Block], clocked: bool, costs: Sequence[str]
) -> Entry:
    row = [part.label]
    record: dict[str, Any] = {"method": part.label, "group": part.group}
    for block in blocks:
        mean, interval = _value(study, block, part)
        values = block.estimate(part.group).values if part.level is None else ()
        sd = None if len(values) < 2 else 0.0 if t_test.constant(np.asarray(values)) else float(np.std(values, ddof=1))
        row.append((format_estimate(mean, interval) or "-") + (f" ± {format_number(sd, 2)}" if sd else ""))
        key = block.measure.metric
        record |= {key: mean, **ends(interval, f"{key} low", f"{key} high"), f"{key} sd": sd}
    for block in timed:
        comparison = block.comparison(part.group) if part.level is None else None
        ratio = ratios.of_comparison(comparison, block.budget, inverse=True) if comparison else None
        row.append((wording.bounded(ratio.value, ratio.interval, ratio.bound) or "-") if ratio else "")
        record["efficiency"] = ratio.value if ratio else None
    if clocked:
        seconds = _spent(part.runs, _CLOCK)
        record["training_hours"] = None if seconds is None else seconds / 3600
        row.append(format_number(record["training_hours"], 3) or "-")
    relative = {key: _relative(study, part, key) for key in costs}
    row += [format_number(value, 3) or "-" for value in relative.values()]
    record |= {f"relative {_COSTS[key]}": value for key, value in relative.items()}
    if costs:
        score = _score(study, blocks, part, next(iter(relative.values())))
        row.append(format_number(score, 3) or "-")
        record["efficiency_score"] = score
    return part.group, row, record


def _value(study: Study, block: Block, part: Part) -> tuple[float | None, tuple[float, float] | None]:
    estimate = block.estimate(part.group)
    if part.level is None:
        return estimate.mean, estimate.interval
    means = list(cells.means(cells.keep_runs(part.runs, block.values)).values()) if estimate.recorded else []
    return (float(np.mean(means)), t_test.t_interval(means, study.settings.alpha)) if means else (None, None)


def _spent(runs: Sequence[Run], key: str) -> float | None:
    """The mean of what runs that ended well had spent at their end."""
    ends_at = [float(run.curves.values[key][-1]) for run in runs if run.problem is None and key in run.curves.values]
    known = [value for value in ends_at if np.isfinite(value)]
    return float(np.mean(known)) if known else None


def _relative(study: Study, part: Part, key: str) -> float | None:
    used, base = (_spent(side.runs, key) for side in (part, part.baseline(study.sweep)))
    return used / base if used is not None and base else None


def _score(study: Study, blocks: Sequence[Block], part: Part, cost: float | None) -> float | None:
    primary = next(block for block in blocks if block.measure.metric == study.settings.metric)
    mean, base = (_value(study, primary, one)[0] for one in (part, part.baseline(study.sweep)))
    if mean is None or base is None or not cost or mean <= 0 or base <= 0:
        return None
    return (mean / base if study.settings.direction == "higher" else base / mean) / cost

"""All methods at once: each in one row, with its final values, how much sooner it is than the baseline, and its time;
and every two of them on the primary measure, with the ranks that this leaves open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.findings import ratios
from analysis.findings.study import Study
from analysis.spec.metric_catalog import CLOCKS, capital, describe
from analysis.stats import t_test
from analysis.stats.numbers import format_estimate, format_level, format_number
from analysis.tables import wording
from analysis.tables.comparison import COLUMNS, comparison_cells, figures
from analysis.tables.table import Entry, Table, ends, table
from launcher.run.lifecycle import HOUR_S


def overview(study: Study) -> Table | None:
    """One row for each method; None for one metric, which the main table has."""
    if len(study.settings.metrics) < 2:
        return None
    sweep, blocks = study.sweep, [block for block in study.blocks if block.measure.summary == "final"]
    timed = [block for block in study.blocks if block.measure.summary == "time_to" and block.comparisons][:1]
    clock = CLOCKS["seconds"]
    clocked = any(clock in run.curves.values for run in sweep.runs)
    entries: list[Entry] = []
    for group in sweep.groups:
        row, record = [sweep.label(group)], dict[str, Any](method=sweep.label(group), group=group)
        for block in blocks:
            estimate, key = block.estimate(group), block.measure.metric
            values = np.asarray(estimate.values)
            sd = None if values.size < 2 else 0.0 if t_test.constant(values) else float(np.std(values, ddof=1))
            value = format_estimate(estimate.mean, estimate.interval) or "-"
            row.append(value + (f" ± {format_number(sd, 2)}" if sd else ""))
            record |= {key: estimate.mean, **ends(estimate.interval, f"{key} low", f"{key} high"), f"{key} sd": sd}
        for block in timed:
            comparison = block.comparison(group)
            ratio = ratios.of_comparison(comparison, block.budget, inverse=True) if comparison else None
            row.append((wording.bounded(ratio.value, ratio.interval, ratio.bound) or "-") if ratio else "")
            record["efficiency"] = ratio.value if ratio else None
        if clocked:
            ended = [run.curves.values for run in sweep.runs_of(group) if run.problem is None]
            last = [float(values[clock][-1]) for values in ended if clock in values]
            known = [seconds for seconds in last if np.isfinite(seconds)]
            record["training_hours"] = float(np.mean(known)) / HOUR_S if known else None
            row.append(format_number(record["training_hours"], 3) or "-")
        entries.append((group, row, record))
    columns = ["method", *(capital(describe(block.measure.metric).label) for block in blocks)]
    columns += ["sample efficiency" if block.measure.axis == "samples" else "efficiency" for block in timed]
    columns += ["training time, hours"] if clocked else []
    notes = [
        "Final values: mean over seeds, with the t interval of each method alone and, after ±, the standard deviation "
        "over seeds. The main table compares them."
    ]
    for block in timed:
        title = block.measure.title
        notes.append(f"Efficiency: {title}, of the baseline over those of the method (section Efficiency).")
    return table("overview", "Every method in one row", columns, entries, notes)


def all_pairs_tables(study: Study) -> list[Table]:
    """A row for every two groups, and the ranks of each group; without a row unless all pairs are compared."""
    block, sweep, alpha = study.primary, study.sweep, study.settings.alpha
    pairs: list[Entry] = []
    ranked: list[Entry] = []
    asked = study.settings.compare == "all_pairs"
    for c in block.every if asked else ():
        found = comparison_cells(study, block.measure, c)
        row = (sweep.label(c.group), sweep.label(c.baseline), c.sizes, *found)
        record = {"group": c.group, "against": c.baseline, **figures(c, block.measure), "verdict": found[-1]}
        pairs.append(("", row, record))
    order = {e.group: -block.measure.sign * e.mean for e in block.estimates if e.mean is not None}
    for group in sorted(order, key=order.__getitem__) if asked else ():
        (first, last), e = block.ranks[group], block.estimate(group)
        shown = str(first) if first == last else f"{first} to {last}"
        record = {"group": group, "mean": e.mean, **ends(e.interval), "first_rank": first, "last_rank": last}
        ranked.append((group, (sweep.label(group), format_estimate(e.mean, e.interval) or "-", shown), record))
    best = {"higher": "best", "lower": "best", None: "highest"}[block.measure.better]
    notes = (
        f"The {block.measure.title}: method minus the other, of every two methods. {wording.standard(study)}",
        f"Ranks: those that no decided pair excludes; 1 is the {best}. They hold for all methods "
        f"together in at least {format_level(alpha)} of experiments, because the pairs are one family.",
    )
    return [
        table("all_pairs", "Every two methods", ("method", "against", "seeds", *COLUMNS), pairs, notes[:1]),
        table("ranks", "Ranks", ("method", block.measure.with_unit, "ranks"), ranked, notes[1:]),
    ]

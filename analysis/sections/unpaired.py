"""Groups that share no seed with the baseline: compared as two samples, and marked so."""

from __future__ import annotations

from analysis.findings.outcomes import Reason
from analysis.findings.study import Study
from analysis.numbers import format_estimate, format_level, format_number, format_p
from analysis.spec.metric_catalog import capital
from analysis.stats import compare
from analysis.tables.comparison import chosen
from analysis.tables.table import Entry, Table, ends, table


def unpaired_table(study: Study) -> Table:
    """A row for each group without a common seed and each measure of the main table; empty if there is no such
    group."""
    sweep, alpha = study.sweep, study.settings.alpha
    entries: list[Entry] = []
    pairs = [(block, c) for block in chosen(study) for c in block.comparisons]
    for block, c in pairs:
        group, measure, estimate, base = c.group, block.measure, block.estimate(c.group), block.estimate(c.baseline)
        apart = c.ground is not None and c.ground.reason is Reason.NO_COMMON_SEED
        if not (apart and estimate.values and base.values):
            continue
        result = compare.unpaired(estimate.values, base.values, alpha)
        times = measure.summary == "time_to"  # whether or not one is cut: the choice would be made by the data
        interval, p_t = (None, None) if times else (result.interval, result.p_t)
        remarks = (result.reason, "times may be cut at the budget: ranks alone count" if times else "")
        row = (
            capital(measure.title), sweep.label(group), f"{result.n} and {result.m}",
            format_estimate(result.mean_difference, interval, signed=True) or "-",
            format_number(result.superiority, 2) or "-", format_p(p_t, alpha) or "-",
            format_p(result.p_mann_whitney, alpha) or "-", "; ".join(filter(None, remarks)),
        )  # fmt: skip
        record = {
            "metric": measure.metric, "summary": measure.summary, "group": group, "threshold": measure.threshold,
            "paired": False, "seeds": result.n, "baseline_seeds": result.m, "difference": result.mean_difference,
            **ends(interval), "superiority": result.superiority, "p_welch": p_t,
            "p_mann_whitney": result.p_mann_whitney, "reason": result.reason,
        }  # fmt: skip
        entries.append((group, row, record))
    notes = (
        "UNPAIRED: these methods share no seed with the method that they are compared with. The effect of the seeds "
        "cannot be removed, so more seeds are needed to find the same difference; run both methods on the same seeds "
        "if possible.",
        f"Difference of the means with Welch's {format_level(alpha)} t interval. Higher: share of all pairs of runs "
        "in which the method's is the higher, a tie counting half. p Mann-Whitney: exact. Neither p is adjusted for "
        "the number of methods.",
    )
    columns = ("measure", "method", "seeds", "difference", "higher", "p Welch", "p Mann-Whitney", "remark")
    return table("unpaired", "Unpaired seeds", columns, entries, notes)

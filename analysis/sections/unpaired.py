"""Groups that share no seed with what they are compared with: two samples, compared as such and marked so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis.findings.study import Block, Estimate, Study, strangers
from analysis.numbers import format_estimate, format_number, format_p
from analysis.spec.metric_catalog import capital
from analysis.stats import compare
from analysis.tables.comparison import Table, chosen


def unpaired_table(study: Study) -> Table:
    """A row a group without a common seed and a measure of the main table; no row where there is no such group."""
    sweep, alpha = study.sweep, study.settings.alpha
    rows, records, groups = [], [], []
    for block, group, own, base in _pairs(study):
        found = compare.unpaired(own.values, base.values, alpha)
        cut = any(e.reached is not None and e.reached[0] < e.reached[1] for e in (own, base))
        interval, p_t = (None, None) if cut else (found.interval, found.p_t)
        reason = "; ".join(
            filter(None, (found.reason, "times are cut at the budget: ranks alone count" if cut else ""))
        )
        rows.append(
            (capital(block.measure.title), sweep.label(group), f"{found.n} and {found.m}",
             format_estimate(found.mean_difference, interval, signed=True) or "-",
             format_number(found.superiority, 2) or "-", format_p(p_t, alpha) or "-",
             format_p(found.p_mann_whitney, alpha) or "-", reason)
        )  # fmt: skip
        low, high = interval or (None, None)
        record: dict[str, Any] = {"metric": block.measure.metric, "summary": block.measure.summary, "group": group}
        record |= {"threshold": block.measure.threshold, "paired": False, "seeds": found.n, "baseline_seeds": found.m}
        record |= {"difference": found.mean_difference, "low": low, "high": high, "superiority": found.superiority}
        records.append({**record, "p_welch": p_t, "p_mann_whitney": found.p_mann_whitney, "reason": found.reason})
        groups.append(group)
    notes = (
        "UNPAIRED: these methods share no seed with what they are compared with. What the seeds "
        "do to both cannot be taken out, so that it takes more of them to see the same difference; run both on the "
        "same seeds where that is possible.",
        f"Difference of the means with Welch's {100 * (1 - alpha):g}% t interval. Higher: share of all pairs of runs "
        "in which the method's is the higher, a tie counting half. p Mann-Whitney: exact. Neither p is adjusted for "
        "the number of methods.",
    )
    columns = ("measure", "method", "seeds", "difference", "higher", "p Welch", "p Mann-Whitney", "remark")
    return Table("unpaired", "Unpaired seeds", columns, tuple(rows), tuple(records), notes, tuple(groups))


def _pairs(study: Study) -> Iterator[tuple[Block, str, Estimate, Estimate]]:
    for block in chosen(study):
        by_group = {estimate.group: estimate for estimate in block.estimates}
        for compared in block.comparisons:
            own, base = by_group[compared.group], by_group[compared.baseline]
            if strangers(study.sweep, compared.group, compared.baseline) and own.values and base.values:
                yield block, compared.group, own, base

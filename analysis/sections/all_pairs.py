"""Which methods differ: every two of them on the primary measure, and the ranks that this leaves open."""

from __future__ import annotations

from analysis.findings.study import Study
from analysis.numbers import format_estimate, format_level
from analysis.tables import wording
from analysis.tables.comparison import COLUMNS, comparison_cells, figures
from analysis.tables.table import Entry, Table, ends, table


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
    columns = ("method", "against", "seeds", *COLUMNS)
    return [
        table("all_pairs", "Every two methods", columns, pairs, notes[:1]),
        table("ranks", "Ranks", ("method", block.measure.with_unit, "ranks"), ranked, notes[1:]),
    ]

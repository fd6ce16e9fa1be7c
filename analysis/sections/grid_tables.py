"""The tables of grids: main effects, interactions of two factors, and every cell against the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.findings.study import Study
from analysis.numbers import format_estimate, format_level, format_number, format_p
from analysis.sections.grid import CellResult, Grid
from analysis.spec.metric_catalog import capital
from analysis.stats.factorial import Effect
from analysis.tables import wording
from analysis.tables.table import Entry, Table, ends, share, table

_HEADS = {
    "paired_t": "p paired t", "signflip": "p sign-flip", "wilcoxon": "p Wilcoxon", "welch": "p Welch",
    "relabel": "p relabelling",
}  # fmt: skip


def grid_tables(study: Study, every: Sequence[Grid], results: Sequence[CellResult]) -> list[Table]:
    """The tables that have a row."""
    made = [
        _effects(study, every, 1, "effects", "What each factor does"),
        _effects(study, every, 2, "interactions", "What two factors do together"),
        _cells(study, results if any(result.n for result in results) else ()),
    ]
    return [table for table in made if table.rows]


def _effects(study: Study, every: Sequence[Grid], count: int, name: str, title: str) -> Table:
    """The effects of `count` factors together."""
    measure, entries = study.primary.measure, []
    for grid in every:
        for effect in grid.effects:
            if len(effect.factors) == count and (count == 1 or not _mirrored(grid, effect)):
                entries.append(_entry(study, grid, effect))
    level, of = format_level(study.settings.alpha), measure.title
    meaning = {
        1: f"Effect on the {of}: the mean at this level minus the mean of the group's grid, within each seed.",
        2: f"Effect on the {of}: what a pair of levels adds to the sum of their two main effects, within each seed. "
        "For a factor with two levels, only the second is shown; the first has the same number with the opposite sign.",
    }[count]
    notes = [
        f"{meaning} The mean over seeds with its {level} t interval, which is not adjusted for the number of effects. "
        "Use it to find where to look, not to draw conclusions.",
        "d: effect over its standard deviation over seeds, with Hedges' correction; three seeds are needed.",
        *wording.all_levels(study.settings),
        *(f"{study.sweep.label(grid.group)}: {'; '.join(grid.notes)}." for grid in every if grid.notes),
    ]
    factor, levels = ("factor", "level") if count == 1 else ("factors", "levels")
    return table(name, title, ("method", factor, levels, "seeds", "effect", "d"), entries, notes)


def _mirrored(grid: Grid, effect: Effect) -> bool:
    """Whether the effect is of the first of two levels, which only mirrors the second."""
    levels_of = [grid.fit.levels[factor] for factor in effect.factors]
    return any(len(levels) == 2 and level == levels[0] for levels, level in zip(levels_of, effect.levels, strict=True))


def _entry(study: Study, grid: Grid, effect: Effect) -> Entry:
    levels, measure = ", ".join(map(str, effect.levels)), study.primary.measure
    row = (
        study.sweep.label(grid.group), " × ".join(effect.factors), levels, str(effect.n),
        format_estimate(effect.value, effect.interval, signed=True), format_number(effect.d, 2) or "-",
    )  # fmt: skip
    record = {
        "metric": measure.metric, "summary": measure.summary, "group": grid.group,
        "factors": ", ".join(effect.factors), "levels": levels, "seeds": effect.n, "effect": effect.value,
        **ends(effect.interval), "d": effect.d,
    }  # fmt: skip
    return grid.group, row, record


def _cells(study: Study, results: Sequence[CellResult]) -> Table:
    labels = list(dict.fromkeys(label for result in results for label, _ in result.cell))
    alpha, measure = study.settings.alpha, study.primary.measure
    entries: list[Entry] = []
    for result in results:
        of = dict(result.cell)
        apart = f"the seeds fall apart: {wording.clusters(result.split, result.apart)}" if result.split else ""
        remark = "; ".join(filter(None, (result.remark, apart)))
        row = (
            study.sweep.label(result.group), *(str(of.get(label, "-")) for label in labels),
            share(result.n, result.planned),
            format_number(result.mean) or "-", format_estimate(result.difference, result.interval, signed=True) or "-",
            format_p(result.p, alpha) or "-", format_p(result.q, alpha) or "-", remark,
        )  # fmt: skip
        record = {
            "metric": measure.metric, "summary": measure.summary, "group": result.group, **of, "seeds": result.n,
            "seeds_planned": result.planned, "mean": result.mean, "pairs": result.pairs,
            "difference": result.difference,
            **ends(result.interval), "p": result.p, "q": result.q, "remark": remark,
        }  # fmt: skip
        entries.append((result.group, row, record))
    test, paired = study.settings.test_of(measure.summary), study.settings.pairing == "seed"
    compared = sum(result.pairs > 0 for result in results)
    notes = (
        f"EXPLORATORY: the cells of one seed share its luck, and the best of {compared} is the best partly by "
        "luck. Test a cell that stands out here with new seeds.",
        f"{capital(measure.title)}: mean over seeds, and its difference to the baseline"
        f"{' over the same seeds' if paired else ''} with the {format_level(alpha)} interval of this cell alone, by "
        f"{wording.test_name(test)}. q: Benjamini and Hochberg's adjustment of p over all "
        f"{compared} cells: of those with q up to x, a share of x at most is expected to be there by luck.",
        *wording.all_levels(study.settings),
    )
    columns = ("method", *labels, "seeds", "value", "difference", _HEADS[test], "q", "remark")
    return table("cells", "Every cell (exploratory)", columns, entries, notes)

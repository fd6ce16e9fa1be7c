"""The tables of grids: main effects, interactions of two factors, and every cell against the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.data.sweep import Cell
from analysis.findings.study import Study
from analysis.numbers import format_estimate, format_number, format_p
from analysis.sections.grid import CellResult, Grid
from analysis.spec.metric_catalog import capital
from analysis.stats.factorial import Effect
from analysis.tables.comparison import Record, Table

TESTS = {"paired_t": "p paired t", "signflip": "p sign-flip", "wilcoxon": "p Wilcoxon"}


def grid_tables(study: Study, found: Sequence[Grid], results: Sequence[CellResult]) -> list[Table]:
    """Those that have a row."""
    made = [
        _effects(study, found, 1, "effects", "What each factor does"),
        _effects(study, found, 2, "interactions", "What two factors do together"),
        _cells(study, results if any(one.n for one in results) else ()),
    ]
    return [table for table in made if table.rows]


def _effects(study: Study, found: Sequence[Grid], count: int, name: str, title: str) -> Table:
    """The effects of so many factors together."""
    rows, records, groups = [], [], []
    for grid in found:
        for effect in grid.effects:
            if len(effect.factors) == count and (count == 1 or not _mirrored(grid, effect)):
                rows.append(_row(study, grid, effect))
                records.append(_record(study, grid, effect))
                groups.append(grid.group)
    level = f"{100 * (1 - study.settings.alpha):g}%"
    of = study.primary.measure.title
    meaning = {
        1: f"Effect on the {of}: the mean at this level less the mean of the group's grid, within each seed.",
        2: f"Effect on the {of}: what a pair of levels adds to the sum of their two main effects, within each seed. "
        "Of a factor with two levels the second stands here: the first has the same number with the other sign.",
    }[count]
    notes = [
        f"{meaning} The mean over seeds with its {level} t interval, which is not adjusted for the number of effects: "
        "to find where to look, not to conclude.",
        "d: effect over its standard deviation over seeds, with Hedges' correction; three seeds are needed.",
        *(f"{study.sweep.label(grid.group)}: {'; '.join(grid.notes)}." for grid in found if grid.notes),
    ]
    factor, levels = ("factor", "level") if count == 1 else ("factors", "levels")
    columns = ("method", factor, levels, "seeds", "effect", "d")
    return Table(name, title, columns, tuple(rows), tuple(records), tuple(notes), tuple(groups))


def _mirrored(grid: Grid, effect: Effect) -> bool:
    """Whether a level is the first of two."""
    own = [grid.fit.levels[factor] for factor in effect.factors]
    return any(len(levels) == 2 and level == levels[0] for levels, level in zip(own, effect.levels, strict=True))


def _row(study: Study, grid: Grid, effect: Effect) -> tuple[str, ...]:
    return (
        study.sweep.label(grid.group),
        " × ".join(effect.factors),
        ", ".join(map(str, effect.levels)),
        str(effect.n),
        format_estimate(effect.value, effect.interval, signed=True),
        format_number(effect.d, 2) or "-",
    )


def _record(study: Study, grid: Grid, effect: Effect) -> Record:
    low, high = effect.interval or (None, None)
    measure = study.primary.measure
    return {
        "metric": measure.metric, "summary": measure.summary, "group": grid.group,
        "factors": ", ".join(effect.factors), "levels": ", ".join(map(str, effect.levels)), "seeds": effect.n,
        "effect": effect.value, "low": low, "high": high, "d": effect.d,
    }  # fmt: skip


def _cells(study: Study, results: Sequence[CellResult]) -> Table:
    labels = list(dict.fromkeys(label for one in results for label, _ in one.cell))
    alpha, measure = study.settings.alpha, study.primary.measure
    rows = [
        (
            study.sweep.label(one.group),
            *_levels(one.cell, labels),
            str(one.n) if one.n == one.planned else f"{one.n} of {one.planned}",
            format_number(one.mean) or "-",
            format_estimate(one.difference, one.interval, signed=True) or "-",
            format_p(one.p, alpha) or "-",
            format_p(one.q, alpha) or "-",
            one.remark,
        )
        for one in results
    ]
    records = []
    for one in results:
        low, high = one.interval or (None, None)
        records.append(
            {"metric": measure.metric, "summary": measure.summary, "group": one.group, **dict(one.cell),
             "seeds": one.n, "seeds_planned": one.planned, "mean": one.mean, "pairs": one.pairs,
             "difference": one.difference, "low": low, "high": high, "p": one.p, "q": one.q, "remark": one.remark}
        )  # fmt: skip
    test = "signflip" if measure.summary == "time_to" else study.settings.test
    compared = sum(one.pairs > 0 for one in results)
    notes = (
        f"EXPLORATORY: the cells of one seed share its luck, and the best of {compared} is best by luck in part. A "
        "cell that stands out here is a question for new seeds.",
        f"{capital(measure.title)}: mean over seeds, and less the baseline's of the same seeds with the "
        f"{100 * (1 - alpha):g}% t interval of this cell alone. q: Benjamini and Hochberg's adjustment of p over all "
        f"{compared} cells: of those with q up to x, a share of x at most is expected to be there by luck.",
    )
    columns = ("method", *labels, "seeds", "value", "difference", TESTS[test], "q", "remark")
    groups = tuple(one.group for one in results)
    return Table("cells", "Every cell (exploratory)", columns, tuple(rows), tuple(records), notes, groups)


def _levels(cell: Cell, labels: Sequence[str]) -> list[str]:
    of = dict(cell)
    return [str(of[label]) if label in of else "-" for label in labels]

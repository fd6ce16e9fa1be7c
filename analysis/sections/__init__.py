"""The sections that only some reports have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.figures.canvas import Sketch
from analysis.figures.figures import Drawing, saved
from analysis.findings.study import Study
from analysis.judging.results import Judged
from analysis.sections.grid import cell_results, grid_tables, grids, heat_maps, main_effects
from analysis.sections.many_cells import many_table
from analysis.sections.methods import all_pairs_tables, overview
from analysis.sections.model_sizes import sizes_table
from analysis.sections.win_rates import win_rate_tables
from analysis.tables.table import Table
from analysis.tables.wording import drawn_apart, range_note


@dataclass(frozen=True)
class PageSection:
    """A part of the page: its id and title, then its figures and tables."""

    id: str
    title: str
    figures: list[Sketch]
    tables: list[Table]


def sections(study: Study, judged: Sequence[Judged] = ()) -> list[PageSection]:
    """The sections that this experiment has, in the page's order. judged: what its judges say."""
    factors = grids(study)
    comparable = not drawn_apart(study.primary)
    note = range_note(study)

    def section(id: str, title: str, tables: Sequence[Table | None], *drawings: Drawing) -> PageSection:
        return PageSection(id, title, saved(*drawings, note=note), [table for table in tables if table and table.rows])

    every = (
        section("all_pairs", "Which methods differ?", all_pairs_tables(study)),
        section("overview", "Every method in one row", [overview(study)]),
        section("win_rates", "Win rates", win_rate_tables(study, judged)),
        section("many", "Many cells", [many_table(study) if comparable else None]),
        section(
            "grid",
            "The grid",
            grid_tables(study, factors, cell_results(study)),
            lambda: main_effects(study, factors),
            lambda: heat_maps(study, factors),
        ),
        section("sizes", "Model sizes", [sizes_table(study) if comparable else None]),
    )
    return [section for section in every if section.tables or section.figures]

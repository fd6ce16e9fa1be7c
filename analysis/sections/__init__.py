"""The parts of a report that only some experiments have: grids, model sizes, many cells, unpaired seeds."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.figures.canvas import Figure
from analysis.figures.figures import saved
from analysis.findings.study import Study
from analysis.sections.grid import cell_results, grids
from analysis.sections.grid_figures import heat_maps, main_effects
from analysis.sections.grid_tables import grid_tables
from analysis.sections.many_cells import many, many_figure, many_table
from analysis.sections.model_sizes import sizes, sizes_figure, sizes_table
from analysis.sections.unpaired import unpaired_table
from analysis.tables.comparison import Table


@dataclass(frozen=True)
class Section:
    """A part of the page: its id and title, then its figures and tables."""

    id: str
    title: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]


def sections(study: Study) -> list[Section]:
    """Those that this experiment has, in the page's order."""
    return [
        found
        for found in (_unpaired(study), _many(study), _grid(study), _sizes(study))
        if found.tables or found.figures
    ]


def _unpaired(study: Study) -> Section:
    table = unpaired_table(study)
    return Section("unpaired", table.title, (), (table,) if table.rows else ())


def _grid(study: Study) -> Section:
    found = grids(study)
    tables = grid_tables(study, found, cell_results(study))
    drawn = saved(lambda: main_effects(study, found), lambda: heat_maps(study, found))
    return Section("grid", "The grid", tuple(drawn), tuple(tables))


def _sizes(study: Study) -> Section:
    found = sizes(study)
    drawn = saved(lambda: sizes_figure(study, found) if found else None)
    table = [sizes_table(study, found)] if found and found.trends else []
    return Section("sizes", "Model sizes", tuple(drawn), tuple(table))


def _many(study: Study) -> Section:
    found = many(study)
    drawn = saved(lambda: many_figure(study, found) if found else None)
    return Section("many", "Many cells", tuple(drawn), (many_table(study, found),) if found else ())

"""The report for a paper: a folder with tables, figures, and a LaTeX file that compiles unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from analysis.report import Report
from analysis.report.files import write_all
from analysis.spec.cell import grouped
from analysis.tables.table import Table, latex_escape, lines_of, to_latex

_LINES = 24  # lines of a table that fit on a page with headings, notes and a row that begins on the page before
_FLOATS = 8  # floats that LaTeX may collect before it must place them


def write_paper(written: Report) -> Path:
    """Write report/paper: main.tex with tables/*.tex and figures/*.pdf; returns the path of main.tex.

    The same report gives the same bytes. Files of an earlier report that this one does not have are removed.
    """
    out = written.index.parent / "paper"
    pages = [page for table in written.tables for page in _pages(table)]
    files = {f"tables/{page.name}.tex": to_latex(page).encode() for page in pages}
    files |= {f"figures/{figure.name}.pdf": figure.rendered("pdf") for figure in written.figures}
    files["main.tex"] = main_tex(written, pages).encode()
    write_all(out, files)
    for old in (*sorted(out.glob("tables/*.tex")), *sorted(out.glob("figures/*.pdf"))):
        if str(old.relative_to(out)) not in files:
            old.unlink()
    return out / "main.tex"


def _pages(table: Table) -> Iterator[Table]:
    """The table in parts that fit on a page each."""
    totals = accumulate(lines_of(table.columns, row) for row in table.rows)
    pages = grouped(((total - 1) // _LINES, row) for total, row in zip(totals, table.rows, strict=True)).values()
    for n, rows in enumerate(pages, 1):
        name = table.name if n == 1 else f"{table.name}-{n}"
        title = table.title if n == 1 else f"{table.title}, continued"
        yield replace(table, name=name, title=title, rows=tuple(rows), notes=table.notes if n == len(pages) else ())


def main_tex(written: Report, pages: Sequence[Table]) -> str:
    """The LaTeX file with the answer, these tables and all figures."""
    import jinja2

    environment = jinja2.Environment(
        "<%", "%>", "<<", ">>", "<#", "#>",  # LaTeX uses braces
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
    )  # fmt: skip
    environment.filters["tex"] = latex_escape
    return environment.get_template("main.tex.j2").render(written=written, pages=pages, floats=_FLOATS)

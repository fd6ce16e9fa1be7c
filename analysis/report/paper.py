"""The report for a paper: a folder with tables, figures, and a LaTeX file that compiles unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from analysis.report import Report
from analysis.report.files import write_all
from analysis.tables.table import Table, latex_escape, to_latex

_ROWS = 30  # of one table on a page
_FLOATS = 8  # that LaTeX is asked to keep before it must place them
_HEAD = r"""% pdflatex main.tex, twice: needs booktabs, geometry and graphicx
\documentclass{article}
\usepackage[T1]{fontenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage[margin=25mm]{geometry}
\usepackage{booktabs}
\usepackage{graphicx}
\newsavebox{\tablebox}
% a table in its own size, or as wide as the text where it is wider
\newcommand{\fitted}[1]{\sbox{\tablebox}{\small\input{#1}}%
  \ifdim\wd\tablebox>\linewidth\resizebox{\linewidth}{!}{\usebox{\tablebox}}\else\usebox{\tablebox}\fi}
\begin{document}
"""


def write_paper(written: Report) -> Path:
    """Write report/paper: main.tex with tables/*.tex and figures/*.pdf; returns the path of main.tex.

    Same input, same bytes. Files of an earlier report that this one does not have are removed.
    """
    out = written.index.parent / "paper"
    pages = [page for table in written.tables for page in _pages(table)]
    files = {f"tables/{page.name}.tex": to_latex(page).encode() for page in pages}
    files |= {f"figures/{figure.name}.pdf": figure.rendered("pdf") for figure in written.figures}
    files["main.tex"] = "".join(_lines(written, pages)).encode()
    write_all(out, files)
    for old in (*sorted(out.glob("tables/*.tex")), *sorted(out.glob("figures/*.pdf"))):
        if str(old.relative_to(out)) not in files:
            old.unlink()
    return out / "main.tex"


def _pages(table: Table) -> Iterator[Table]:
    """The table in parts that fit on a page each."""
    for start in range(0, len(table.rows), _ROWS):
        end, number = start + _ROWS, start // _ROWS + 1
        name = table.name if number == 1 else f"{table.name}-{number}"
        title = table.title if number == 1 else f"{table.title}, continued"
        last = end >= len(table.rows)
        yield replace(table, name=name, title=title, rows=table.rows[start:end], notes=table.notes if last else ())


def _lines(written: Report, pages: list[Table]) -> Iterator[str]:
    answer = written.answer
    yield f"{_HEAD}\\title{{{latex_escape(written.name)}}}\n\\author{{}}\\date{{}}\n\\maketitle\n\n"
    answered = (answer.declaration, answer.question, answer.result, answer.certainty, *answer.points)
    for text in filter(None, answered):
        yield f"{latex_escape(text)}\n\n"
    points = [answer.cost, *(f"Missing: {gap}" for gap in answer.gaps)]
    yield "\\begin{itemize}\n"
    for text in filter(None, points):
        yield f"\\item {latex_escape(text)}\n"
    if written.command:
        yield f"\\item Made by \\texttt{{{latex_escape(written.command)}}}\n"
    yield "\\end{itemize}\n\n"
    floats = [_table(page) for page in pages]
    floats += [_figure(figure.name, figure.title, figure.caption) for figure in written.figures]
    for number, text in enumerate(floats):
        yield ("\\clearpage\n" if number % _FLOATS == 0 else "") + text
    yield "\\end{document}\n"


def _table(page: Table) -> str:
    notes = " ".join(latex_escape(note) for note in page.notes)
    below = f"\n\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {notes}}}" if notes else ""
    return (
        f"\\begin{{table}}[p]\n\\centering\n\\caption{{{latex_escape(page.title)}}}\n\\label{{tab:{page.name}}}\n"
        f"\\fitted{{tables/{page.name}}}{below}\n\\end{{table}}\n\n"
    )


def _figure(name: str, title: str, caption: str) -> str:
    return (
        f"\\begin{{figure}}[p]\n\\centering\n\\includegraphics[width=\\linewidth]{{figures/{name}.pdf}}\n"
        f"\\caption[{{{latex_escape(title)}}}]{{{latex_escape(caption)}}}\n\\label{{fig:{name}}}\n\\end{{figure}}\n\n"
    )

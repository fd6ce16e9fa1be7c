"""A table: displayed cells, rounded, and beside them the numbers themselves.

It is written as Markdown, LaTeX (booktabs), aligned text, and CSV, which holds the numbers in columns of their own.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.stats.numbers import Interval

Record = Mapping[str, Any]
Entry = tuple[str, Sequence[str], Record]  # a row: its group ("" for none), displayed cells and numbers


@dataclass(frozen=True)
class Table:
    """name: of its files. columns: headings; rows: displayed cells; records: the numbers of each row. notes stand
    below. groups: of each row, where rows belong to groups."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def table(name: str, title: str, columns: Sequence[str], entries: Iterable[Entry], notes: Iterable[str] = ()) -> Table:
    groups, rows, records = zip(*entries, strict=True) if (entries := list(entries)) else ((), (), ())
    rows = tuple(tuple(row) for row in rows)
    return Table(name, title, tuple(columns), rows, records, tuple(notes), groups if any(groups) else ())


def ends(interval: Interval | None, low: str = "low", high: str = "high") -> dict[str, float | None]:
    """The ends of an interval as two numbers of a record; None for an end that does not exist."""
    below, above = interval or (None, None)
    return {low: below, high: None if above == math.inf else above}


def share(n: int, planned: int) -> str:
    """How many of those planned: 3, or 2 of 3."""
    return str(n) if n == planned else f"{n} of {planned}"


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def to_markdown(table: Table) -> str:
    """GitHub's table, with title and notes."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(_markdown, cells)) + " |"

    lines = [
        f"## {_markdown(table.title)}",
        "",
        line(table.columns),
        "|" + " --- |" * len(table.columns),
        *map(line, table.rows),
    ]
    if table.notes:
        lines += ["", *(f"* {_markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is written: no HTML, link, code or emphasis, and on one line."""
    return re.sub(
        r"[\\`*|~]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])",
        r"\\\g<0>",
        " ".join(text.split()),
    )


def to_csv(table: Table) -> str:
    """The numbers in full precision. A field is empty if the row has no such number, such as a factor of other rows."""
    fields = dict.fromkeys(key for record in sorted(table.records, key=len, reverse=True) for key in record)
    return csv_of(list(fields or table.columns), table.records)


def csv_of(fields: Sequence[str], records: Sequence[Record], quoting: Any = csv.QUOTE_MINIMAL) -> str:
    """Records as CSV, the same bytes on every system."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n", quoting=quoting)
    writer.writerow({field: literal(field) for field in fields})
    writer.writerows({field: literal(cell) for field, cell in record.items()} for record in records)
    return out.getvalue()


def literal(cell: object) -> object:
    """A cell of a CSV file. Text that a spreadsheet would run as a formula begins with an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell) else cell


def to_text(table: Table) -> str:
    """Aligned columns of plain text."""
    widths = [max(len(row[i]) for row in (table.columns, *table.rows)) for i in range(len(table.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in
             (table.columns, tuple("-" * width for width in widths), *table.rows)]  # fmt: skip
    return "\n".join([table.title, *lines])


_LEFT = ("measure", "method", "verdict", "run", "factors", "state", "commit", "folder", "remark", "hypothesis")
_WIDE, _LINE = 30, 18  # letters of a text, beyond which it is wrapped, and of a line of it
_WRAPPED = ("claim", "quantity", "decided by")  # sentences
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$", '"': "''", "'": "'",
    "\N{MINUS SIGN}": "$-$", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{INFINITY}": r"$\infty$", "\N{EN DASH}": "--", "\N{EM DASH}": "---", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{LESS-THAN OR EQUAL TO}": r"$\le$", "\N{GREATER-THAN OR EQUAL TO}": r"$\ge$", "\N{RIGHTWARDS ARROW}": r"$\to$",
    "\N{NO-BREAK SPACE}": "~", "\N{GREEK SMALL LETTER OMICRON}": "o", "\n": " ", "\t": " ",
    "_": r"\_\allowbreak{}", "/": r"/\allowbreak{}",  # a long name is wrapped there
}  # fmt: skip
_GREEK = {
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\epsilon$", "ζ": r"$\zeta$",
    "η": r"$\eta$", "θ": r"$\theta$", "ι": r"$\iota$", "κ": r"$\kappa$", "λ": r"$\lambda$", "μ": r"$\mu$",
    "ν": r"$\nu$", "ξ": r"$\xi$", "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "υ": r"$\upsilon$",
    "φ": r"$\phi$", "χ": r"$\chi$", "ψ": r"$\psi$", "ω": r"$\omega$", "Γ": r"$\Gamma$", "Δ": r"$\Delta$",
    "Θ": r"$\Theta$", "Λ": r"$\Lambda$", "Ξ": r"$\Xi$", "Π": r"$\Pi$", "Σ": r"$\Sigma$", "Φ": r"$\Phi$",
    "Ψ": r"$\Psi$", "Ω": r"$\Omega$",
}  # fmt: skip


#: What pdfLaTeX prints itself, with T1 fonts and textcomp: ASCII, Latin letters and signs, dashes, quotes and arrows.
_PRINTED = re.compile(
    "[ -~\u00a1-\u0125\u0128-\u0137\u0139-\u013e\u0141-\u0148\u014a-\u0165\u0168-\u017e\u0218-\u021b\u1e9e\u2010-\u2016"
    "\u2018-\u201a\u201c-\u201e\u2020-\u2022\u2030\u2039\u203a\u2044\u20ac\u2116\u2122\u2190-\u2193]"
)


def latex_escape(text: str) -> str:
    """Text that LaTeX prints unchanged; a character that pdfLaTeX has no font for becomes its code point, as in
    U+4E2D."""
    out, text = [], unicodedata.normalize("NFC", text)
    for index, char in enumerate(text):
        if char == "-" and re.match(r"-\.?\d", text[index:]) and (index == 0 or not text[index - 1].isalnum()):
            out.append("$-$")
        elif char in _LATEX or char in _GREEK:
            out.append(_LATEX.get(char) or _GREEK[char])
        elif _PRINTED.match(char):
            out.append(char)
        else:
            out.append(f"U+{ord(char):04X}")
    return "".join(out)


def to_latex(table: Table) -> str:
    """A tabular with booktabs rules, to be read with \\input; text columns left, sentences wrapped, others right.

    Where rows belong to measures, each measure is a heading above its rows.
    """
    first = 1 if table.columns[0] == "measure" else 0
    columns = table.columns[first:]
    spec = "".join(_kind(column, [row[first + index] for row in table.rows]) for index, column in enumerate(columns))
    lines = [
        f"% {latex_escape(table.title)}; needs \\usepackage{{booktabs}} and \\usepackage[T1]{{fontenc}}",
        *(f"% {latex_escape(note)}" for note in table.notes),
        f"\\begin{{tabular}}{{{spec}}}",
        "\\toprule",
        " & ".join(map(latex_escape, columns)) + " \\\\",
    ]
    before = None
    for row in table.rows:
        if first and row[0] != before:
            lines += ["\\midrule", f"\\multicolumn{{{len(columns)}}}{{l}}{{\\textit{{{latex_escape(row[0])}}}}} \\\\"]
        elif before is None:
            lines.append("\\midrule")
        before = row[0]
        # {} first, so that a cell beginning with [ is not taken for the optional argument of the \\ before it
        lines.append("{}" + " & ".join(map(latex_escape, row[first:])) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def lines_of(columns: Sequence[str], row: Sequence[str]) -> int:
    """About how many lines a row has in LaTeX, below the heading of its measure."""
    long = [cell for of, cell in zip(columns, row, strict=True) if of != "measure" and _kind(of, [cell])[0] == "p"]
    return max(map(len, long), default=0) // _LINE + 1


def _kind(column: str, cells: Sequence[str]) -> str:
    if column in _WRAPPED or (column in _LEFT and max(map(len, cells), default=0) > _WIDE):
        return "p{0.2\\linewidth}"
    return "l" if column in _LEFT else "r"

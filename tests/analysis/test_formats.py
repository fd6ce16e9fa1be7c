"""Labels of strangers in written tables: shown as they are, and never run."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from markdown_it import MarkdownIt

from analysis.figures.traces import Panel, Trace, Traces, to_csv
from analysis.tables.table import csv_of, table, to_markdown
from analysis.tables.table import to_csv as table_to_csv
from tests.analysis.conftest import Page

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</table><b>x",
    "<!-- x",
    "a|b",
    "`a` **b** __c__ ~~d~~ *e*",
    "[a](javascript:alert(1))",
    "![a](http://x/y.png)",
    "&lt;b&gt; &#60; & <",
    "a\\|b\\",
    "p < .001 <2> reward_mean [0.1, 0.2]",
]
RUN = ["=1+1", '=HYPERLINK("http://x")', "@SUM(1)", "+cmd|' /C calc'!A0", "-2+3", "\tx", "\r=1", "-", "- a", "=\n1"]
QUOTING = csv.QUOTE_NONNUMERIC  # as of responses, which alone may have a carriage return
LEFT = ["-1.5", "+2", "-1e-06", "a=b", "", "1-2", "'x"]


@pytest.mark.parametrize("label", [*HOSTILE, *RUN[:5]])
def test_a_label_in_markdown_is_text(label: str) -> None:
    entry = ("", (label, "1"), {"x": 1.0})
    written = to_markdown(table("t", label, (label, "n"), [entry, entry], [f"{label} is a note"]))
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(written)
    reader = Page(html, "td", "th", "h2", "li")
    assert {tag for tag, _ in reader.tags} <= {"h2", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    shown = [text.strip() for text in reader.texts]
    assert shown == [label, label, "n", label, "1", label, "1", f"{label} is a note"]


def test_a_line_break_in_a_label_does_not_end_its_row() -> None:
    written = to_markdown(table("t", "t", ("a",), [("", ("x\r\n# y\u2028| z |",), {})]))
    assert written.splitlines()[-1] == "| x # y \\| z \\| |"


def test_text_in_csv_is_not_a_formula_and_numbers_are_as_they_were() -> None:
    records = [{"=name": cell, "value": value} for cell, value in zip([*RUN, *LEFT], [-1.5, 2] * 9, strict=False)]
    header, *rows = csv.reader(io.StringIO(csv_of(["=name", "value"], records, QUOTING), newline=""))
    assert header == ["'=name", "value"]
    assert [row[0] for row in rows] == [*(f"'{cell}" for cell in RUN), *LEFT]
    assert [row[1] for row in rows] == ["-1.5", "2"] * 8 + ["-1.5"]


def test_rows_with_different_factors_share_the_columns_of_a_csv_file() -> None:
    entries = [("", ("1",), {"task": "a", "n": 3}), ("", ("2",), {"task": "b", "scale": "full", "n": 2})]
    rows = list(csv.reader(io.StringIO(table_to_csv(table("t", "t", ("a",), entries)))))
    assert rows == [["task", "scale", "n"], ["a", "", "3"], ["b", "full", "2"]]


def test_names_in_the_csv_of_a_figure_are_not_formulas() -> None:
    panel = Panel((0, 0, 1, 1), ("@x", 0, 1, False), ("=y", 0, 1, False))
    traces = (Trace(0, "=1+1", 3, "seed", "=y", np.array([1.0]), np.array([-2.0])),)
    _, row = csv.reader(io.StringIO("".join(to_csv(Traces((panel,), traces)))))
    assert "'=1+1" in row and "'@x" in row and "'=y" in row and "-2.0" in row

"""Written tables: labels of strangers are shown as they are and never run; numbers on paper."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from analysis.figures.traces import Panel, Trace, Traces, to_csv
from analysis.stats.numbers import decimals_of, decimals_of_means, format_estimate, format_number, format_p
from analysis.tables.table import csv_of, latex_escape, table, to_markdown
from analysis.tables.table import to_csv as table_to_csv
from tests.analysis.conftest import Page

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</table><b>x", "<!-- x", "a|b",
    "`a` **b** __c__ ~~d~~ *e*", "[a](javascript:alert(1))", "![a](http://x/y.png)", "&lt;b&gt; &#60; & <",
    "a\\|b\\", "p < .001 <2> reward_mean [0.1, 0.2]",
]  # fmt: skip
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


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0625, "0.0625"), (0.25, "0.25"), (0.03125, "0.031"), (1.0, "1"), (0.0497, "0.0497"), (0.04970294, "0.0497"),
     (0.0509, "0.0509"), (0.05004, "0.05004"), (0.123456, "0.12"), (0.00123456, "0.0012"), (0.0009999, "< 0.001"),
     (5e-324, "< 0.001"), (0.19999999999999998, "0.2"), (None, "")],
)  # fmt: skip
def test_p(p: float | None, text: str) -> None:
    assert format_p(p, 0.05) == text


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (0.04912, (0.0271, 0.0712), "0.049 [0.027, 0.071]"), (123.456, (100.0, 147.0), "123 [100, 147]"),
        (12345.0, (11000.0, 13690.0), "12300 [11000, 13700]"), (0.5, (0.4004, 0.5996), "0.50 [0.40, 0.60]"),
        (-0.0001, (-0.5, 0.5), "0.00 [-0.50, 0.50]"), (-0.1108, (-0.2194, -0.0022), "-0.111 [-0.219, -0.002]"),
        (0.2, (1e-9, 0.4), "0.20 [1e-09, 0.40]"), (0.16644, (0.07414, math.inf), "0.166 [0.0741, \N{INFINITY})"),
        (-2.0, (-math.inf, math.inf), "-2.00 (-\N{INFINITY}, \N{INFINITY})"), (0.7283, None, "0.7283"),
        (2e-7, (1e-7, 3e-7), "(2.0 [1.0, 3.0])e-7"), (1.002e20, (0.988e20, 1.016e20), "(1.002 [0.988, 1.016])e20"),
        # an end that is not zero is not shown as zero
        (-112000, (-240000, 4352), "-112000 [-240000, 4000]"), (0.31, (-0.0004, 0.62), "0.3100 [-0.0004, 0.6200]"),
        (5.0, (-1e-9, 10.0), "5.0 [-1e-09, 10.0]"), (-1.2e20, (-2.4e20, 7e16), "(-1.200 [-2.400, 0.001])e20"),
        (0.31, (0.0, 0.62), "0.31 [0.00, 0.62]"), (None, None, ""),
        # differences that are equal but for rounding
        (9.0, (9 - 2e-15, 9 + 2e-15), "9.000000000 [9.000000000, 9.000000000]"),
        (0.25, (0.25 - 1e-9, 0.25 + 1e-9), "0.2500000000 [0.2499999990, 0.2500000010]"),
    ],
)  # fmt: skip
def test_value_and_interval_are_rounded_together(
    value: float | None, interval: tuple[float, float] | None, text: str
) -> None:
    assert format_estimate(value, interval) == text


def test_number() -> None:
    assert [format_number(x) for x in (0.0, 123456.0, 0.00012345, 1e-9, 1.2e20)] == [
        "0", "123500", "0.0001234", "1.000e-09", "1.200e+20",
    ]  # fmt: skip


def test_latex_escape() -> None:
    assert latex_escape("a_b & 5% #1 {x} ~ ^ \\ $ c/d") == (
        r"a\_\allowbreak{}b \& 5\% \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \$ c/\allowbreak{}d"
    )
    assert latex_escape("-0.5 [-0.6, -.4] < α × q* well-known é 中") == (
        r"$-$0.5 [$-$0.6, $-$.4] $<$ $\alpha$ $\times$ q* well-known é U+4E2D"
    )
    printed = "A’s “final” «x» ‘y’ „z‟ §3, 5° £2 µs"
    assert latex_escape(printed) == printed.replace("‟", "U+201F") and latex_escape("e\u0301 \u2126") == r"é $\Omega$"


@pytest.mark.parametrize(
    ("means", "difference"),
    [
        ([(11953.0, (9000.0, 15000.0)), (11234.0, (9100.0, 13400.0))], (719.0, (40.0, 1400.0))),
        ([(0.65231, None), (0.64918, None)], (0.00313, (0.0021, 0.0042))),
        ([(2.0004, (1.0, 3.0)), (2.0001, (1.0, 3.0))], (0.0003, None)),
        ([(-110000.0, (-240000.0, 4352.0)), (-118.0, (-130.0, -100.0))], (-109882.0, (-230000.0, 7.0))),
    ],
)
def test_means_are_shown_with_digits_that_give_the_shown_difference(means: Any, difference: Any) -> None:
    digits = decimals_of_means(means, difference)
    first, second = (float(format_estimate(*mean, decimals=digits).split(" ")[0]) for mean in means)
    shown = format_estimate(*difference, signed=True).split(" ")[0]
    assert round(first - second, decimals_of(*difference, 3)) == pytest.approx(float(shown))


def test_a_difference_of_rounding_alone_needs_no_decimals() -> None:
    mean = 0.6989247311827957, (0.53, 0.87)
    assert decimals_of_means([mean, (0.6989247311827956, (0.65, 0.75))], (1.1e-16, None)) == 2

"""Numbers on paper."""

from __future__ import annotations

import pytest

from analysis.numbers import format_estimate, format_number, format_p
from analysis.tables.formats import latex_escape


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
        (0.04912, (0.0271, 0.0712), "0.049 [0.027, 0.071]"),
        (123.456, (100.0, 147.0), "123 [100, 147]"),
        (12345.0, (11000.0, 13690.0), "12300 [11000, 13700]"),
        (0.5, (0.4004, 0.5996), "0.50 [0.40, 0.60]"),
        (-0.0001, (-0.5, 0.5), "0.00 [-0.50, 0.50]"),
        (-0.1108, (-0.2194, -0.0022), "-0.111 [-0.219, -0.002]"),
        (0.2, (1e-9, 0.4), "0.20 [0.00, 0.40]"),
        (0.16644, (0.07414, float("inf")), "0.166 [0.0741, \N{INFINITY})"),
        (-2.0, (-float("inf"), float("inf")), "-2.00 (-\N{INFINITY}, \N{INFINITY})"),
        (2e-7, (1e-7, 3e-7), "(2.0 [1.0, 3.0])e-7"),
        (1.002e20, (0.988e20, 1.016e20), "(1.002 [0.988, 1.016])e20"),
        (0.7283, None, "0.7283"),
        (None, None, ""),
    ],
)
def test_value_and_interval_are_rounded_together(
    value: float | None, interval: tuple[float, float] | None, text: str
) -> None:
    assert format_estimate(value, interval) == text


def test_number() -> None:
    assert [format_number(x) for x in (0.0, 123456.0, 0.00012345, 1e-9, 1.2e20)] == [
        "0", "123500", "0.0001234", "1.000e-09", "1.200e+20",
    ]  # fmt: skip


def test_latex_escape() -> None:
    assert latex_escape("a_b & 5% #1 {x} ~ ^ \\ $") == (
        r"a\_b \& 5\% \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \$"
    )
    assert latex_escape("-0.5 [-0.6, -.4] < α × q* well-known é 中") == (
        r"$-$0.5 [$-$0.6, $-$.4] $<$ $\alpha$ $\times$ q* well-known é U+4E2D"
    )

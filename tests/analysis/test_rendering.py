"""Figures in every format: the same bytes whichever process renders them."""

from __future__ import annotations

import multiprocessing
from typing import Any

import matplotlib
import pytest

from analysis.figures.canvas import STYLE, canvas_of
from analysis.figures.rendering import rendering

MUCH = 10**9


def drawn(colour: str) -> Any:
    canvas, axes = canvas_of(3.0, 2.0)
    axes.plot([0, 1, 2], [0, 1, 4], color=colour, label="a line", gid="curve--C0")
    canvas.draw_without_rendering()
    return canvas


@pytest.mark.parametrize("count", [1, 3])
def test_processes_render_what_one_does_in_the_order_given(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with matplotlib.rc_context(STYLE):
        canvases = [drawn(colour) for colour in ("#0072B2", "#D55E00", "#009E73")[:count]]
        aside = rendering(canvases, MUCH)
        assert count == 1 or multiprocessing.active_children()
        here = [files() for files in rendering(canvases, 0)]
    assert [files() for files in aside] == here
    assert set(here[0]) == {"svg", "pdf", "png"} and len({one["svg"] for one in here}) == count


def test_a_label_is_shown_as_it_is_written() -> None:
    with matplotlib.rc_context(STYLE):
        canvas = drawn("#0072B2")
        canvas.axes[0].set_title("$\\nosuch$ is $5$")
        (files,) = rendering([canvas], 0)
    assert b">$\\nosuch$ is $5$<" in files()["svg"]


def test_what_fails_in_a_process_is_raised_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with matplotlib.rc_context(STYLE):
        good, bad = drawn("#0072B2"), drawn("#D55E00")
        bad.axes[0].set_title("$\\nosuch$").set_parse_math(True)
        first, second = rendering([good, bad], MUCH)
    assert first()["svg"]
    with pytest.raises(ValueError, match="nosuch"):
        second()

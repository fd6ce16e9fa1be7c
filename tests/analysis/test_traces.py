"""The values behind a figure: as the page has them, as a table, as CSV; and clouds of points as images."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figures.traces import About, Panel, Trace, Traces, summary, to_json
from tests.analysis.conftest import MakeSweep, Reported, data_of, metrics, replan, reported

REWARD = "analysis/reward_sum_mean"
SCATTER = {"figures": [{"scatter": [REWARD, "actor/ppo_kl"]}], "metrics": [REWARD]}
PANEL = Panel((0, 0, 100, 50), ("step", 0, 10, False), ("reward (1)", 0, 1, False))


def traced(*traces: Trace) -> Traces:
    return Traces((PANEL,), traces)


def trace(x: Any, y: Any, seed: int | None = None, name: str = "reward (1)", **more: Any) -> Trace:
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return Trace(0, "C1", seed, "mean over seeds", name, x, y, About(**more))


def test_page_has_each_x_once_five_digits_and_null_for_no_number() -> None:
    x, y = [1, 2, 3], [0.123456789, np.nan, 123456.7]
    made = to_json(traced(trace(x, y), trace(x, y, seed=0)), {"C1": "C1 (BNTO)"})
    assert made["xs"] == [(1, 2, 3)] and [entry["x"] for entry in made["traces"]] == [0, 0]
    assert made["traces"][0]["y"] == (0.12346, None, 123457) and made["labels"] == {"C1": "C1 (BNTO)"}


def test_numbers_of_any_size_are_shown() -> None:
    """A gradient that explodes: JSON has no whole number from 2^64 on, and nobody reads three hundred digits."""
    x, y = np.arange(1.0, 4.0), np.array([1.5, 1e20, -1.23456789e300])
    assert to_json(traced(trace(x, y)), {})["traces"][0]["y"] == (1.5, 1e20, -1.2346e300)
    assert summary(traced(trace(x, y)), {})[0][3:] == ("1.5 at 1", "-1.235e+300 at 3", "-1.235e+300 at 3", "1e+20 at 2")


SIZES = st.floats(-1e4, 1e4) | st.floats(-1e300, 1e300, allow_subnormal=False)


@given(st.lists(SIZES, min_size=1, max_size=8))
def test_a_page_has_the_five_digits_nearest_to_a_number(numbers: list[float]) -> None:
    made = to_json(traced(trace(range(len(numbers)), numbers)), {})["traces"][0]["y"]
    for number, short in zip(numbers, made, strict=True):
        if 1e4 <= abs(number) < 1e15:
            assert isinstance(short, int) and abs(short - number) <= 0.5
        else:
            power = int(f"{number:.16e}".partition("e")[2])
            assert short == float(f"{short:.5g}") and abs(short - number) <= 0.500001 * 10.0 ** (power - 4)


def test_long_traces_are_thinned_to_real_points_with_the_last_one() -> None:
    x = np.arange(5003.0)
    interval = (x - 1, x + 1)
    made = to_json(traced(trace(x, 2 * x, interval=interval, steps=x)), {})
    (kept,), entry = made["xs"], made["traces"][0]
    assert 200 < len(kept) <= 400 and kept[-1] == 5002
    assert entry["y"] == tuple(pytest.approx(2 * v, rel=1e-4) for v in kept)
    assert len(entry["i"][0]) == len(entry["t"]) == len(kept)


def test_summary_says_the_ends_and_extremes_of_means_and_of_places_their_x() -> None:
    found = traced(trace([1, 2, 3], [0.5, 0.25, 0.75]), trace([1], [9], seed=0))
    assert summary(found, {"C1": "C1 (BNTO)"}) == [
        ("C1 (BNTO)", "mean over seeds", "3", "0.5 at 1", "0.75 at 3", "0.25 at 2", "0.75 at 3")
    ]
    assert summary(traced(trace([0.049], [3], name="")), {})[0][3:] == ("0.049",) * 4


def test_csv_has_every_point_that_is_drawn_and_the_page_those_values(plain: Reported) -> None:
    rows = [row for row in plain.rows("figures/curve_analysis_reward_sum_mean") if row["group"] in ("C0", "C1")]
    assert len(rows) == 2 * (3 + 1) * 60  # two methods, three seeds and the mean
    mean = [row for row in rows if row["group"] == "C1" and row["seed"] == ""]
    assert [float(row["x"]) for row in mean] == list(range(1, 61))
    seeds = [[row for row in rows if row["group"] == "C1" and row["seed"] == str(seed)] for seed in range(3)]
    for place in (0, 30, 59):
        values = [float(of[place]["y"]) for of in seeds]
        assert float(mean[place]["y"]) == pytest.approx(np.mean(values))
        assert float(mean[place]["low"]) < np.mean(values) < float(mean[place]["high"])
    figure = data_of(plain.page)["curve_analysis_reward_sum_mean"]
    shown = next(entry for entry in figure["traces"] if entry["g"] == "C1" and entry["s"] is None)
    assert shown["y"] == [pytest.approx(float(row["y"]), rel=1e-4) for row in mean]


def test_cloud_of_many_points_is_an_image_of_its_method_and_seed(make_sweep: MakeSweep) -> None:
    folder = make_sweep(("C0", "C1"), analysis=SCATTER, lines=lambda group, seed, _: metrics(group, seed, 1500))
    html = reported(folder).page
    name = "scatter_analysis_reward_sum_mean__actor_ppo_kl"
    figure = html[html.index(f'data-figure="{name}"') :]
    figure = figure[: figure.index("</svg>")]
    groups = re.findall(r'<g data-group="(\w+)" data-seed="(\d)">\s*<image', figure)
    assert groups == [(group, str(seed)) for group in ("C0", "C1") for seed in range(3)]
    assert len(html) < 5e6
    assert len((folder / "report" / "figures" / f"{name}.csv").read_text().splitlines()) == 1 + 6 * (1500 + 1)
    for path in folder.parent.glob("runs/*/metrics.jsonl"):  # so few that they are drawn one by one
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:100]))
    assert "<image" not in reported(replan(folder, lambda plan: plan.update(steps=100))).page

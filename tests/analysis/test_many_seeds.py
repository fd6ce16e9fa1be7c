"""A sweep of many seeds: what is drawn together, and what makes a later report of it quick."""

from __future__ import annotations

import csv
import io
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.figures.canvas import TOGETHER, Sketch
from analysis.figures.dense_artists import Cloud
from analysis.figures.figures import figures
from analysis.figures.traces import Panel, Trace, Traces, to_csv
from analysis.stats import curve_summaries, exact
from analysis.stats.curve_summaries import NotEvaluable
from analysis.stats.resolution import DRAWS, EXACT_UP_TO
from tests.analysis.conftest import MakeSweep, studied

REWARD = "analysis/reward_sum_mean"


def drawn(folder: Path) -> dict[str, Sketch]:
    return {figure.name: figure for figure in figures(studied(folder), [])}


@pytest.mark.parametrize("name", ["curve_analysis_reward_sum_mean", "differences"])
def test_many_seeds_are_drawn_as_one_for_each_method(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("learning_curves", "figures"):
        monkeypatch.setattr(f"analysis.figures.{module}.MANY", 3)
    figure = drawn(make_sweep(("C0", "C1"), range(4), 5, {"metrics": [REWARD]}))[name]
    assert TOGETHER in figure.caption
    assert 'data-group="C1"' in figure.inline and "data-seed" not in figure.inline
    assert figure.inline.count("<image") == (2 if name.startswith("curve") else 0)
    rows = list(csv.DictReader(io.StringIO("".join(to_csv(figure.traces)))))
    for method in ("C0", "C1") if name.startswith("curve") else ("C1",):  # every seed's values are there all the same
        assert {row["seed"] for row in rows if row["group"] == method} - {""} == {"0", "1", "2", "3"}


def test_of_very_many_seeds_evenly_chosen_ones_are_drawn_and_the_csv_has_all(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep(("C0", "C1"), range(5), 5, {"metrics": [REWARD]})
    monkeypatch.setattr("analysis.figures.learning_curves.MANY", 3)
    said = "Of a method with more than 2 seeds"
    assert said not in drawn(folder)["curve_analysis_reward_sum_mean"].caption
    monkeypatch.setattr("analysis.figures.learning_curves._DRAWN", 2)
    lines: list[int] = []
    monkeypatch.setattr(Cloud, "draw", lambda self, _: lines.append(len(self.line.get_paths())))
    figure = drawn(folder)["curve_analysis_reward_sum_mean"]
    assert said in figure.caption and figure.inline and lines == [2, 2]
    assert {row["seed"] for row in csv.DictReader(io.StringIO("".join(to_csv(figure.traces))))} == {"", *"01234"}


def test_few_seeds_are_drawn_one_by_one(make_sweep: MakeSweep) -> None:
    figure = drawn(make_sweep(("C0", "C1"), (0, 1), 5, {"metrics": [REWARD]}))["curve_analysis_reward_sum_mean"]
    assert TOGETHER not in figure.caption and "<image" not in figure.inline
    assert figure.inline.count('data-seed="1"') == 2


def test_csv_has_every_number_as_python_writes_it() -> None:
    random = np.random.default_rng(0)
    hard = [0.0, -0.0, 1e-4, 9.9e-5, -5e-5, 5e-324, 1e15, 1e16, 1.7976931348623157e308, 0.1 + 0.2, 3.0]
    wide = random.standard_normal(500) * 10.0 ** random.integers(-20, 20, 500)
    y = np.array([*hard, math.nan, math.inf, *wide])
    panel = Panel((0, 0, 1, 1), ('step, "of" all', 0, 1, False), ("y", 0, 1, False))
    traces = tuple(Trace(0, "C,1", seed, "seed", "y", np.arange(y.size, dtype=float), y) for seed in (0, 1))
    _, *rows = csv.reader(io.StringIO("".join(to_csv(Traces((panel,), traces)))))
    assert [row[8] for row in rows] == [repr(v) if math.isfinite(v) else "" for v in y.tolist()] * 2
    assert {(row[1], row[5]) for row in rows} == {("C,1", 'step, "of" all')}


@pytest.mark.parametrize("n", [1, 2, 9, 15, 17, 21, 24, 33])
def test_sums_are_those_of_sign_patterns(n: int) -> None:
    z = np.random.default_rng(n).standard_normal((n, 2))
    found = np.concatenate(list(exact.flipped(np.hstack((np.eye(n), z)), seed=3)))  # of the unit vectors: the signs
    signs, sums = found[:, :n], found[:, n:]
    assert np.array_equal(np.abs(signs), np.ones_like(signs)) and np.allclose(signs @ z, sums)
    if n <= EXACT_UP_TO:
        assert len(found) == 2 ** (n - 1) and (signs[:, 0] == 1).all() and len(np.unique(signs, axis=0)) == len(found)
    else:
        assert len(found) == DRAWS and np.abs(signs.mean(axis=0)).max() < 0.02


def test_curves_on_one_axis_are_summarised_as_each_alone() -> None:
    x = np.array([1.0, 2, 5, 6, 9, 10])
    rows = np.random.default_rng(0).standard_normal((4, x.size))
    for low, high in ((1, 10), (2, 9), (1.5, 7.25), (5, 5)):
        alone = [curve_summaries.auc(x, row, low, high) for row in rows]
        assert curve_summaries.areas(x, rows, low, high).tolist() == alone
    for stop in (10.0, 9.0, 6.5):
        alone = [curve_summaries.final(x, row, stop, fraction=0.5) for row in rows]
        assert curve_summaries.finals(x, rows, stop, fraction=0.5).tolist() == alone
    with pytest.raises(NotEvaluable, match="ends at 10 of 12"):
        curve_summaries.areas(x, rows, 1, 12)


@pytest.mark.processes
def test_report_is_the_same_under_any_pandas_for_it_loads_none(make_sweep: MakeSweep) -> None:
    folder = make_sweep(("C0", "C1"), (0, 1), 5, {"metrics": [REWARD]})
    code = (
        "import sys; from pathlib import Path; from analysis.data import metric_log; from analysis.report import write;"
        "metric_log.SMALL = 0; write(Path(sys.argv[1])); write(Path(sys.argv[1])); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
    assert list(folder.parent.glob("cache/curves/*.columns")), "the second report has read what the first one kept"

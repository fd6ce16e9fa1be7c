"""Reports of logs as other tools write them: other steps in every run, gaps, single values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.data.run_values import common_range, value_of
from analysis.data.sweep import read_sweep
from analysis.figures.figures import figures
from analysis.findings.study import Ground, Outcome, Reason
from analysis.findings.verdicts import judge
from analysis.report.headline import answer
from analysis.stats.curve_summaries import auc, interval
from analysis.stats.mean_curves import heights, on_grid
from tests.analysis.conftest import Lines, MakeSweep, block_of, studied, without
from tests.analysis.foreign_logs import RETURN, log

ASKED = {"primary": {"metric": RETURN, "direction": "higher"}}


def test_a_grid_keeps_equal_steps_and_bridges_missing_ones() -> None:
    steps = np.arange(1.0, 21.0)
    points, _, interpolated = on_grid([(steps, steps), (steps.copy(), 2 * steps)], 400)
    assert points is steps and not interpolated
    gap = np.delete(steps, 9)
    points, values, interpolated = on_grid([(steps, steps), (gap, 2 * gap)], 400)
    assert interpolated and np.array_equal(points, steps)
    assert values[1] == pytest.approx(2 * steps)
    points, _, interpolated = on_grid([(steps, steps), (steps[4:], steps[4:])], 400)
    assert not interpolated and np.array_equal(points, steps[4:])
    points, _, _ = on_grid([(steps, steps), (steps + 30, steps)], 400)
    assert points.size == 0


def test_mean_heights_have_the_area_of_the_curve() -> None:
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 100, 900))
    y = random.standard_normal(900)
    edges = np.linspace(x[0], x[-1], 51)
    parts = heights(x, y, edges)
    assert parts.mean() == pytest.approx(auc(x, y))
    assert parts[7] == pytest.approx(auc(x, y, edges[7], edges[8]))


def test_the_interval_of_an_irregular_log_is_its_longest() -> None:
    assert interval(np.delete(np.arange(100.0), slice(40, 60))) == 1
    assert interval(np.array([0.0, 5, 30, 32, 90, 91])) == 58


def test_a_best_value_is_described_and_not_judged(make_sweep: MakeSweep) -> None:
    """Equal mean curves, and twice the noise: the maximum alone would call the noisier method better."""

    def lines(group: str, seed: int, _: object) -> Lines:
        noise = np.random.default_rng([seed, group == "b"]).standard_normal(40)
        return log(np.arange(1, 41) * 5000, 0.5 + (0.1 if group == "b" else 0.05) * noise)

    claim = {"claim": "b is best.", "kind": "greater", "group": "b", "metric": RETURN, "summary": "best"}
    asked = {**ASKED, "hypotheses": {"H": claim}}
    found = studied(make_sweep(groups=("a", "b"), seeds=range(10), steps=200000, analysis=asked, lines=lines))
    comparison = block_of(found, RETURN, "best").comparison("b")
    assert comparison is not None and comparison.difference > 0.05 and comparison.contrast.above >= 9
    assert (comparison.outcome, comparison.p, comparison.adjusted) == (Outcome.NOT_EVALUABLE, None, None)
    assert comparison.ground == Ground(Reason.MAXIMUM) and comparison.interval is None
    verdict = judge(found.settings.hypotheses[0], found)
    assert (verdict.verdict, verdict.grounds) == (Outcome.NOT_EVALUABLE, (Ground(Reason.MAXIMUM),))


def evaluations(group: str, seed: int, _: object) -> Lines:
    """Thirty noisy points, 5,000 steps apart; of seed 1, every second one is missing."""
    noise = np.random.default_rng([seed, group == "b"]).standard_normal(30)
    steps = np.arange(1, 31) * 5000
    kept = slice(None, None, 2) if seed == 1 else slice(None)
    return log(steps[kept], (steps / 150000 + 0.2 * noise)[kept])


@pytest.mark.parametrize("window", [20, 20000, {"points": 4}])
def test_a_window_has_as_many_points_or_steps_as_it_says(make_sweep: MakeSweep, window: Any) -> None:
    target = {"metric": RETURN, "at": 0.5}
    claim = {"claim": "-", "kind": "range", "group": "a", "metric": RETURN, "summary": "largest_change", "high": 9}
    asked = {**ASKED, "time_to": [target], "window": window, "hypotheses": {"H": claim}}
    found = studied(make_sweep(groups=("a", "b"), steps=150000, analysis=asked, lines=evaluations))
    best, reached = block_of(found, RETURN, "best"), block_of(found, RETURN, "time_to")
    jump = judge(found.settings.hypotheses[0], found)
    jumps = []
    for run in (run for run in found.sweep.runs if run.group == "a"):
        steps = np.arange(5000, 145001, 5000)  # those of all runs, to where seed 1 ends
        values = np.interp(steps, run.curves.steps, run.curves.values[RETURN])
        apart = np.diff(steps)[0]
        points = window["points"] if isinstance(window, dict) else max(1, int(window // apart))
        means = np.convolve(values, np.ones(points) / points, "valid")
        final = values[steps > 0.9 * 145000].mean()
        assert best.values[run.id].value == pytest.approx(max(means.max(), final))
        first = int(np.argmax(means >= 0.5))
        before = means[first - 1]
        expected = steps[points - 1 + first] - apart * (means[first] - 0.5) / (means[first] - before)
        assert reached.values[run.id].value == pytest.approx(expected)
        reach = points if isinstance(window, dict) or window > apart else 0
        near = [abs(values[i + k] - values[i]) for k in range(1, reach + 1) for i in range(values.size - k)]
        jumps.append(max(near, default=0.0) / np.abs(values).max())
    assert jump.estimate == pytest.approx(np.mean(jumps))


# ---------------------------------------------------------------- where runs are measured

TASKS = {group: [{"task": name} for name in ("long", "short")] for group in ("a", "b")}


def test_a_run_is_lost_only_for_summaries_that_need_what_it_lacks(make_sweep: MakeSweep) -> None:
    """The last values of a metric are not numbers: 3 of 400 of seed 1, which all then lack; 40 of seed 2."""

    def lines(group: str, seed: int, _: object) -> Lines:
        made = log(np.arange(1, 401), np.arange(1, 401) / 400)
        for line in made[400 - {("b", 1): 3, ("b", 2): 40}.get((group, seed), 0) :]:
            line[RETURN] = float("nan")
        return made

    sweep = read_sweep(make_sweep(("a", "b"), range(5), 400, ASKED, lines=lines))
    common = common_range(sweep.runs, RETURN, "exclude", window=20)
    for summary, lost in {"final": {"b-2"}, "auc": {"b-2"}, "best": {"b-2"}, "early": set()}.items():
        values = {run.id: value_of(common, run.id, summary, "higher") for run in sweep.runs}
        assert {run for run, value in values.items() if value.value is None} == lost, summary
        assert len({value.value for run, value in values.items() if run not in lost}) == 1


@pytest.mark.parametrize("curve", [lambda x: x, lambda x: np.minimum(x, 120)])
@pytest.mark.parametrize("kind", ["random", "every tenth", "one gap"])
def test_identical_curves_have_equal_summaries_at_whichever_steps_they_are_logged(
    make_sweep: MakeSweep, curve: Any, kind: str
) -> None:
    def lines(group: str, seed: int, _: object) -> Lines:
        random = np.random.default_rng([seed, group == "a"]).integers(2, 200, 60)
        steps = {
            "random": np.unique([1, 60, 120, 200, *random]),
            "every tenth": np.arange(200) + 1 if seed else np.unique([1, *range(10, 201, 10)]),
            "one gap": np.delete(np.arange(200) + 1, 140 + 10 * seed + (group == "a")),
        }[kind]
        return log(steps, curve(steps))

    found = studied(make_sweep(("a", "b"), range(4), 200, ASKED, lines=lines), time_to=[{"at": 100}])
    assert "Runs were recorded at different steps" in answer(found).result
    common = found.ranges[RETURN]
    for summary in ("final", "auc", "best", "mean", "early", "slope", "late_relative", "time_to"):
        values = [value_of(common, run.id, summary, "higher", 100).value for run in found.sweep.runs]
        assert values == pytest.approx([values[0]] * 8, abs=1e-9 if kind != "random" else 0.6), summary


def test_levels_without_a_common_step_are_compared_and_not_drawn(make_sweep: MakeSweep) -> None:
    def lines(group: str, seed: int, cell: Any) -> Lines:
        steps = np.arange(1, 11) if cell["task"] == "short" else np.arange(20, 201, 10)
        return log(steps, steps / steps[-1] + 0.01 * seed * (group == "b"))

    folder = make_sweep(("a", "b"), range(4), 200, ASKED, TASKS, lines=lines)
    without(folder, "b-2-1")
    found = studied(folder, time_to=[{"at": 0.5}])
    assert found.primary.comparisons[0].difference == pytest.approx(0.015, abs=0.003)
    assert "from step 10 (task = short) to step 200 (task = long)" in answer(found).result
    assert next(made.name for made in figures(found, [])) == "differences"

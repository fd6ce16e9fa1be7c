"""Reports of logs as other tools write them: other steps in every run, gaps, single values."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data.sweep import read_sweep
from analysis.figures.learning_curves import curves
from analysis.figures.series import series
from analysis.findings.outcomes import Ground, Outcome, Reason
from analysis.findings.study import Study, study
from analysis.findings.verdicts import judge
from analysis.spec.figure_spec import curves as picture
from analysis.spec.settings import settings
from analysis.stats.common_grid import heights, on_grid
from analysis.stats.curve_summaries import auc, interval
from analysis.tables.comparison import main
from launcher.run.folder import run_folder
from tests.analysis.conftest import Lines, MakeSweep, block_of

RETURN = "eval/return"
ASKED = {"primary": {"metric": RETURN, "direction": "higher"}}


def log(steps: Any, values: Any) -> Lines:
    return [{"step": int(step), RETURN: float(value)} for step, value in zip(steps, values, strict=True)]


def episodes(group: str, seed: int, _: object) -> Lines:
    """A line at the end of each episode, whose length is random; the value is known at every step."""
    random = np.random.default_rng([seed, group == "a"])
    steps = np.cumsum(1 + random.exponential(200, 600).astype(int))
    steps = steps[steps <= 60000]
    return log(steps, steps / 60000)


def studied(folder: Path) -> Study:
    sweep = read_sweep(folder)
    return study(sweep, settings(ASKED, groups=sweep.groups, baseline=sweep.baseline))


def test_runs_that_log_each_episode_have_a_curve_and_all_their_seeds(make_sweep: MakeSweep) -> None:
    found = studied(make_sweep(groups=("a", "b"), seeds=range(8), steps=60000, analysis=ASKED, lines=episodes))
    for of, estimate in zip(series(found, RETURN), found.primary.estimates, strict=True):
        assert of.seeds == estimate.seeds == tuple(range(8))
        assert of.interpolated and np.isfinite(of.whole).all()
        inside = slice(20, -20)  # near its ends, the smoothing is not centred
        assert of.whole[:, inside] == pytest.approx(np.broadcast_to(of.axis / 60000, of.whole.shape)[:, inside])
    drawn = curves(found, picture(RETURN))
    assert drawn is not None and "interpolated onto common steps" in drawn.caption


def test_tasks_with_other_steps_are_drawn_to_their_common_end(make_sweep: MakeSweep) -> None:
    every = {"short": 2000, "middle": 5000, "long": 7000}
    tasks = {group: [{"task": name} for name in every] for group in ("a", "b")}

    def lines(group: str, seed: int, cell: Any) -> Lines:
        steps = np.arange(every[cell["task"]], 70001, every[cell["task"]])
        return log(steps, steps / 70000 + (cell["task"] == "long"))

    folder = make_sweep(groups=("a", "b"), steps=70000, analysis=ASKED, cells=tasks, lines=lines)
    for of in series(studied(folder), RETURN):
        assert (of.axis[0], of.axis[-1]) == (7000, 70000)
        assert of.whole[:, -1] == pytest.approx([4 / 3] * 3)
        assert of.averaged == ""

    shutil.rmtree(run_folder(folder.parent, "b-2-0"))  # seed 2 of the short task
    found = studied(folder)
    of = series(found, RETURN)[1]
    assert of.seeds == found.primary.estimate("b").seeds == (0, 1, 2)
    assert of.whole[:, -1] == pytest.approx([4 / 3] * 3)  # every task, as in the table
    drawn = curves(found, picture(RETURN))
    assert drawn is not None and "b: each cell counts the same; where a seed lacks one," in drawn.caption


def test_one_value_for_each_run_at_other_steps_is_a_result(make_sweep: MakeSweep) -> None:
    def lines(group: str, seed: int, _: object) -> Lines:
        return log([1000 - 3 * seed], [seed + (group == "b")])

    found = studied(make_sweep(groups=("a", "b"), steps=1000, analysis=ASKED, lines=lines))
    assert [estimate.mean for estimate in found.primary.estimates] == [1.0, 2.0]
    assert block_of(found, RETURN, "auc").estimate("a").seeds == ()
    assert [of.axis.tolist() for of in series(found, RETURN)] == [[997.0], [997.0]]
    drawn = curves(found, picture(RETURN))
    assert drawn is not None and "drawn at the mean of these steps" in drawn.caption


def test_a_grid_keeps_equal_steps_and_bridges_missing_ones() -> None:
    steps = np.arange(1.0, 21.0)
    same = on_grid([(steps, steps), (steps.copy(), 2 * steps)], 400)
    assert same.points is steps and not same.interpolated
    gap = np.delete(steps, 9)
    bridged = on_grid([(steps, steps), (gap, 2 * gap)], 400)
    assert bridged.interpolated and np.array_equal(bridged.points, steps)
    assert bridged.values[1] == pytest.approx(2 * steps)
    later = on_grid([(steps, steps), (steps[4:], steps[4:])], 400)
    assert not later.interpolated and np.array_equal(later.points, steps[4:])
    apart = on_grid([(steps, steps), (steps + 30, steps)], 400)
    assert apart.ends is None and apart.points.size == 0


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

    folder = make_sweep(groups=("a", "b"), seeds=range(10), steps=200000, analysis=ASKED, lines=lines)
    comparison = block_of(studied(folder), RETURN, "best").comparison("b")
    assert comparison is not None and comparison.difference > 0.05 and comparison.result.better >= 9
    assert (comparison.outcome, comparison.p, comparison.adjusted) == (Outcome.NOT_EVALUABLE, None, None)
    assert comparison.ground == Ground(Reason.MAXIMUM) and comparison.result.interval is None
    claim = {"claim": "b is best.", "kind": "greater", "group": "b", "metric": RETURN, "summary": "best"}
    sweep = read_sweep(folder)
    asked = settings({**ASKED, "hypotheses": {"H": claim}}, groups=sweep.groups, baseline=sweep.baseline)
    verdict = judge(asked.hypotheses[0], study(sweep, asked))
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
    claim = {
        "claim": "No jump.",
        "kind": "range",
        "group": "a",
        "metric": RETURN,
        "summary": "largest_change",
        "high": 9,
    }
    asked = {**ASKED, "time_to": [target], "window": window, "hypotheses": {"H": claim}}
    sweep = read_sweep(make_sweep(groups=("a", "b"), steps=150000, analysis=asked, lines=evaluations))
    found = study(sweep, settings(asked, groups=sweep.groups, baseline=sweep.baseline))
    best, reached = block_of(found, RETURN, "best"), block_of(found, RETURN, "time_to")
    jump = judge(found.settings.hypotheses[0], found)
    jumps = []
    for run in (run for run in sweep.runs if run.group == "a"):
        inside = run.curves.steps <= 145000  # where seed 1 ends
        steps, values = run.curves.steps[inside], run.curves.values[RETURN][inside]
        apart = np.diff(steps)[0]
        points = window["points"] if isinstance(window, dict) else max(1, int(window // apart))
        means = np.convolve(values, np.ones(points) / points, "valid")
        assert best.values[run.id].value == pytest.approx(means.max())
        first = int(np.argmax(means >= 0.5))
        before = means[first - 1]
        expected = steps[points - 1 + first] - apart * (means[first] - 0.5) / (means[first] - before)
        assert reached.values[run.id].value == pytest.approx(expected)
        reach = points if isinstance(window, dict) or window > apart else 0
        near = [abs(values[i + k] - values[i]) for k in range(1, reach + 1) for i in range(values.size - k)]
        jumps.append(max(near, default=0.0) / np.abs(values).max())
    assert jump.estimate == pytest.approx(np.mean(jumps))


@pytest.mark.parametrize(
    ("window", "says", "warns"),
    [
        (
            20,
            "1 point, 20 steps",
            "every 5,000 to 10,000 steps, so a window of 20 steps has 1 point and smooths nothing",
        ),
        (20000, "2 to 4 points, 20,000 steps", None),
        ({"points": 4}, "4 points, 20,000 to 40,000 steps", None),
        ({"points": 16}, "16 points, 80,000 to 160,000 steps (of a run with fewer points, all 15)", None),
        (1, "1 point, 1 step", None),
    ],
)
def test_notes_say_what_the_window_is(make_sweep: MakeSweep, window: Any, says: str, warns: str | None) -> None:
    asked = {**ASKED, "window": window}
    sweep = read_sweep(make_sweep(groups=("a", "b"), steps=150000, analysis=asked, lines=evaluations))
    found = study(sweep, settings(asked, groups=sweep.groups, baseline=sweep.baseline))
    notes = main(found).notes
    assert f"Best value of eval/return: the window is {says}." in notes
    warnings = [note for note in notes if "smooths nothing" in note]
    assert len(warnings) == bool(warns) and all(warns in note for note in warnings if warns)
    if warns:
        assert warnings[0].endswith("analysis.window: {points: 20} is 20 points.")


def test_a_window_of_steps_with_a_point_each_is_said_in_steps(make_sweep: MakeSweep) -> None:
    sweep = read_sweep(make_sweep(groups=("C0", "C1")))
    asked = sweep.plan["analysis"]
    notes = main(study(sweep, settings(asked, groups=sweep.groups, baseline=sweep.baseline))).notes
    assert "Best value of mean reward: the window is 20 steps." in notes

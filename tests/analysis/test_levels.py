"""The first screen of an experiment with factors: each method at each level, and which runs collapsed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data.metric_log import Curves
from analysis.data.sweep import read_sweep
from analysis.findings.outcomes import Collapse, collapse
from analysis.report import terminal, write
from analysis.report.paper import write_paper
from analysis.spec.settings import REWARD
from analysis.tables.levels import AtLevel, levels
from tests.analysis.conftest import MakeSweep, ended, replan, studied
from tests.analysis.test_reports import ENTROPY, LEVELS, STD, built

EVALUATION = "eval/reward_mean"
GOOD, BAD = 0.1, 0.5


def test_the_first_screen_shows_each_method_at_each_level(make_sweep: MakeSweep) -> None:
    """The mean of two levels, 0.218 against 0.231, hides that one level earns nothing."""
    written = write(built(make_sweep, LEVELS["one factor"]))
    lines = (*written.answer.levels, *written.answer.collapsed)
    assert len(lines) == 3 and "C0 (GRPO): 0.436 at lr = 0.1, 0 at lr = 0.5 (collapsed)." in lines
    page, printed, paper = written.index.read_text(), terminal.text(written), write_paper(written).read_text()
    above = page[: page.index('id="main"')]
    assert all(f"<li>{line}</li>" in above and f"* {line}\n" in printed for line in lines)
    assert all(line in paper for line in written.answer.levels)


FLAT = np.full(40, 0.5)
FALLEN = np.concatenate(([0.5], np.zeros(39)))


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ({REWARD: FLAT, STD: FLAT, ENTROPY: FLAT}, ()),
        ({REWARD: FALLEN}, (Collapse.REWARD_GONE,)),
        ({REWARD: 0 * FLAT}, (Collapse.NEVER_REWARDED,)),
        ({EVALUATION: FALLEN, REWARD: FLAT}, (Collapse.REWARD_GONE,)),
        ({REWARD: FALLEN, ENTROPY: FALLEN}, (Collapse.REWARD_GONE, Collapse.ENTROPY_GONE)),
        ({REWARD: FALLEN - 1, STD: FALLEN}, (Collapse.REWARDS_ALIKE,)),
        ({REWARD: 1 - FALLEN, STD: FALLEN, ENTROPY: FALLEN}, ()),  # solved, and deterministic since
        ({REWARD: FALLEN - 0.5}, ()),  # a penalty that ends lower than it began, with spread that is not recorded
        ({REWARD: -FALLEN}, ()),  # a penalty that ends at 0, which is the best of it
        ({REWARD: np.concatenate((FLAT[:38], [0, 0]))}, ()),  # two steps without reward are not yet an end
        ({REWARD: np.concatenate((FLAT[:36], [0, 0, 0, 0.01]))}, ()),
        ({REWARD: np.zeros(3)}, ()),  # too short to be judged
        ({ENTROPY: FALLEN}, ()),  # without a reward nobody knows whether it was for the worse
    ],
)
def test_what_counts_as_a_collapse(
    make_sweep: MakeSweep, curves: dict[str, Any], expected: tuple[Collapse, ...]
) -> None:
    (run,) = read_sweep(make_sweep(("C0",), (0,), 40)).runs
    steps = np.arange(1.0, 1 + max(map(len, curves.values())))
    made = Curves(steps, {key: np.asarray(values, dtype=float) for key, values in curves.items()})
    assert collapse(replace(run, curves=made)) == expected


# ---------------------------------------------------------------- the best level, for those who take it


def of_lr(folder: Path, **settings: Any) -> dict[str, Any]:
    """The levels of lr by group, with their results, means and the best one."""
    factors = {"a.lr": {"label": "lr", "levels": [GOOD, BAD]}, "a.other": {"label": "other", "levels": [1]}}
    replan(folder, lambda plan: (plan["factors"].update(factors), plan["analysis"]["primary"].update(settings)))
    found = levels(studied(folder))
    assert {one.factor for one in found} <= {"a.lr"}, "a factor of one level is not chosen from"
    return {one.group: one for one in found}


def test_the_best_level_has_the_best_mean_of_the_primary_measure(make_sweep: MakeSweep) -> None:
    folder = built(make_sweep, LEVELS["one factor"])
    found = of_lr(folder)
    assert found["C0"].levels == (AtLevel(GOOD, 2, 2, pytest.approx(0.436)), AtLevel(BAD, 2, 2, 0.0))
    assert {group: one.best.level for group, one in found.items()} == {"C0": GOOD, "C1": GOOD}
    assert of_lr(folder, direction="lower")["C0"].best.level == BAD


def test_a_level_that_lacks_a_result_is_not_the_best(make_sweep: MakeSweep) -> None:
    folder = built(make_sweep, LEVELS["one factor"])
    ended(folder, "diverged", "C0-0-0")
    found = of_lr(folder)
    assert found["C0"].levels[0].results == 1 and found["C0"].best.level == BAD and found["C1"].best.level == GOOD
    report = json.loads((write(folder).index.parent / "report.json").read_text())
    assert report["levels"][0]["best"]["level"] == BAD and report["levels"][0]["factor"] == "a.lr"

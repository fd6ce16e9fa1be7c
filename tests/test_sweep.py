"""The whole path on real training, as a user walks it: launch, launch again, delete a run, train for longer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.run import evaluations
from launcher.run.folder import histograms_path, latest_checkpoint, read_config, responses_path
from tests.results import digests, learned, states
from tests.trainer_ext.conftest import FEW_PROMPTS
from tests.trainer_ext.test_backends import saved

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.train, pytest.mark.processes, pytest.mark.timeout(600)]
STEPS = 24
SEEDS = (0, 1)
#: Evaluations and targets are small: it does not matter here how good they are.
QUICK = ["task.warm_start.steps=20", "trainer.eval_prompts=4", "method.target_steps=5", *FEW_PROMPTS]


def launch(multirun: Path, *seeds: int) -> subprocess.CompletedProcess[str]:
    words = [f"trainer.steps={STEPS}", "trainer.checkpoint_every=5", f"seed={','.join(map(str, seeds))}"]
    command = [sys.executable, "launch.py", "-m", "experiment=quickstart", *QUICK, *words, f"multirun={multirun}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that nothing disturbed: 5 methods x 2 seeds."""
    multirun = tmp_path_factory.mktemp("whole") / "multirun"
    done = launch(multirun, *SEEDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return multirun


def test_every_run_is_done_with_one_line_a_step(finished):
    found = states(finished)
    assert len(found) == 10
    assert {state["state"] for state in found.values()} == {"done"}
    for lines in learned(finished).values():
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))


def test_the_same_command_again_only_reports_and_changes_no_byte(finished):
    before = digests(finished)
    again = launch(finished, *SEEDS)
    assert again.returncode == 0, again.stderr
    assert digests(finished) == before


def test_a_deleted_run_comes_back_with_the_same_metrics(finished):
    expected, untouched = learned(finished), states(finished)
    victim = sorted(untouched)[0]
    shutil.rmtree(finished / "runs" / victim)
    assert launch(finished, *SEEDS).returncode == 0
    assert learned(finished) == expected
    after = states(finished)
    assert {k: v for k, v in after.items() if k != victim} == {k: v for k, v in untouched.items() if k != victim}


#: A critic, a controller with a state, a target, and a method without any.
METHODS = "c0_ppo,bnto_plateau,q_star"
LONGER = [
    *("task.warm_start.steps=20", "trainer.eval_every=2", "trainer.eval_prompts=4", "method.target_steps=5"),
    *("trainer.checkpoint_every=3", "experiment.baseline=c0_ppo", "experiment.name=longer"),
    *("analysis.primary.metric=eval/reward_mean", *FEW_PROMPTS),
]


def train_longer(multirun: Path, steps: int) -> str:
    command = [sys.executable, "launch.py", "-m", f"method={METHODS}", *LONGER, f"trainer.steps={steps}"]
    done = subprocess.run([*command, f"multirun={multirun}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def content(folder: Path) -> dict[str, Any]:
    """Everything in a run's folder that training has decided, but for the metrics."""

    def lines(path: Path) -> list[dict[str, Any]]:
        read = [json.loads(line) for line in path.read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "attempt"} for line in read]

    newest = latest_checkpoint(folder)
    assert newest is not None
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "checkpoint": (newest[0], saved(newest[1])),
        "histograms": lines(histograms_path(folder)),
        "responses": lines(responses_path(folder)),
        "evaluations": {step: evaluations.read(folder, step) for step in evaluations.paths(folder)},
        "summary": {key: value for key, value in summary.items() if not key.endswith("_seconds")},
    }


def test_a_run_that_was_continued_is_the_run_that_was_not_bit_for_bit(tmp_path):
    short, direct = tmp_path / "extended", tmp_path / "direct"
    train_longer(short, 4)
    before = {path.name: digests(path) for path in (short / "runs").iterdir()}
    said = train_longer(short, 8)
    assert "3 runs continue runs from step 4 on\n" in said
    train_longer(direct, 8)
    expected, found = learned(direct), learned(short)
    assert {run_id: found[run_id] for run_id in expected} == expected
    for run_id in expected:
        folder = short / "runs" / run_id
        assert content(folder) == content(direct / "runs" / run_id)
        assert json.loads((folder / "state.json").read_text())["from_step"] == 4
    for run_id, kept in before.items():
        assert {name: one for name, one in digests(short / "runs" / run_id).items() if name != ".lock"} == {
            name: one for name, one in kept.items() if name != ".lock"
        }
    once = next(name for name in expected if read_config(short / "runs" / name)["method"]["control"] == "dual")
    command = [sys.executable, "-m", "launcher", "verify", once, "--run", "--multirun", str(short)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "8 steps are equal" in done.stdout, done.stdout + done.stderr

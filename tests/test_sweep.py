"""The whole path on real training, as a user walks it: launch, launch again, delete a run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.results import digests, learned, states
from tests.trainer_ext.conftest import FEW_PROMPTS

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

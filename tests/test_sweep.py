"""The whole path on real training, as a user walks it: launch, launch again, delete a run, kill a process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.results import digests, learned, states
from tests.trainer_ext.conftest import FEW_PROMPTS
from tests.waiting import until

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.train, pytest.mark.processes, pytest.mark.timeout(600)]
STEPS = 24
SEEDS = (0, 1)
#: Evaluations and targets are small: it does not matter here how good they are.
QUICK = ["task.warm_start.steps=20", "trainer.eval_prompts=4", "method.target_steps=5", *FEW_PROMPTS]


def command(multirun: Path, *seeds: int) -> list[str]:
    return [
        sys.executable,
        "launch.py",
        "-m",
        "experiment=quickstart",
        *QUICK,
        f"trainer.steps={STEPS}",
        "trainer.checkpoint_every=5",
        f"seed={','.join(map(str, seeds))}",
        f"multirun={multirun}",
    ]


def launch(multirun: Path, *seeds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(multirun, *seeds), cwd=ROOT, capture_output=True, text=True)


def past_a_checkpoint(multirun: Path) -> list[str]:
    return [path.parent.parent.name for path in multirun.glob("runs/*/checkpoints/step_0000[1-2]*")]


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


@pytest.mark.parametrize("whom", ["launcher", "worker"])
def test_killed_in_the_middle_nothing_is_lost(whom, finished, tmp_path):
    """A worker's run is taken up by its launcher; a launcher's runs by the same command again. One seed's runs."""
    multirun, seed = tmp_path / "multirun", SEEDS[0]
    with subprocess.Popen(
        command(multirun, seed), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as launcher:
        victim = until(lambda: past_a_checkpoint(multirun))[0]
        if whom == "launcher":
            launcher.send_signal(signal.SIGKILL)
        else:
            os.kill(states(multirun)[victim]["pid"], signal.SIGKILL)
        launcher.communicate()
    finished_before = {name for name, state in states(multirun).items() if state["state"] == "done"} - {victim}
    if whom == "worker":
        assert launcher.returncode == 0
        assert states(multirun)[victim]["ends"] == {"lost": 1}
    else:
        again = launch(multirun, seed)
        assert again.returncode == 0, again.stdout + again.stderr
    found = states(multirun)
    assert {state["state"] for state in found.values()} == {"done"}
    assert found[victim]["attempt"] == 2
    assert all(found[name]["attempt"] == 1 for name in finished_before)
    undisturbed = learned(finished)
    assert len(found) == len(undisturbed) / len(SEEDS)
    assert learned(multirun) == {name: undisturbed[name] for name in found}

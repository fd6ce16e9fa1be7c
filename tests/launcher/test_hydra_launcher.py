"""Launchers of Hydra's run the same frozen runs: real plugins, real training, through launch.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize

from launcher.run.folder import metrics_path, run_folder, runs_folder
from launcher.run.lifecycle import read_state
from launcher.schedulers.hydra_launcher import KEY, HydraLauncher
from tests.results import learned
from tests.waiting import ended, until

pytestmark = pytest.mark.timeout(900)  # several launches of real training in one test
ROOT = Path(__file__).parents[2]
RUNS = [
    "-m",
    "method=c0_grpo",
    "experiment.name=adhoc",
    "seed=0,1",
    "task.warm_start.steps=5",
    "trainer.checkpoint_every=1",
]


def launch(multirun: Path, *arguments: str, steps: int = 3) -> subprocess.Popen[str]:
    command = [sys.executable, "launch.py", *RUNS, f"trainer.steps={steps}", f"multirun={multirun}", *arguments]
    own = f"hydra.sweep.dir={multirun}/hydra"
    return subprocess.Popen(
        [*command, own], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


@pytest.mark.parametrize("digits", ["123456789012", "12345678e012", "0123456789ab", "1_2"])
def test_a_job_gets_its_names_as_they_are_even_where_they_look_like_numbers(tmp_path: Path, digits: str) -> None:
    batches: list[list[list[str]]] = []

    class Plugin:
        def launch(self, batch: list[list[str]], initial_job_idx: int) -> None:
            batches.append(batch)

    record = tmp_path / "it's mine" / f"{digits}.json"
    scheduler = HydraLauncher(Plugin(), record)
    scheduler.submit(run_folder(tmp_path, digits), digits)
    scheduler.poll(60)
    ((job,),) = batches
    with initialize(version_base="1.3", config_path=None):
        assert compose(overrides=job)[KEY] == {"run": digits, "record": str(record), "job": digits}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, float]]]:
    """What the runs have learned in the pool."""
    multirun = tmp_path_factory.mktemp("pool")
    ours = launch(multirun)
    ended(ours)
    return learned(multirun)


@pytest.mark.processes
@pytest.mark.parametrize(
    "plugin",
    [
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
        ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"],
    ],
    ids=["joblib", "submitit_local"],
)
def test_a_plugin_runs_the_same_runs_to_the_same_numbers(
    plugin: list[str], tmp_path: Path, pool: dict[str, list[dict[str, float]]]
) -> None:
    theirs = launch(tmp_path / "plugin", *plugin)
    said = ended(theirs)
    assert "2 done" in said, said
    command = json.loads((tmp_path / "plugin/adhoc/plan.json").read_text())["command"]
    assert command.endswith(" ".join(plugin))  # `resume` says it again
    assert learned(tmp_path / "plugin") == pool
    again = launch(tmp_path / "plugin", *plugin)
    said = ended(again)
    assert "started" not in said, said


@pytest.mark.processes
def test_interrupted_runs_of_a_plugin_save_and_go_on(tmp_path: Path) -> None:
    first = launch(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", steps=400)
    runs = runs_folder(tmp_path)
    until(
        lambda: (
            first.poll() is not None
            or (runs.is_dir() and any(metrics_path(folder).exists() for folder in runs.iterdir()))
        )
    )
    assert first.poll() is None, first.communicate()[0]
    os.kill(first.pid, signal.SIGINT)
    said = ended(first, 130)
    states = [read_state(folder) for folder in sorted(runs_folder(tmp_path).iterdir())]
    assert sorted(state.state for state in states) == ["planned", "preempted"], said  # the second had not begun
    plan = json.loads((tmp_path / "adhoc" / "plan.json").read_text())
    assert not list((tmp_path / "launches").glob("*.closed")) and len(plan["runs"]) == 2

"""Launchers of Hydra's run the same frozen runs: real plugins, real training, through launch.py; and Hydra's own suites
for launchers and sweepers, as the installed Hydra has them, under `hydra/sweeper=rlsweep`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite, IntegrationTestSuite, LauncherTestSuite

from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, read_state
from launcher.schedulers.hydra_launcher import KEY, HydraLauncher
from launcher.schedulers.protocol import SchedulerError
from tests.launcher.made import make_run
from tests.results import learned, states
from tests.waiting import ended, until

pytestmark = pytest.mark.timeout(900)  # several launches of real training in one test
ROOT = Path(__file__).parents[2]
RUNS = ["-m", "method=c0_grpo", "experiment.name=adhoc", "seed=0,1"]
RUNS += ["task.warm_start.steps=5", "trainer.checkpoint_every=1"]


def launch(multirun: Path, *arguments: str, steps: int = 3) -> subprocess.Popen[str]:
    command = [sys.executable, "launch.py", *RUNS, f"trainer.steps={steps}", f"multirun={multirun}", *arguments]
    command.append(f"hydra.sweep.dir={multirun}/hydra")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)


@pytest.mark.parametrize("digits", ["12345678e012", "1_2"])
def test_a_job_gets_its_names_as_they_are_even_where_they_look_like_numbers(tmp_path: Path, digits: str) -> None:
    batches: list[list[list[str]]] = []

    class Plugin:
        def launch(self, batch: list[list[str]], initial_job_idx: int) -> None:
            batches.append(batch)

    record = tmp_path / "it's mine" / f"{digits}.json"
    scheduler = HydraLauncher(Plugin(), record)
    scheduler.submit(run_folder(tmp_path, digits))
    scheduler.poll(60)
    ((job,),) = batches
    with initialize(version_base="1.3", config_path=None):
        assert compose(overrides=job)[KEY] == {"run": digits, "record": str(record)}


def test_runs_that_a_plugin_refuses_do_not_stay_in_a_queue(tmp_path: Path) -> None:
    class Plugin:
        def launch(self, batch: list[list[str]], initial_job_idx: int) -> None:
            raise RuntimeError("invalid partition\nspecified")

    scheduler = HydraLauncher(Plugin(), tmp_path / "launches/ab.json")
    folder = make_run(tmp_path, "ab12", RunState.SUBMITTED, steps=0)
    scheduler.submit(folder)
    with pytest.raises(
        SchedulerError, match=r"Plugin failed: invalid partition specified\. Fix: change hydra\.launcher"
    ):
        scheduler.poll(60)
    assert read_state(folder).state == RunState.PLANNED


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, float]]]:
    """What the runs have learned in the pool."""
    multirun = tmp_path_factory.mktemp("pool")
    ended(launch(multirun))
    return learned(multirun)


@pytest.mark.processes
@pytest.mark.parametrize(
    "plugin",
    [["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
     ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"]],
)  # fmt: skip
def test_a_plugin_runs_the_same_runs_to_the_same_numbers(
    plugin: list[str], tmp_path: Path, pool: dict[str, list[dict[str, float]]]
) -> None:
    said = ended(launch(tmp_path / "plugin", *plugin))
    assert "2 done" in said, said
    command = json.loads((tmp_path / "plugin/adhoc/plan.json").read_text())["command"]
    assert command.endswith(" ".join(plugin))  # `resume` says it again
    assert learned(tmp_path / "plugin") == pool
    said = ended(launch(tmp_path / "plugin", *plugin))
    assert "started" not in said, said


@pytest.mark.processes
def test_interrupted_runs_of_a_plugin_save_and_go_on(tmp_path: Path) -> None:
    first = launch(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", steps=400)
    until(lambda: first.poll() is not None or any(tmp_path.glob("runs/*/metrics.jsonl")))
    assert first.poll() is None, first.communicate()[0]
    first.send_signal(signal.SIGINT)
    said = ended(first, 130)
    found = [state["state"] for state in states(tmp_path).values()]
    assert sorted(found) == ["planned", "preempted"], said  # the second had not begun
    plan = json.loads((tmp_path / "adhoc" / "plan.json").read_text())
    assert not list((tmp_path / "launches").glob("*.closed")) and len(plan["runs"]) == 2


# ---------------------------------------------------------------- Hydra's own suites

SWEEPER = "hydra/sweeper=rlsweep"
LOGGING = ("hydra/hydra_logging=disabled", "hydra/job_logging=disabled")
LINK = "os.getcwd() is the folder of the run; the directory that Hydra names is a link to it"
#: The tests that fail, and why.
EXCEPTIONS = {
    "test_custom_sweeper_run_workdir": LINK,
    "test_to_absolute_path_multirun": LINK,
    "test_failure_preserves_task_traceback": "a job in another process leaves the text of its traceback, no frames",
}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Plugins.instance()  # the suites forget what Hydra loads in a test, and Hydra loads a plugin only once
    monkeypatch.setenv("RLSWEEP_MULTIRUN", str(tmp_path / "multirun"))  # no test finds the runs of another
    if reason := EXCEPTIONS.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


OF_HYDRA = [pytest.mark.processes, pytest.mark.usefixtures("place")]


@pytest.mark.parametrize(("launcher_name", "overrides"), [("basic", [SWEEPER])])
class TestLauncher(LauncherTestSuite):
    pytestmark = OF_HYDRA


@pytest.mark.parametrize(("launcher_name", "overrides"), [("basic", [SWEEPER, "hydra.sweeper.max_batch_size=2"])])
class TestBatches(BatchedSweeperTestSuite):
    pytestmark = OF_HYDRA


@pytest.mark.parametrize(("task_launcher_cfg", "extra_flags"), [({}, ["-m", SWEEPER, *LOGGING])])
class TestIntegration(IntegrationTestSuite):
    pytestmark = OF_HYDRA

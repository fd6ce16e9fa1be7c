"""Hydra's own suites for launchers and sweepers, as the installed Hydra has them, under `hydra/sweeper=rlsweep`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite, IntegrationTestSuite, LauncherTestSuite

pytestmark = pytest.mark.processes
SWEEPER = "hydra/sweeper=rlsweep"
LOGGING = ("hydra/hydra_logging=disabled", "hydra/job_logging=disabled")
LINK = "os.getcwd() is the folder of the run; the directory that Hydra names is a link to it"
#: The tests that fail, and why.
EXCEPTIONS = {
    "test_custom_sweeper_run_workdir": LINK,
    "test_to_absolute_path_multirun": LINK,
    "test_failure_preserves_task_traceback": "a job in another process leaves the text of its traceback, no frames",
}


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Plugins.instance()  # the suites forget what Hydra loads in a test, and Hydra loads a plugin only once
    monkeypatch.setenv("RLSWEEP_MULTIRUN", str(tmp_path / "multirun"))  # no test finds the runs of another
    if reason := EXCEPTIONS.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.mark.parametrize(("launcher_name", "overrides"), [("basic", [SWEEPER])])
class TestLauncher(LauncherTestSuite):
    pass


@pytest.mark.parametrize(("launcher_name", "overrides"), [("basic", [SWEEPER, "hydra.sweeper.max_batch_size=2"])])
class TestBatches(BatchedSweeperTestSuite):
    pass


@pytest.mark.parametrize(("task_launcher_cfg", "extra_flags"), [({}, ["-m", SWEEPER, *LOGGING])])
class TestIntegration(IntegrationTestSuite):
    pass

"""Plans over copies of conf/, and launchers over a small real training."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.__main__ import main
from launcher.planning.plan import Plan
from launcher.run import lifecycle
from tests import registered, results
from tests.sharing import shared_folder
from tests.waiting import DEADLINE
from trainer_ext.scoring import tasks

ROOT = Path(__file__).parents[2]


def pytest_collection_finish(session: pytest.Session) -> None:
    """A plan forks, which takes three times as long in a process with these."""
    folders = {Path(__file__).parent in item.path.parents for item in session.items}
    heavy = {"pandas", "pyarrow", "tensorboard", "torch"} & sys.modules.keys()
    assert folders != {True} or not heavy, f"tests/launcher must not import {', '.join(heavy)} at the top of a module"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A copy of conf/ that a test may spoil."""
    return Path(shutil.copytree(ROOT / "conf", tmp_path / "conf"))


@pytest.fixture
def new_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for modules of tasks, beside those of trainer_ext/scoring/tasks for this test alone."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    registered.put_back(monkeypatch)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(folder)])
    yield folder
    for path in folder.glob("*.py"):
        sys.modules.pop(f"{tasks.__name__}.{path.stem}", None)
        vars(tasks).pop(path.stem, None)


@pytest.fixture(scope="session")
def planned_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Plan]:
    """planned_once(experiment, scale) -> the plan of a shipped experiment, made by the first process that asks."""
    shared = shared_folder(tmp_path_factory, "plans")

    def planned(name: str, scale: str) -> Plan:
        from tests.launcher.experiments import at_scale, make

        path = shared / f"{name}-{scale}"
        if not path.exists():
            aside = path.with_name(f"{path.name}.{os.getpid()}")
            aside.write_bytes(pickle.dumps(make(f"experiment={name}", *at_scale(scale))))
            aside.rename(path)
        found: Plan = pickle.loads(path.read_bytes())
        return found

    return planned


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """said(WORDS, MULTIRUN, code=0) -> what a command prints, perhaps about this folder; it must end with the code."""

    def printed(words: str, multirun: Path | None = None, code: int = 0) -> str:
        assert main([*words.split(), *(["--multirun", str(multirun)] if multirun else [])]) == code
        return capsys.readouterr().out

    return printed


class Sweeps:
    """Starts launchers on one multirun folder."""

    def __init__(self, multirun: Path) -> None:
        self.multirun = multirun
        self._gate = multirun.with_name("gate")
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *overrides: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.launcher.drive", str(self.multirun), *overrides]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self._started.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, **pipes))
        return self._started[-1]

    def start_held(self, *overrides: str, **environment: str) -> subprocess.Popen[str]:
        """Start a launcher whose runs wait before their sixth step until `release`, or until they are asked to stop."""
        self._gate.touch()
        return self.start(*overrides, **environment, STEPS_GATE=str(self._gate))

    def release(self) -> None:
        self._gate.unlink()

    def run(self, *overrides: str, **environment: str) -> tuple[int, str]:
        process = self.start(*overrides, **environment)
        output, _ = process.communicate(timeout=DEADLINE)
        return process.returncode, output

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def states(self) -> dict[str, dict[str, Any]]:
        return results.states(self.multirun)

    def values(self) -> dict[str, list[tuple[int, int]]]:
        """id -> (step, value) of every line, torn or doubled ones too."""
        return results.walked(self.multirun)

    def logging(self) -> list[Path]:
        """Runs that have logged a step."""
        return [path.parent for path in self.multirun.glob("runs/*/metrics.jsonl") if path.read_text()]

    def alive(self) -> list[Path]:
        """Runs whose claim has a living owner."""
        return [path for path in self.multirun.glob("runs/*") if lifecycle.live_claim(path)]


def mounted(place: Path, size: str) -> Iterator[Path]:
    """A file system in memory of this size (as `mount` writes it), mounted at `place`; the test is marked `root`."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    started = Sweeps(tmp_path / "multirun")
    yield started
    started.stop()

"""The wheel and its extras: what the wheel holds, that a sweep needs no extra, and which extra a message names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.trees import write

ROOT = Path(__file__).parents[1]
SOURCES = ("launcher", "analysis", "trainer_ext", "hydra_plugins", "conf")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What users start and import without an extra.
BASE = (
    "launch",
    "rlsweep",
    "analysis",
    "analysis.__main__",
    "analysis.figures",
    "analysis.judging.commands",
    "analysis.report.paper",
    "analysis.sources.formats.event_files",
    "analysis.sources.formats.wandb_files",
    "analysis.stats",
    "hydra_plugins.rlsweep",
    "launcher.__main__",
    "launcher.commands.hydra_sweep",
    "launcher.commands.sync",
    "launcher.run.evaluations",
    "launcher.schedulers.batch.cluster",
    "launcher.schedulers.local.cluster",
    "launcher.schedulers.ray.cluster",
    "launcher.schedulers.slurm.cluster",
    "launcher.tracking",
    "launcher.worker.worker",
    "trainer_ext.application.commands.evaluate",
    "trainer_ext.application.commands.export",
)
PROGRAM = """
import hydra
import rlsweep

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config):
    for step in range(1, 6):
        rlsweep.log(step, {"score": config.lr * step + config.seed / 10})

if __name__ == "__main__":
    main()
"""
SWEEP = ("-m", "hydra/sweeper=rlsweep", "seed=0,1", "lr=1,2", "hydra.sweeper.analysis.primary.metric=score")


def modules(requirements: list[str]) -> set[str]:
    """The modules that requirements bring, without those of this project's own extras."""
    names = {re.match(r"[\w.-]+", requirement)[0].replace("-", "_") for requirement in requirements}
    return names - {"rlsweep"}


EXTRAS = {
    name: modules(PROJECT["optional-dependencies"][name]) for name in ("verl", "ray", "wandb", "tensorboard", "frame")
}
ABSENT = sorted(set().union(*EXTRAS.values()) - modules(PROJECT["dependencies"]))
HIDE = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n"


def test_the_base_imports_no_extra() -> None:
    code = f"{HIDE}import importlib\nfor name in {BASE!r}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_package_stands_in_one_extra() -> None:
    assert sum(map(len, EXTRAS.values())) == len(set().union(*EXTRAS.values()))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this project, unpacked."""
    place = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        shutil.copytree(ROOT / name, place / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "launch.py", "rlsweep.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "copy")
    build = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(place), "-q"]
    subprocess.run(build, cwd=place / "copy", check=True)
    (built,) = place.glob("*.whl")
    with ZipFile(built) as archive:
        archive.extractall(place / "unpacked")
    return place / "unpacked"


def test_the_wheel_holds_every_file_of_the_packages_and_the_configurations(wheel: Path) -> None:
    given = {path.relative_to(ROOT) for name in SOURCES for path in (ROOT / name).rglob("*") if path.is_file()}
    given = {path for path in given if "__pycache__" not in path.parts}
    installed = {Path("rlsweep_conf", *path.parts[1:]) if path.parts[0] == "conf" else path for path in given}
    held = {path.relative_to(wheel) for path in wheel.rglob("*") if path.is_file()}
    held = {path for path in held if not path.parts[0].endswith(".dist-info")}
    assert held == installed | {Path("launch.py"), Path("rlsweep.py")}


@pytest.mark.processes
def test_a_program_is_swept_with_the_wheel_and_without_any_extra(wheel: Path, tmp_path: Path) -> None:
    hiding = write(tmp_path / "hiding", {"sitecustomize.py": HIDE})
    files = {"train.py": PROGRAM, "config.yaml": "seed: 0\nlr: 1\n", "rlsweep.toml": ""}
    program = write(tmp_path / "program", files)
    environment = {**os.environ, "PYTHONPATH": f"{hiding}{os.pathsep}{wheel}"}

    def called(*words: str, code: int) -> str:
        done = subprocess.run([sys.executable, *words], cwd=program, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    called("train.py", *SWEEP, code=0)
    assert "4 done" in called("-m", "launcher", "status", code=0)
    (report,) = program.glob("multirun/*/report")
    assert (report / "results.csv").read_text().count("\n") == 13
    tracked = ("hydra.sweeper.tracking.wandb=online", "hydra.sweeper.tracking.tensorboard=true")
    refused = called("train.py", *SWEEP, "seed=2", "hydra.sweeper.cluster=ray", *tracked, code=2)
    frame = f"import analysis; analysis.frame({str(report.parent)!r})"
    for extra, output in (
        ("ray", refused),
        ("wandb", refused),
        ("tensorboard", refused),
        ("wandb", called("-m", "launcher", "sync", code=2)),
        ("verl", called("-m", "launcher", "plan", "experiment=quickstart", code=2)),
        ("frame", called("-c", frame, code=1)),
    ):
        assert f"Fix: pip install 'rlsweep[{extra}]'" in output

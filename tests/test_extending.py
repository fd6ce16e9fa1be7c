"""docs/extending.md: its package is built, installed beside the project, planned with, and trained with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config import installed_parts
from launcher.config.hydra_compose import Composer
from launcher.planning import planner
from tests import registered
from tests.trees import write

ROOT = Path(__file__).parents[1]
#: A name in backquotes ends the paragraph before each block of a file.
FILE = re.compile(r"`([\w./]+)`:\n\n```\w+\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the page has it."""
    folder = tmp_path_factory.mktemp("my-parts")
    files = dict(FILE.findall((ROOT / "docs/extending.md").read_text()))
    assert len(files) == 6
    return write(folder, {**files, "my_parts/__init__.py": ""})


@pytest.fixture(scope="module")
def site(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    done = subprocess.run([*pip, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package that this process can import."""
    registered.put_back(monkeypatch)
    monkeypatch.syspath_prepend(str(site))
    with registered.other_packages():
        yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_parts"]:
        del sys.modules[name]


def test_a_plan_reads_the_files_of_an_installed_package(installed, tmp_path):
    assert installed_parts.folders() == (installed / "my_parts" / "conf",)
    words = ["method=c0_grpo,tanh_grpo", "task=reverse", "experiment.baseline=c0_grpo", "seed=0,1"]
    plan = planner.make(ROOT, [*words, f"multirun={tmp_path}"])
    methods = [run.config["method"] for run in plan.runs.values()]
    assert len(methods) == 4
    assert {(method["trust_region"], method.get("width")) for method in methods} == {("clip", None), ("tanh", 0.3)}


def test_hydra_composes_them_to_the_same(installed):
    composer = Composer(ROOT / "conf", "config", installed_parts.folders())
    assert "reverse" in composer.options("task") and "gsm8k" in composer.options("task")
    overrides = ["method=tanh_grpo", "task=reverse"]
    assert composer.compose(overrides).tree == composer.hydras_own(overrides)


@pytest.mark.train
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_run_trains_with_the_functions_of_an_installed_package(site, tmp_path):
    (tmp_path / "more" / "method").mkdir(parents=True)
    (tmp_path / "more" / "method" / "wide.yaml").write_text("defaults: [tanh_grpo, _self_]\nname: wide\nwidth: 0.5\n")
    words = ["--config-dir", str(tmp_path / "more"), "-m", "method=wide", "task=reverse", "seed=0"]
    words += ["trainer.steps=2", "task.warm_start.steps=3", f"multirun={tmp_path / 'multirun'}"]
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "launch.py", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (metrics,) = (tmp_path / "multirun").glob("runs/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(0 <= line["tanh/saturated"] <= 1 for line in lines)

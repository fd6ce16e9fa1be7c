"""docs/applications.md: its application is planned, trained, resumed and reported in a copy without trainer_ext."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.launcher.conftest import ROOT

PAGE = (ROOT / "docs/applications.md").read_text()
HEADER = "# @package _global_\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of this project with the page's application."""
    for name in ("launcher", "analysis", "hydra_plugins", "conf/cluster"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "launch.py", tmp_path)
    (tmp_path / "toy.py").write_text(re.search(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1])
    for names, contents in re.findall(r"^\| (`\w+/.*?) \| (.*?) \|$", PAGE, re.MULTILINE):
        for name, content in zip(re.findall("`(.*?)`", names), re.findall("`(.*?)`", contents), strict=True):
            file = tmp_path / "conf" / name
            file.parent.mkdir()
            file.write_text(("" if name.startswith("method/") else HEADER) + content)
    (tmp_path / "conf/method/fast.yaml").write_text("{name: fast, lr: 0.3}")
    root = yaml.safe_load((ROOT / "conf/config.yaml").read_text())
    chosen = {"method": "sgd", "trainer": "toy", "model": "none", "task": "none"}
    root["defaults"] = [
        {group: chosen.get(group, name) for group, name in one.items()} if isinstance(one, dict) else one
        for one in root["defaults"]
    ]
    for section in ("model", "task", "base", "verl"):
        del root[section]
    root["application"] = "toy:Application"
    root["analysis"]["primary"]["metric"] = "train/loss"
    (tmp_path / "conf/config.yaml").write_text(yaml.safe_dump(root))
    return tmp_path


@pytest.mark.processes
def test_another_application_is_planned_trained_continued_and_verified(project: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(project)}

    def call(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=project, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    report = call("launch.py", "-m", "method=sgd,fast", "experiment.baseline=sgd", "seed=0,1")
    assert "4 done" in report and "Final value of train/loss" in report
    assert "continues" in call("launch.py", "-m", "method=sgd", "seed=0", "trainer.steps=40")
    assert "evaluate" not in call("-m", "launcher", "--help")
    runs = json.loads(call("-m", "launcher", "runs", "--json"))["runs"]
    call("-m", "launcher", "verify", runs[0]["id"])

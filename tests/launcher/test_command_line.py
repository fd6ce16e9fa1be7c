"""launch.py and python -m launcher, as processes: exit codes, output, and what they leave behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.launcher.conftest import ROOT


def execute(*arguments, cwd=ROOT):
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)


def test_a_refused_sweep_exits_with_2_says_everything_and_writes_nothing(tmp_path):
    multirun = tmp_path / "multirun"
    bad = ("quickstart", "experiment=quickstart", "method=nosuch", "method.gamma=x", f"multirun={multirun}")
    done = execute(ROOT / "launch.py", "-m", *bad, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    bare, first, second, last = done.stderr.splitlines()
    assert "Fix: write experiment=quickstart" in bare
    assert "method = nosuch" in first and "method.gamma = x" in second
    assert last == "invalid plan: 3 problems; nothing was written or run"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["--help"], 0, "experiment: bnto_grid"),
        (["-m", "--cfg", "job", "experiment=quickstart"], 0, "name: quickstart"),
        (["--cfg", "job", "experiment=nosuch"], 2, ""),
        (["-m", "hydra/launcher=nosuch"], 2, ""),
        (["--nosuch"], 2, ""),
    ],
)
def test_hydras_own_command_line(arguments, code, output):
    done = execute("launch.py", *arguments)
    assert done.returncode == code and output in done.stdout


@pytest.mark.parametrize("words", [["launch.py", "-m", "experiment=quickstart"], ["-m", "launcher", "status"]])
def test_another_python_than_the_installed_one_is_told_what_to_do(words):
    done = execute("-S", *words)  # without any package, as a Python outside .venv
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: hydra is not installed for ") and "source .venv/bin/activate" in done.stderr

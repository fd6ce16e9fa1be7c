"""What docs/report.md promises of bytes: the same runs give the same report under any x86-64 processor's code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.run.folder import run_folder
from tests import kernels
from tests.analysis import qstar
from tests.analysis.conftest import MakeSweep, sweeps_in
from tests.analysis.test_grid import diverge
from tests.analysis.test_grid import grid as make_grid


def torn_grid(make_sweep: MakeSweep) -> Path:
    """A grid that least squares take apart: one of its cells is missing."""
    folder = make_grid(make_sweep)
    for seed in range(3):
        diverge(folder, seed, 0)
    return folder


def pictured(make_sweep: MakeSweep) -> Path:
    """Every kind of picture and hypothesis; dpo's seed 2 never began."""
    folder = qstar.make(make_sweep, seeds=range(6))
    shutil.rmtree(run_folder(folder.parent, "dpo-2"))
    return folder


def report(folder: Path, environment: Mapping[str, str]) -> dict[str, bytes]:
    """Every file of the report that a process of its own writes, and what it prints."""
    for old in (folder / "report", folder.parent / "cache"):
        shutil.rmtree(old, ignore_errors=True)
    command = [sys.executable, "-m", "analysis", "report", str(folder)]
    given = {**os.environ, **environment}
    done = subprocess.run(command, cwd=kernels.ROOT, env=given, stdout=subprocess.PIPE, check=True)
    written = sorted(path for path in (folder / "report").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in written} | {"printed": done.stdout}


@pytest.mark.processes
@pytest.mark.parametrize("make", [torn_grid, pictured])
def test_report_is_the_same_bytes_under_another_processors_code(tmp_path: Path, make: object) -> None:
    able, _ = kernels.runnable(kernels.flags())
    if len(able) < 2:
        pytest.skip("this processor has one kernel only: nothing to compare")
    folder = make(sweeps_in(tmp_path))  # type: ignore[operator]
    newest, oldest = (report(folder, kernels.settings(kernel, 1)) for kernel in (able[0], able[-1]))
    assert len(newest) > 20 and set(newest) == set(oldest)
    assert [name for name, content in newest.items() if content != oldest[name]] == []

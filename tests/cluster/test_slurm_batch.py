"""SLURM keeps to what launcher.schedulers.batch asks of a batch system."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.application import Shape
from launcher.schedulers.slurm import system
from tests.cluster.slurm import Lab
from tests.launcher.batch_conformance import *  # noqa: F403
from tests.launcher.batch_conformance import Batch
from tests.launcher.test_slurm import SETTINGS

pytestmark = pytest.mark.slurm


@pytest.fixture
def batch(slurm: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    shape = Shape(memory_gb=0.1, time_s=600)
    return Batch(system, shape, SETTINGS, {"settings": {**SETTINGS, "partition": "nowhere"}}, tmp_path)

"""Real clusters for the tests: started for them, on loopback, and stopped after them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import leftovers
from tests.cluster.slurm import ROOT, Lab


def start(name: str, **settings: str) -> Iterator[Lab]:
    lab = Lab(leftovers.folder(ROOT / "build", f"slurm-{name}-"), {"LAB_ARRAY": "6", **settings})
    try:
        lab.script("start.sh")
        yield lab
    finally:
        lab.script("stop.sh", "--wipe")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_of_killed_tests() -> None:
    leftovers.clear((ROOT / "build", "slurm-*"), (Path(tempfile.gettempdir()), "rl-*"))


@pytest.fixture(scope="session")
def accounted() -> Iterator[Lab]:
    """A SLURM with slurmdbd; its arrays take 6 tasks at most."""
    yield from start("accounted", LAB_DBD="1")


@pytest.fixture(scope="session")
def plain() -> Iterator[Lab]:
    """A SLURM without slurmdbd."""
    yield from start("plain", LAB_DBD="0")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """STEPS_GATE of tests/launcher/steps.py: runs wait there, five steps done, until it is removed."""
    path = tmp_path / "gate"
    path.touch()
    return path


@pytest.fixture
def slurm(accounted: Lab) -> Iterator[Lab]:
    """The SLURM with slurmdbd, with all its nodes and nothing in its queue."""
    yield accounted
    accounted.script("start.sh")
    accounted.ask("scancel", "--user=root")

"""Runs of the real trainer in this process, on the shipped configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.configuration import CONF, configuration
from tests.sharing import shared_folder

__all__ = ["CONF", "MemoryRun", "configuration", "science"]


class MemoryRun:
    """The trainer's view of a run folder, with the metrics kept in memory; can ask to stop after a step."""

    def __init__(self, folder: Path, cache: Path, stop_after: int | None = None) -> None:
        self.folder, self.cache, self.stop_after = folder, cache, stop_after
        self.lines: list[dict[str, float]] = []
        self.histograms: list[tuple[int, str, list[float], list[int]]] = []
        self.responses: list[tuple[int, str, str, float, str]] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.lines.append({"step": step, **metrics})

    def histogram(self, step: int, name: str, edges: list[float], counts: list[int]) -> None:
        self.histograms.append((step, name, edges, counts))

    def response(self, step: int, prompt: str, response: str, reward: float, answer: str) -> None:
        self.responses.append((step, prompt, response, reward, answer))

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        found = sorted(self.folder.glob("step_*"))
        return (int(found[-1].name.removeprefix("step_")), found[-1]) if found else None

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        draft = self.folder / "draft"
        draft.mkdir(parents=True)
        yield draft
        draft.rename(self.folder / f"step_{step:06d}")

    def stop_requested(self) -> bool:
        return bool(self.lines) and self.lines[-1]["step"] == self.stop_after


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and data, built once for the session, whichever of its processes comes first."""
    return shared_folder(tmp_path_factory, "cache")


@pytest.fixture
def new_run(tmp_path: Path, cache: Path) -> Callable[..., MemoryRun]:
    def make(name: str = "run", stop_after: int | None = None) -> MemoryRun:
        return MemoryRun(tmp_path / name, cache, stop_after)

    return make


#: What a clock decides.
CLOCKED = (
    "cost/step_seconds",
    "cost/sample_seconds",
    "cost/wall_seconds",
    "cost/device_seconds",
    "speculative/speedup",
)


def science(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """The metrics that must be reproducible: all but times and memory."""
    return [{k: v for k, v in line.items() if k not in (*CLOCKED, "cost/peak_memory_bytes")} for line in lines]

"""Runs of the real trainer in this process, on the shipped configuration."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.nodes import ONE
from tests.configuration import CONF, configuration, tree_of
from tests.sharing import shared_folder
from tests.trainer_ext.twins import write_problems, write_twin
from trainer_ext.scoring.scores.evaluation import Answer
from trainer_ext.train import train

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
# A short warm start keeps the tests quick; the methods do not know the difference.
SHORT = ["task.warm_start.steps=20", "trainer.steps=6"]
# Where it does not matter what the responses are.
FEW_PROMPTS = ["verl.data.train_batch_size=8", "verl.actor_rollout_ref.actor.ppo_mini_batch_size=4"]
DECODING = {"q_decode", "q_speculative", "q_speculative_adaptive"}  # these train nothing
TOWARDS = {*DECODING, "q_star", "q_star_grpo", "uniform_alpha", "entropy_alpha", "off_policy", "rejection", "sft"}


def section(name: str, **values: Any) -> dict[str, Any]:
    """The section of a shipped task, without what only describes it."""

    def plain(tree: Any) -> Any:
        hidden = ("allowed", "requires")
        return {k: plain(v) for k, v in tree.items() if k not in hidden} if isinstance(tree, dict) else tree

    return {**plain(tree_of(f"task={name}")["task"]), **values}


def jsonl(path: Path, *lines: Any) -> str:
    """Write lines of JSON, compressed if the name says so; the path."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def edit(file: Path, **changes: Any) -> None:
    """Change what a file of JSON says."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refusal(call: Callable[[], object], error: type[Exception] = ValueError) -> str:
    """The words of the error that a call raises."""
    with pytest.raises(error) as raised:
        call()
    return str(raised.value)


def quick_settings(method: str) -> list[str]:
    """What makes everything of a dual controller happen within a few steps, and a target quickly."""
    if "bnto" in method:
        return ["method.warmup_steps=2", "method.patience=1", "method.alpha_lambda=50"]
    return ["method.target_steps=5"] if method in TOWARDS else []


class MemoryRun:
    """The trainer's view of a run folder, with the metrics kept in memory; can ask to stop after a step."""

    def __init__(self, folder: Path, cache: Path, stop_after: int | None = None) -> None:
        self.folder, self.cache, self.stop_after, self.nodes = folder, cache, stop_after, ONE
        self.lines: list[dict[str, float]] = []
        self.histograms: list[tuple[int, str, list[float], list[int]]] = []
        self.responses: list[tuple[int, str, str, float, str]] = []
        self.evaluations: dict[int, list[Answer]] = {}

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.lines.append({"step": step, **metrics})

    def histogram(self, step: int, name: str, edges: list[float], counts: list[int]) -> None:
        self.histograms.append((step, name, edges, counts))

    def response(self, step: int, prompt: str, response: str, reward: float, answer: str) -> None:
        self.responses.append((step, prompt, response, reward, answer))

    def evaluation(self, step: int, answers: Sequence[Answer]) -> None:
        self.evaluations[step] = list(answers)

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        found = sorted(self.folder.glob("step_*"))
        return (int(found[-1].name.removeprefix("step_")), found[-1]) if found else None

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        draft = self.folder / "draft"
        draft.mkdir(parents=True)
        yield draft
        draft.rename(self.folder / f"step_{step:06d}")

    def trace(self, step: int, read: Mapping[str, Any], save: Callable[[Path], None]) -> None:
        """Nothing is kept."""

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


def train_twin(folder: Path, *words: str) -> MemoryRun:
    """A twin of Qwen2.5 that was trained for two steps of two prompts in a folder; words: a method, a task and more."""
    twin = write_twin("qwen2", write_problems(folder / "problems.jsonl"), folder / "twin", positions=512)
    usual = ["model=pretrained", f"model.path={twin}", "trainer.steps=2", "verl.data.train_batch_size=2"]
    usual += ["verl.data.max_prompt_length=150", "verl.data.max_response_length=8"]
    usual += ["verl.actor_rollout_ref.actor.ppo_mini_batch_size=1"]
    run = MemoryRun(folder / "run", folder / "cache")
    train(configuration(*usual, *words), run)
    return run


def science(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """The metrics that must be reproducible: all but times and memory."""
    clocked = ("_seconds", "speculative/speedup", "cost/peak_memory_bytes")
    return [{key: value for key, value in line.items() if not key.endswith(clocked)} for line in lines]

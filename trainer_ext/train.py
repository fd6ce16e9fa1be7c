"""One run, from its configuration to its summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from trainer_ext import backends
from trainer_ext.backends import in_process  # noqa: F401  (so that the server of warm workers has it in memory)
from trainer_ext.health import Health, not_finite


class Run(Protocol):
    """What the trainer needs of the place it runs in; the launcher provides it."""

    @property
    def cache(self) -> Path: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def histogram(self, step: int, name: str, edges: list[float], counts: list[int]) -> None: ...
    def response(self, step: int, prompt: str, response: str, reward: float, answer: str) -> None: ...
    def latest_checkpoint(self) -> tuple[int, Path] | None: ...
    def checkpoint(self, step: int) -> AbstractContextManager[Path]: ...
    def stop_requested(self) -> bool: ...


class Diverged(Exception):
    """A metric stopped being a number."""

    def __init__(self, step: int, key: str):
        super().__init__(f"{key} is not finite at step {step}")
        self.step, self.key = step, key


class Preempted(Exception):
    """The run was asked to stop; what it had done is in its checkpoint."""

    def __init__(self, step: int):
        super().__init__(f"stopped after step {step}")
        self.step = step


def train(config: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Train as `config` says (seed, method, model, task, trainer, and verl's tree merged), from the newest checkpoint.

    Returns the summary: steps, samples, tokens, parameters (of the policy), train_seconds (of all attempts), warnings.
    Raises Diverged and Preempted; every other error is the caller's to record.
    """
    torch.set_num_threads(1)  # bit-reproducible, and each core can execute one run
    began = time.monotonic()
    with closing(backends.create(config, run.cache)) as trainer:
        return _train(config["trainer"], run, trainer, began)


def _train(settings: Mapping[str, Any], run: Run, trainer: backends.Backend, began: float) -> dict[str, Any]:
    """settings: the section `trainer`; began: the clock when the attempt began."""
    health = Health()
    done, train_seconds, wall_before = 0, 0.0, 0.0
    newest = run.latest_checkpoint()
    if newest is not None:
        done, folder = newest
        state = trainer.load(folder)
        train_seconds, wall_before = state["train_seconds"], state["wall_seconds"]
        health = Health(**state["health"])

    def wall() -> float:
        return wall_before + time.monotonic() - began

    def save(step: int) -> None:
        with run.checkpoint(step) as draft:
            seconds = {"train_seconds": train_seconds, "wall_seconds": wall()}
            trainer.save(draft, {**seconds, "health": asdict(health)})

    for step in range(done + 1, settings["steps"] + 1):
        started = time.monotonic()
        try:
            metrics = trainer.step(step)
        except FloatingPointError as error:
            raise Diverged(step, str(error)) from error
        train_seconds += time.monotonic() - started
        bad = not_finite(metrics)
        if bad is not None:
            raise Diverged(step, bad)
        health.check(metrics)
        run.log(
            step,
            {
                **metrics,
                "cost/step_seconds": time.monotonic() - started,
                "cost/wall_seconds": wall(),
                "cost/device_seconds": wall() * trainer.devices,
                "cost/peak_memory_bytes": float(trainer.peak_memory_bytes),
            },
        )
        if step % settings["hist_every"] == 0:
            for name, (edges, counts) in trainer.histograms().items():
                run.histogram(step, name, edges, counts)
        for answer in trainer.answers[: settings.get("eval_responses", 0)]:  # absent from runs of an older version
            run.response(step, answer.prompt, answer.response, answer.reward, answer.ground_truth)
        stopping = run.stop_requested() and step < settings["steps"]
        if stopping or step % settings["checkpoint_every"] == 0 or step == settings["steps"]:
            save(step)
        if stopping:
            raise Preempted(step)
    return {
        "steps": settings["steps"],
        "samples": trainer.samples,
        "tokens": trainer.tokens,
        "parameters": trainer.parameters,
        "train_seconds": train_seconds,
        "wall_seconds": wall(),
        "warnings": health.warnings,
    }

"""One run, from its configuration to its summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError

import trainer_ext.backends.in_process.imports  # before any model of transformers
import trainer_ext.backends.in_process.trainer  # noqa: F401  (so that the server of warm workers has it in memory)
from trainer_ext.backends import protocol
from trainer_ext.methods import continuing
from trainer_ext.methods.health import Health, not_finite
from trainer_ext.scoring import scores
from trainer_ext.scoring.scores import evaluation
from trainer_ext.scoring.scores.evaluation import JUDGED, Answer, Best
from trainer_ext.scoring.tasks import TEST


class Run(Protocol):
    """What the trainer needs of the place it runs in; the launcher provides it."""

    @property
    def cache(self) -> Path: ...
    @property
    def nodes(self) -> protocol.Nodes: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def histogram(self, step: int, name: str, edges: list[float], counts: list[int]) -> None: ...
    def evaluation(self, step: int, answers: Sequence[Answer]) -> None: ...
    def response(self, step: int, prompt: str, response: str, reward: float, answer: str) -> None: ...
    def latest_checkpoint(self) -> tuple[int, Path] | None: ...
    def checkpoint(self, step: int) -> AbstractContextManager[Path]: ...
    def stop_requested(self) -> bool: ...
    def trace(self, step: int, read: Mapping[str, Any], save: Callable[[Path], None]) -> None: ...


class Diverged(Exception):
    """A metric stopped being a number."""

    def __init__(self, step: int, key: str):
        super().__init__(f"{key} is not finite at step {step}")
        self.step = step


class Preempted(Exception):
    """The run was asked to stop; what it had done is in its checkpoint."""


def train(config: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Train as `config` says (seed, method, model, task, trainer, and verl's tree merged), from the newest checkpoint.

    Returns the summary: steps, samples, tokens, parameters (of the policy), train_seconds, wall_seconds and
    shared_seconds (of all attempts), warnings, and of a run with evaluations the best one (evaluation.Best).
    Raises Diverged and Preempted; every other error is the caller's to record.
    """
    if "split" not in config["trainer"]:
        rule = "trainer.split is missing: an older version planned this run, and trained on every prompt of the task"
        raise ValueError(f"{rule}. Launch its experiment again to plan it anew")
    torch.set_num_threads(1)  # bit-reproducible, and each core can execute one run
    began = time.monotonic()
    trainer, shared = protocol.create(config, run.cache, run.nodes)
    with closing(trainer):
        return _train(config["trainer"], run, trainer, began, shared)


def _train(
    settings: Mapping[str, Any], run: Run, trainer: protocol.Backend, began: float, shared: float
) -> dict[str, Any]:
    """settings: the section `trainer`; began: the clock then; shared: seconds spent on shared artifacts."""
    done, state = 0, {"train_seconds": 0.0, "wall_seconds": 0.0, "shared_seconds": 0.0, "flops": 0.0}
    if (newest := run.latest_checkpoint()) is not None:
        done, folder = newest
        try:
            state = trainer.load(folder)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ValueError(f"{folder} cannot be loaded ({error}). Fix: move it away, and retry the run") from error
    health = Health(**state.get("health", {}))
    best = Best(**state["best"]) if state.get("best") else None
    train_seconds, flops, shared_seconds = state["train_seconds"], state["flops"], state["shared_seconds"] + shared

    def wall() -> float:
        return state["wall_seconds"] + time.monotonic() - began - shared

    def write(draft: Path) -> None:
        seconds = {"train_seconds": train_seconds, "wall_seconds": wall(), "shared_seconds": shared_seconds}
        found = {"flops": flops, "health": asdict(health), "best": asdict(best) if best else None}
        trainer.save(draft, {**seconds, **found})

    if done:
        run.trace(done, {}, write)

    for step in range(0 if not done and settings["eval_before_train"] else done + 1, settings["steps"] + 1):
        started, samples = time.monotonic(), trainer.samples
        try:
            metrics = trainer.step(step) if step else {"samples/total": 0.0, "tokens/total": 0.0}
            evaluated = trainer.evaluate(step) if continuing.evaluates(settings, step) else []
        except FloatingPointError as error:
            raise Diverged(step, str(error)) from error
        flops += metrics.get("cost/flops_per_sample", 0.0) * (trainer.samples - samples)
        metrics["cost/flops"] = flops
        if not continuing.measures_kl(settings, step):  # so that all runs of a sweep have it at the same steps
            metrics.pop("actor/kl_init", None)
        answers = [answer for answer in evaluated if answer.split != JUDGED]
        if answers:
            answers = scores.scored(settings, answers)
            metrics |= evaluation.metrics(answers, settings["eval_solved"], settings.get("eval_pass") or ())
            best = evaluation.better(best, step, metrics)
            metrics["eval/selected_reward_mean"] = best.reward_mean
        train_seconds += time.monotonic() - started
        if (bad := not_finite(metrics)) is not None:
            raise Diverged(step, bad)
        health.check(metrics)
        run.log(
            step,
            {
                **metrics,
                "cost/step_seconds": time.monotonic() - started,
                "cost/wall_seconds": wall(),
                "cost/device_seconds": wall() * trainer.devices,
                "cost/shared_seconds": shared_seconds,
                "cost/peak_memory_bytes": float(trainer.peak_memory_bytes),
            },
        )
        if step and step % continuing.histogram_interval(settings["hist_every"], settings["steps"]) == 0:
            for name, (edges, counts) in trainer.histograms().items():
                run.histogram(step, name, edges, counts)
        if answers:
            run.evaluation(step, answers)
        judged = [answer for answer in evaluated if (answer.split, answer.sample) == (JUDGED, 0)]
        shown = [answer for answer in answers if (answer.split, answer.sample) == (TEST, 0)]
        for answer in judged or shown[: settings["eval_responses"]]:
            run.response(step, answer.prompt, answer.response, answer.reward, answer.ground_truth)
        if step:
            run.trace(step, trainer.drawn, write)
        stopping = run.stop_requested() and 0 < step < settings["steps"]
        if stopping or (step and step % settings["checkpoint_every"] == 0) or step == settings["steps"]:
            with run.checkpoint(step) as draft:
                write(draft)
        if stopping:
            raise Preempted(f"stopped after step {step}")
    return {
        "steps": settings["steps"],
        "samples": trainer.samples,
        "tokens": trainer.tokens,
        "parameters": trainer.parameters,
        "train_seconds": train_seconds,
        "wall_seconds": wall(),
        "shared_seconds": shared_seconds,
        "warnings": health.warnings,
        **({"best": asdict(best)} if best else {}),
    }

"""On a GPU: what a user starts with it, and that runs without one do not see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cluster.rays import ROOT
from tests.needs import with_gpus
from tests.results import logged, states
from tests.trainer_ext.conftest import METHODS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
LIMIT_S = 600
STEPS = 3
SMALL = ["seed=0", "trainer.steps=3", "task.warm_start.steps=20"]


def run(*command: str, **environment: str) -> str:
    own = {**os.environ, **with_gpus(), **environment}
    given = {"cwd": ROOT, "env": own, "capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run([sys.executable, *command], **given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def launched(multirun: Path, *overrides: str, **environment: str) -> dict[str, list[dict[str, float]]]:
    """id -> the metrics of each run."""
    run("launch.py", "-m", *SMALL, *overrides, f"multirun={multirun}", **environment)
    assert {state["state"] for state in states(multirun).values()} == {"done"}
    return {folder.name: logged(folder) for folder in (multirun / "runs").iterdir()}


def rewards(runs: dict[str, list[dict[str, float]]]) -> list[list[float]]:
    return [[line["analysis/reward_sum_mean"] for line in lines] for _, lines in sorted(runs.items())]


def peak(runs: dict[str, list[dict[str, float]]]) -> float:
    return max(line["cost/peak_memory_bytes"] for lines in runs.values() for line in lines)


def test_runs_of_the_local_pool_have_the_gpu_if_they_ask_for_it(tmp_path: Path) -> None:
    """The server of warm workers has imported torch and verl before it forks them. Memory is that of tensors on the
    GPU, and of the whole process elsewhere."""
    two = ["method=c0_grpo,q_star", "experiment.baseline=c0_grpo", "method.target_steps=20"]
    two += ["trainer.eval_every=1", "analysis.primary.metric=eval/reward_mean"]  # the two draw from other policies
    with_gpu = launched(tmp_path / "gpu", *two, "model.resources.devices=1")
    without = launched(tmp_path / "cpu", *two)
    hidden = launched(tmp_path / "hidden", *two, CUDA_VISIBLE_DEVICES="")
    assert len(with_gpu) == len(without) == 2
    assert peak(with_gpu) < 2e8 < peak(without)
    assert rewards(without) == rewards(hidden) == rewards(with_gpu)


def test_a_run_under_ray_is_launched_with_the_gpu(tmp_path: Path) -> None:
    found = launched(tmp_path, "method=c0_grpo", "model.resources.devices=1", "trainer=verl_ray")
    assert peak(found) > 0


def test_every_method_draws_the_same_on_a_gpu_as_on_cpus(tmp_path: Path) -> None:
    """And ends with the same parameters, to the rounding of other kernels."""
    program = ["-m", "tests.cluster.gpu_methods"]
    for name, environment in (("cpu", {"CUDA_VISIBLE_DEVICES": ""}), ("gpu", {})):
        run(*program, str(tmp_path / name), str(tmp_path / "cache"), str(STEPS), **environment)
    for method in METHODS:
        (one, own, cpu), (two, other, gpu) = (torch.load(tmp_path / name / f"{method}.pt") for name in ("cpu", "gpu"))
        assert (cpu, gpu[:4]) == ("cpu", "cuda")
        assert [tokens for _, tokens in one] == [tokens for _, tokens in two], method
        seen = [[metrics["analysis/reward_sum_mean"] for metrics, _ in steps] for steps in (one, two)]
        assert seen[0] == seen[1], method
        apart = torch.cat([(own[name] - other[name]).abs().flatten() for name in own])
        print(f"{method}: at most {float(apart.max()):.1e}, {int((apart > 1e-5).sum())} of {len(apart)} beyond 1e-5")
        assert int((apart > 1e-5).sum()) <= len(apart) / 1000, method

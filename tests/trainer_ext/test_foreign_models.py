"""Models of families that no file of conf/model has, sampled and trained: caches with windows, experts, sinks, latent
attention, positions by attention alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.sharing import shared_folder
from tests.trainer_ext.conftest import MemoryRun, configuration
from tests.trainer_ext.twins import FOREIGN, write_problems, write_twin
from trainer_ext.scoring.artifacts import build_once
from trainer_ext.train import train

pytestmark = pytest.mark.train
#: One mini-batch a step: the ratios of its tokens are one, if sampling and training compute the same.
SETTINGS = {
    "task": "gsm8k",
    "model": "pretrained",
    "trainer.steps": 2,
    "trainer.checkpoint_every": 2,
    "trainer.eval_every": 0,
    "trainer.split.validation": 0.2,
    "trainer.split.test": 0.2,
    "verl.data.train_batch_size": 2,
    "verl.data.max_prompt_length": 200,
    "verl.data.max_response_length": 24,
    "verl.actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "verl.actor_rollout_ref.actor.optim.lr": 1e-3,
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "foreign")


@pytest.mark.parametrize("family", sorted(FOREIGN))
def test_a_foreign_model_is_trained_as_it_is_sampled(family: str, shared: Path, tmp_path: Path) -> None:
    data = build_once(shared / "data", lambda folder: write_problems(folder / "train.jsonl")) / "train.jsonl"
    twin = write_twin(family, data, tmp_path / "twin")
    settings = {**SETTINGS, "task.train_path": data, "model.path": twin}
    run = MemoryRun(tmp_path / "run", tmp_path / "cache")
    train(configuration("method=c0_grpo", *(f"{key}={value}" for key, value in settings.items())), run)
    assert len(run.lines) == 2
    for line in run.lines:
        assert abs(line["actor/ppo_kl"]) < 1e-5 and line["actor/clipfrac_upper"] == 0.0, line["actor/ppo_kl"]
        assert math.isfinite(line["actor/grad_norm"]) and line["actor/grad_norm"] > 0.0
    assert run.lines[0]["actor/kl_init"] == pytest.approx(0.0, abs=1e-6)
    assert run.lines[1]["actor/kl_init"] > 0.0

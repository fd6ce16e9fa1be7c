"""`python -m verl.trainer.main_ppo` on a machine without a GPU, as a user would call it: its program and settings."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.trainer_ext.twins import write_problems, write_twin
from trainer_ext.scoring import tasks

PROGRAM = [sys.executable, "-m", "verl.trainer.main_ppo"]
#: What verl is to import (VERL_USE_EXTERNAL_MODULES) for it.
MODULE = "tests.cluster.plain_verl"
ON_CPU = [
    "actor_rollout_ref.rollout.name=plain_hf",
    "actor_rollout_ref.rollout.dtype=float32",
    "actor_rollout_ref.model.use_remove_padding=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "trainer.device=cpu",
    "ray_kwargs.ray_init.num_cpus=12",
    "+ray_kwargs.ray_init.num_gpus=0",
    "+ray_kwargs.ray_init.object_store_memory=200000000",
    "+ray_kwargs.ray_init.include_dashboard=false",
]
#: What takes part of a machine, and no evaluations or checkpoints.
_SMALL = [
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "data.max_prompt_length=120",
    "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "trainer.n_gpus_per_node=1",
    "trainer.val_before_train=false",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.resume_mode=disable",
]


def sizes(prompts: int, responses: int) -> list[str]:
    """Steps of one update on `responses` responses to each of `prompts` prompts."""
    return [
        *_SMALL,
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",
        f"actor_rollout_ref.rollout.n={responses}",
        f"data.train_batch_size={prompts}",
    ]


def on_problems(folder: Path) -> list[str]:
    """Word problems with the reward of the task gsm8k, and a small random model of Qwen's kind; writes both."""
    problems = write_problems(folder / "problems.jsonl")
    twin = write_twin("qwen2", problems, folder / "twin")
    section = {"name": "gsm8k", "train_path": str(problems), "test_path": None}
    data = tasks.prepare(section, {"validation": 0.0, "test": 0.25}, folder / "cache")
    return [
        f"actor_rollout_ref.model.path={twin}",
        f"data.train_files={data}/train.parquet",
        f"data.val_files={data}/train.parquet",
        "reward.custom_reward_function.path=pkg://trainer_ext.scoring.tasks.gsm8k",
        "reward.custom_reward_function.name=compute_score",
    ]

"""An evaluation of a model in a folder, as a run makes it of its policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext import tasks
from trainer_ext.backends.in_process import platform
from trainer_ext.backends.in_process.engine import load_tokenizer
from trainer_ext.backends.in_process.prompts import Prompts
from trainer_ext.backends.in_process.rollout import Rollout
from trainer_ext.backends.in_process.sampler import load_module
from trainer_ext.evaluation import Answer


def evaluate(config: Mapping[str, Any], model: Path, cache: Path, step: int) -> list[Answer]:
    """`trainer_ext.backends.evaluate` of the model in a folder."""
    device, trainer, seed = platform.use(), config["trainer"], int(config["seed"])
    verl = config["verl"]
    tokenizer = load_tokenizer(str(model), verl.actor_rollout_ref.model)
    data = tasks.prepare(config["task"], trainer["split"], cache)
    prompts = Prompts(data, tokenizer, int(verl.data.max_prompt_length), seed)
    modules = {
        "policy": load_module(str(model), trust_remote_code=bool(verl.actor_rollout_ref.model.trust_remote_code))
    }
    rollout = Rollout(config["method"], verl, config["task"], tokenizer, prompts, modules, seed, device)
    rollout.prepare_evaluations(int(trainer["eval_prompts"]))
    return rollout.evaluate(step, int(trainer["eval_samples"]))

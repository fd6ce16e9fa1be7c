"""Target policies pi_t: a given model, or the starting model fine-tuned on demonstrations or on its own samples.

Built once for all runs that want the same, and kept by content.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from trainer_ext import tasks
from trainer_ext.artifacts import build_once
from trainer_ext.backends.in_process import initial_model
from trainer_ext.backends.in_process.batch import pad
from trainer_ext.backends.in_process.prompts import Prompts
from trainer_ext.backends.in_process.sampler import load_module, sample

_BATCH = 128  # examples of an update
_ROWS = 512  # responses drawn at a time


def start(config: Mapping[str, Any], cache: Path, model: str) -> str:
    """The folder of the target that `config` chooses (conf/method/target); `model` is the run's starting model.

    ValueError: an expert without a given model, of a task that has no demonstrations.
    """
    method, task = config["method"], initial_model.plain(config["task"])
    if method.get("target_path") is not None:
        return os.path.expanduser(method["target_path"])
    if method["target"] == "large":
        warm = {"steps": method["target_steps"], "batch_size": _BATCH, "lr": method["target_lr"]}
        times = int(method["target_width"]), int(method["target_depth"])
        return initial_model.larger(config, cache, *times, {**warm, "random_fraction": 0.0, "seed": 0})
    expert = method["target"] == "expert"
    if expert and not hasattr(tasks.get(task["name"]), "demonstration"):
        raise ValueError(
            f"method.target=expert: task {task['name']} has no demonstrations; set method.target_path to a model"
        )

    def build(folder: Path) -> None:
        draw = _demonstrations(config, model) if expert else _samples(config, cache, model)
        steps, rate = int(method["target_steps"]), _rate(config)
        initial_model.fine_tune(model, folder, config["verl"], draw, steps=steps, batch_size=_BATCH, lr=rate, seed=0)

    return str(build_once(cache / "targets" / content_name(config, cache, model), build))


def content_name(config: Mapping[str, Any], cache: Path, model: str) -> str:
    """The name of a tuned target's folder, by all that it is made of: its own settings, starting model, data, code."""
    method, task, verl = config["method"], initial_model.plain(config["task"]), config["verl"]
    settings = {key: value for key, value in method.items() if key.startswith("target")}
    # The data's folder is named by its content, and so by the task's code and files.
    settings |= {
        "model": _identity(model, cache),
        "data": tasks.prepare(task, cache).parent.name,
        "rate": _rate(config),
    }
    settings["code"] = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if method["target"] != "expert":  # what its samples depend on
        settings["temperature"] = float(verl.actor_rollout_ref.rollout.temperature)
        settings["lengths"] = [int(verl.data.max_prompt_length), int(verl.data.max_response_length)]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _rate(config: Mapping[str, Any]) -> float:
    return float(config["method"]["target_lr_ratio"]) * float(config["verl"].actor_rollout_ref.actor.optim.lr)


def _identity(model: str, cache: Path) -> list[Any]:
    """What tells a starting model from others: of an embedded one its folder's name, which says its content; of another
    folder its files, by place, size and time; of a hub's the name."""
    folder = Path(model)
    if folder.parent == cache / "models":
        return [folder.name]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files] or [model]


def _demonstrations(config: Mapping[str, Any], model: str) -> initial_model.Examples:
    return initial_model.demonstrations(initial_model.plain(config["task"]), AutoTokenizer.from_pretrained(model))


def _samples(config: Mapping[str, Any], cache: Path, model: str) -> initial_model.Examples:
    """Draws of the starting model's own responses, as often as the target weighs them."""
    method, verl = config["method"], config["verl"]
    tokenizer = AutoTokenizer.from_pretrained(model)
    module = load_module(model)
    task = initial_model.plain(config["task"])
    prompts = Prompts(tasks.prepare(task, cache), tokenizer, int(verl.data.max_prompt_length), seed=0)
    rows, n = prompts.of_step(1, int(method["target_prompts"])), int(method["target_samples"])
    generator, width = torch.Generator(module.device).manual_seed(0), max(1, _ROWS // n)
    responses: list[list[int]] = []
    for first in range(0, len(rows), width):
        part = [row.tokens for row in rows[first : first + width]]
        tokens, mask = (x.to(module.device) for x in pad(part, tokenizer.pad_token_id, left=True))
        found = sample(
            [module],
            tokens,
            mask,
            n=n,
            length=int(verl.data.max_response_length),
            temperature=float(verl.actor_rollout_ref.rollout.temperature),
            eos_id=tokenizer.eos_token_id,
            pad_id=tokenizer.pad_token_id,
            generator=generator,
        ).batch
        responses += [row[keep].tolist() for row, keep in zip(found.responses, found.mask, strict=True)]
    score = tasks.get(task["name"]).compute_score
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    rewards = torch.tensor([score(task["name"], text, rows[i // n].ground_truth) for i, text in enumerate(texts)])
    weights = _weights(method, rewards.double().reshape(-1, n)).flatten().tolist()
    if not any(weights):
        raise ValueError(
            f"method.target={method['target']}: none of {len(texts)} responses has a reward above "
            f"method.target_threshold={method['target_threshold']}; lower it"
        )
    examples = [(rows[i // n].tokens, response) for i, response in enumerate(responses)]
    return lambda generator, count: generator.choices(examples, weights, k=count)


def _weights(method: Mapping[str, Any], rewards: Tensor) -> Tensor:
    """How often each response is drawn, (prompts, n), from its reward."""
    if method["target"] == "reward_tilted":
        return (rewards / float(method["target_beta"])).softmax(dim=1)
    if method["target"] == "best_of_n":
        best = torch.zeros_like(rewards)
        return best.scatter_(1, rewards.argmax(dim=1, keepdim=True), 1.0)
    return (rewards > float(method["target_threshold"])).double()

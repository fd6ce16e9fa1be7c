"""Target policies pi_t: a given model, or the starting model fine-tuned on demonstrations or on its own samples.

Built once for all runs that need the same one; the folder is named by its content.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from trainer_ext import registry
from trainer_ext.backends.in_process import initial_model
from trainer_ext.backends.in_process.batch import Request
from trainer_ext.backends.in_process.engine import load_tokenizer
from trainer_ext.backends.in_process.prompts import Prompts, scores_of
from trainer_ext.backends.in_process.sampler import load_module, sample
from trainer_ext.sampling import draws
from trainer_ext.scoring import tasks
from trainer_ext.scoring.artifacts import build_once

_BATCH = 128  # examples of an update


@dataclass(frozen=True)
class Start:
    """What a target is made from: the run's configuration, the folder of shared models, the run's starting model."""

    config: Mapping[str, Any]
    cache: Path
    model: str


def start(config: Mapping[str, Any], cache: Path, model: str) -> str | None:
    """The folder of the target that `config` chooses (conf/method/target); `model` is the run's starting model.

    None without a target. ValueError: no prompt has a demonstration, or no response the reward that is needed.
    """
    return registry.target.choice(config["method"])(Start(config, cache, model))


def samples(method: Mapping[str, Any]) -> dict[str, float]:
    """`samples/target`, the responses of the starting model that a method's target learns from; empty: from none."""
    settings = registry.target.choice(method).settings
    learns = {"prompts", "samples"} <= settings.keys()
    return {"samples/target": float(settings["prompts"] * settings["samples"])} if learns else {}


registry.target.declare("none")


@registry.target("expert", prefix="target_")
def _expert(start: Start, path: str | None, steps: int, lr_ratio: float) -> str:
    if path is not None:
        return os.path.expanduser(path)
    verl, task, split = start.config["verl"], start.config["task"], start.config["trainer"]["split"]
    return _tuned(
        start, steps, lr_ratio, lambda: initial_model.demonstrations(task, split, _tokenizer(start), 0.0, verl)
    )


def _tokenizer(start: Start) -> Any:
    return load_tokenizer(start.model, start.config["verl"].actor_rollout_ref.model)


@registry.target("large", prefix="target_")
def _large(start: Start, width: int, depth: int, steps: int, lr: float) -> str:
    model = start.config["model"]
    shape = {key: (depth if key == "layers" else width) * model[key] for key in initial_model.SHAPE}
    warm = {"steps": steps, "batch_size": _BATCH, "lr": lr, "random_fraction": 0.0, "seed": 0}
    return initial_model.embedded(shape, start.config, warm, start.cache)


@registry.target("best_of_n", prefix="target_")
def _best_of_n(start: Start, prompts: int, samples: int, steps: int, lr_ratio: float) -> str:
    best = partial(_samples, start, prompts, samples, lambda rewards: one_hot(rewards.argmax(dim=1), samples))
    return _tuned(start, steps, lr_ratio, best)


@registry.target("high_reward", prefix="target_")
def _high_reward(start: Start, threshold: float, prompts: int, samples: int, steps: int, lr_ratio: float) -> str:
    return _tuned(
        start, steps, lr_ratio, partial(_samples, start, prompts, samples, lambda rewards: rewards > threshold)
    )


@registry.target("reward_tilted", prefix="target_")
def _reward_tilted(start: Start, beta: float, prompts: int, samples: int, steps: int, lr_ratio: float) -> str:
    examples = partial(_samples, start, prompts, samples, lambda rewards: (rewards / beta).softmax(dim=1))
    return _tuned(start, steps, lr_ratio, examples)


def _tuned(start: Start, steps: int, lr_ratio: float, examples: Callable[[], initial_model.Examples]) -> str:
    """The folder of the starting model, fine-tuned on examples; made once."""
    verl, model = start.config["verl"], start.model
    rate = lr_ratio * float(verl.actor_rollout_ref.actor.optim.lr)

    def build(folder: Path) -> None:
        size = {"steps": steps, "batch_size": _BATCH, "rows": _micro_batch(start.config)}
        initial_model.fine_tune(model, folder, verl, examples(), lr=rate, seed=0, **size)

    return str(build_once(start.cache / "targets" / content_name(start.config, start.cache, model), build))


def _micro_batch(config: Mapping[str, Any]) -> int:
    """Examples at a time: all of an update for an embedded model; for a larger one no more than the run's own."""
    most = int(config["verl"].actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu)
    return _BATCH if config["model"]["kind"] == "embedded" else math.gcd(_BATCH, most)


def content_name(config: Mapping[str, Any], cache: Path, model: str) -> str:
    """The name of a tuned target's folder, by all that it is made of: its settings, starting model, data, code."""
    method, task, verl = config["method"], config["task"], config["verl"]
    settings = {key: value for key, value in method.items() if key.startswith("target")}
    # The data's folder is named by its content, and so by the task's code and files.
    settings |= {"model": _identity(model, cache)}
    settings["data"] = tasks.prepare(task, config["trainer"]["split"], cache).name
    settings["lr"] = float(verl.actor_rollout_ref.actor.optim.lr)
    settings["micro_batch"] = _micro_batch(config)
    settings["code"] = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    settings["lengths"] = [int(verl.data.max_prompt_length), int(verl.data.max_response_length)]
    if method["target"] != "expert":  # what its samples depend on
        settings["temperature"] = float(verl.actor_rollout_ref.rollout.temperature)
    return initial_model.name_of(settings)


def _identity(model: str, cache: Path) -> list[Any]:
    """What distinguishes a starting model from others.

    For an embedded one, this is the name of its folder, which depends on its content; for another folder, the path,
    size and time of each file; for a model on a hub, its name.
    """
    folder = Path(model)
    if folder.parent == cache / "models":
        return [folder.name]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files] or [model]


def _samples(start: Start, count: int, n: int, weigh: Callable[[Tensor], Tensor]) -> initial_model.Examples:
    """Random responses of the starting model, drawn by weight from n responses to each of `count` prompts.

    weigh: rewards (count, n) -> weights of the same shape.
    """
    verl, tokenizer = start.config["verl"], _tokenizer(start)
    module = load_module(start.model, trust_remote_code=bool(verl.actor_rollout_ref.model.trust_remote_code))
    rows = Prompts(start.config, start.cache, tokenizer, seed=0).of_step(1, count)
    width = max(1, int(verl.actor_rollout_ref.rollout.max_num_seqs) // n)
    responses: list[list[int]] = []
    for first in range(0, len(rows), width):
        part = [row.tokens for row in rows[first : first + width]]
        keys = draws.keys(0, "target", 1, range(first * n, (first + len(part)) * n))
        batch = sample([module], Request.from_prompts(part, n, tokenizer, verl, module.device), keys).batch
        responses += [row[keep].tolist() for row, keep in zip(batch.responses, batch.mask, strict=True)]
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    rewards = torch.tensor([score.value for score in scores_of(tasks.scorer(start.config["task"]), rows, texts)])
    weights = weigh(rewards.double().reshape(-1, n)).double().flatten().tolist()
    if not any(weights):
        raise ValueError(
            f"method.target=high_reward: none of {len(texts)} responses has a reward above "
            f"method.target_threshold={start.config['method']['target_threshold']}; lower it"
        )
    examples = [(rows[i // n].tokens, response) for i, response in enumerate(responses)]
    return lambda generator, count: generator.choices(examples, weights, k=count)

"""How long a step of a run takes, by arithmetic over the sizes of its models and the speed of its devices.

docs/configuration.md has the formula. Nothing here loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_ext.fits import memory
from trainer_ext.fits.architectures import Architecture
from trainer_ext.fits.devices import BFLOAT16, FLOAT32, Parallel, asked
from trainer_ext.fits.rank_memory import NUMBER


@dataclass(frozen=True)
class Peak:
    """The speed of a device: operations a second in a number format, and bytes a second read from its memory."""

    operations: Mapping[str, float]
    memory: float


PEAKS = {
    "A100": Peak({FLOAT32: 19.5e12, BFLOAT16: 312e12}, 2.0e12),
    "H100": Peak({FLOAT32: 67e12, BFLOAT16: 989e12}, 3.35e12),
    "H200": Peak({FLOAT32: 67e12, BFLOAT16: 989e12}, 4.8e12),
}
#: The share of the peak that is reached, of operations and of reading; guesses, like all numbers down to CORE.
EFFICIENCY, READING = {FLOAT32: 0.7, BFLOAT16: 0.4}, 0.6
#: The mean length of prompts and responses, as a share of the allowed one.
LENGTH = 0.25
#: Seconds that a layer takes for a token at the least, in a server of transformers and in one of vLLM.
LAYER, VLLM_LAYER = 6e-4, 5e-5
#: Operations a second of a run without devices, which computes on one core.
CORE = 5e10
_SPLITS = 3  # an evaluation asks for trainer.eval_prompts prompts of each
_FORWARD, _UPDATE = 2, 6  # operations of a token and parameter: a forward pass, and one with its backward pass


def step_seconds(
    config: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, target: Architecture, reward_model: int = 0
) -> float:
    """The seconds of a step on all devices of the run, with its part of the evaluations.

    config: the run's configuration, settled (devices.settled); verl: verl's whole tree; target: the sizes of the target
    policy, if the method has one; reward_model: the number of its parameters.
    """
    method, trainer, section = config["method"], config["trainer"], config["model"]
    devices = math.prod(map(lambda count: max(1, count), asked(section)))
    prompts, n = int(verl["data"]["train_batch_size"]), int(verl["actor_rollout_ref"]["rollout"]["n"])
    tokens = LENGTH * memory.length_of(verl)  # of a prompt with its response
    operations = prompts * n * tokens * (_scoring(config, verl, model, target) + _FORWARD * reward_model)
    rows = prompts * (2 if method["loss"] == "dpo" else n)
    operations += rows * tokens * _updating(method, verl, model, asked(section)[1] > 0)
    read = memory.read_while_drawing(method, model, target)
    drawing = _drawing(config, verl, read, prompts * n / devices)
    if every := int(trainer["eval_every"] or 0):
        times = math.ceil(trainer["steps"] / every) + bool(trainer["eval_before_train"])
        asked_for = times * _SPLITS * int(trainer["eval_prompts"])
        if judged := trainer["judged"]:
            asked_for += math.ceil(trainer["steps"] / judged["every"]) * judged["prompts"]
        rows = asked_for * (1 + int(trainer["eval_samples"])) / times / devices
        evaluated = read if trainer.get("rollout") == "vllm" else [model]  # vLLM computes all models that it holds
        drawing += times / trainer["steps"] * _drawing(config, verl, evaluated, rows)
    return operations / devices / _operations(config) + drawing


def _scoring(config: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, target: Architecture) -> int:
    """Operations of a token of a response whose log-probabilities and values are computed before the updates."""
    itself = config["trainer"]["backend"] == "verl_ray" or not verl["algorithm"]["rollout_correction"]["bypass_mode"]
    passes = 1 + itself + (config["method"]["advantage"] == "gae")  # of the reference, the policy itself, the critic
    of_target = target.multiplied if config["method"]["sampler"] == "rejection" else 0
    return _FORWARD * (passes * model.multiplied + of_target)


def _updating(method: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, again: bool) -> int:
    """Operations of a token in all updates of a step. again: whether activations are computed again."""
    if method["loss"] == "none":
        return 0
    settings, count = verl["actor_rollout_ref"]["model"], model.multiplied
    again = again and bool(settings["enable_gradient_checkpointing"])
    adapters = model.layers * model.adapters_of_layer(settings)
    whole = (_UPDATE - 2 * bool(adapters)) * count + _UPDATE * adapters + again * _FORWARD * count
    critic = (_UPDATE + again * _FORWARD) * count if method["advantage"] == "gae" else 0
    return (whole + critic) * int(verl["actor_rollout_ref"]["actor"]["ppo_epochs"])


def _drawing(config: Mapping[str, Any], verl: Mapping[str, Any], read: Sequence[Architecture], rows: float) -> float:
    """Seconds in which the server of a device draws so many responses from the models that it reads."""
    section, vllm = config["model"], config["trainer"].get("rollout") == "vllm"
    length, most = int(verl["data"]["max_response_length"]), int(verl["actor_rollout_ref"]["rollout"]["max_num_seqs"])
    share = Parallel.from_model(section).tensor if vllm else 1  # devices of a server, which draws all their rows
    rows, most = rows * share, most if vllm else Parallel.from_model(section).rows or most
    at_once = min(rows, most)
    number = NUMBER[config["trainer"].get("dtype", FLOAT32)]
    bytes_a_second = READING * PEAKS[section["resources"]["device_type"]].memory if asked(section)[1] else math.inf
    token = 0.0
    for model in read:
        compute = _FORWARD * model.multiplied * at_once / _operations(config)
        reading = number * model.parameters / bytes_a_second
        token += max(max(compute, reading) / share, model.layers * (VLLM_LAYER if vllm else LAYER))
    # Rows are drawn until the longest one ends. vLLM puts a waiting one into the place of each that has ended.
    return token * length * (max(1.0, LENGTH * rows / at_once) if vllm else math.ceil(rows / at_once))


def _operations(config: Mapping[str, Any]) -> float:
    """Operations that a device reaches in a second."""
    if not asked(config["model"])[1]:
        return CORE
    number = config["trainer"].get("dtype", FLOAT32)
    return PEAKS[config["model"]["resources"]["device_type"]].operations[number] * EFFICIENCY[number]

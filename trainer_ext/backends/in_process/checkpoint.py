"""Checkpoints: weights and optimizer as safetensors, everything else as JSON, nothing pickled; and exported models."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from trainer_ext.backends.in_process import initial_model
from trainer_ext.backends.in_process.engine import local

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


def save(folder: Path, engine: Any, state: Mapping[str, Any]) -> None:
    """Write an engine's trained weights, optimizer, learning-rate schedule, and `state` (JSON values) into a folder.

    Of weights and optimizer it writes the part that is in this process. The folder is made if needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parameters = _trained(engine)
    save_file({name: local(p.detach()).contiguous() for name, p in parameters.items()}, folder / WEIGHTS)
    tensors = {
        f"{name}/{key}": local(value).contiguous()
        for name, parameter in parameters.items()
        for key, value in engine.optimizer.state[parameter].items()
    }
    save_file(tensors, folder / OPTIMIZER)
    schedule = {key: value for key, value in engine.lr_scheduler.state_dict().items() if key != "lr_lambdas"}
    (folder / STATE).write_text(json.dumps({**state, "schedule": schedule}, indent=1))


def load(folder: Path, engine: Any) -> dict[str, Any]:
    """Restore what `save` wrote into an engine of a model of the same shape; returns the state."""
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    restore(folder, engine, load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER), state.pop("schedule"))
    return state


def _trained(engine: Any) -> dict[str, Tensor]:
    """The parameters that updates change, by name; with adapters (LoRA) these alone."""
    return {name: parameter for name, parameter in engine.module.named_parameters() if parameter.requires_grad}


def restore(
    folder: Path, engine: Any, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], schedule: dict[str, Any]
) -> None:
    """Give an engine this process's part of a checkpoint in `folder`.

    weights: by name; optimizer: by "name/key". ValueError: the parameters are others than the model's.
    """
    parameters = _trained(engine)
    copy_weights(folder, weights, {name: local(parameter.detach()) for name, parameter in parameters.items()})
    group = engine.optimizer.param_groups[0]
    for path, tensor in optimizer.items():
        name, key = path.rsplit("/", 1)
        engine.optimizer.state[parameters[name]][key] = _like(tensor, parameters[name], group)
    scheduler = engine.lr_scheduler
    scheduler.load_state_dict({**schedule, "lr_lambdas": scheduler.state_dict()["lr_lambdas"]})
    for group, rate in zip(engine.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate


def copy_weights(folder: Path, weights: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Copy the weights of the checkpoint in `folder` into a model's parameters, by name.

    ValueError: they are of another model.
    """
    if weights.keys() != target.keys():
        raise ValueError(f"{folder}: the checkpoint's parameters are not those of the model")
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(weights[name])


def _like(tensor: Tensor, parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """A state tensor as the optimizer needs it: sharded like its parameter; a counter on the device if fused."""
    if isinstance(parameter, DTensor) and tensor.dim() > 0 and tensor.shape == parameter.to_local().shape:
        # as the optimizer makes it: DTensor.from_local would move what is kept off the device onto it
        made = torch.zeros_like(parameter.detach(), dtype=tensor.dtype)
        local(made).copy_(tensor)
        return made
    on_device = tensor.dim() > 0 or group.get("fused") or group.get("capturable")
    return tensor.to(local(parameter).device) if on_device else tensor


def export(
    config: Mapping[str, Any], checkpoint: Path, weights: Mapping[str, Tensor], folder: Path, dtype: str
) -> None:
    """Write a policy with the weights of a checkpoint. Of the starting model, this reads no weights."""
    model = config["model"]
    settings = config["verl"].actor_rollout_ref.model
    trust = {"trust_remote_code": bool(settings.trust_remote_code)}
    if model["kind"] == "pretrained":
        path = os.path.expanduser(model["path"])
        shape, tokenizer = AutoConfig.from_pretrained(path, **trust), AutoTokenizer.from_pretrained(path, **trust)
        tokenizer.chat_template = settings.custom_chat_template or tokenizer.chat_template
    else:
        tokenizer = initial_model.character_tokenizer()
        shape = initial_model.shaped(model, tokenizer)
    module = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, **trust)
    if model["kind"] == "pretrained":
        with suppress(OSError):  # a model need not have one
            module.generation_config = GenerationConfig.from_pretrained(path)
    copy_weights(checkpoint, weights, dict(module.named_parameters()))
    logging.disable_progress_bar()
    module.to(dtype=getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

"""A model's weights and optimizer as safetensors, and everything else as JSON; nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer_ext.backends.in_process.engine import Trained, local


def save(folder: Path, model: Trained, state: dict[str, Any]) -> None:
    """Write weights, optimizer, learning-rate schedule and `state` (JSON values) into `folder`; make it if needed."""
    folder.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in model.weights().items()}, folder / "weights.safetensors")
    optimizer = model.engine.optimizer
    tensors = {
        f"{name}/{key}": local(value).contiguous()
        for name, parameter in model.engine.module.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    save_file(tensors, folder / "optimizer.safetensors")
    schedule = {k: v for k, v in model.engine.lr_scheduler.state_dict().items() if k != "lr_lambdas"}
    (folder / "state.json").write_text(json.dumps({**state, "schedule": schedule}, indent=1))


def load(folder: Path, model: Trained) -> dict[str, Any]:
    """Restore what `save` wrote into a model of the same shape; returns the state."""
    load_weights(folder, model.weights())
    optimizer, parameters = model.engine.optimizer, dict(model.engine.module.named_parameters())
    for path, tensor in load_file(folder / "optimizer.safetensors").items():
        name, key = path.rsplit("/", 1)
        optimizer.state[parameters[name]][key] = _like(tensor, parameters[name], optimizer.param_groups[0])
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    scheduler = model.engine.lr_scheduler
    scheduler.load_state_dict({**state.pop("schedule"), "lr_lambdas": scheduler.state_dict()["lr_lambdas"]})
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    return state


def load_weights(folder: Path, target: Mapping[str, Tensor]) -> None:
    """Copy the weights of a checkpoint into a model's parameters, by name. ValueError: they are of another model."""
    weights = load_file(folder / "weights.safetensors")
    if weights.keys() != target.keys():
        raise ValueError(f"{folder}: the checkpoint's parameters are not those of the model")
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(weights[name])


def _like(tensor: Tensor, parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """A state tensor as the optimizer needs it: sharded like its parameter; a counter on the device if fused."""
    if isinstance(parameter, DTensor) and tensor.dim() > 0 and tensor.shape == parameter.to_local().shape:
        return DTensor.from_local(tensor.to(parameter.to_local().device), parameter.device_mesh, parameter.placements)
    on_device = tensor.dim() > 0 or group.get("fused") or group.get("capturable")
    return tensor.to(parameter.device) if on_device else tensor

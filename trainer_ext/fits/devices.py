"""On what a run computes: the kind of device of a process, and what a configuration says of devices and their use.

A run has devices (GPUs) if `model.resources.devices` is not 0; otherwise it computes on CPUs. Only the functions that
ask a device load torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CPU, CUDA = "cpu", "cuda"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
AUTO = "auto"
#: In the environment of the processes of a run under Ray: the kind of its devices, also where a process has none.
KIND = "RLSWEEP_DEVICE"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Parallel:
    """How a model is spread over processes, and what is kept off the device (`model.parallel`).

    offload: parameters and the optimizer's state stay in the memory of the CPU; sequence: ranks that share each
    sequence (Ulysses); tensor: devices that share a rollout server's model; rows: responses that a server of
    transformers draws at a time, None: as verl's tree says.
    """

    offload: bool
    sequence: int
    tensor: int
    rows: int | None

    @classmethod
    def from_model(cls, model: Mapping[str, Any]) -> Parallel:
        """Read the section `model` of the configuration."""
        section = model["parallel"]
        rows = None if section["rows"] is None else int(section["rows"])
        return cls(bool(section["offload"]), int(section["sequence"]), int(section["tensor"]), rows)


def asked(model: Mapping[str, Any]) -> tuple[int, int]:
    """Nodes, and devices on each of them. model: the section of the configuration."""
    resources = model.get("resources") or {}
    return int(resources.get("nodes") or 1), int(resources.get("devices") or 0)


def kind_of(model: Mapping[str, Any]) -> str:
    """The kind of a run's devices. model: the section of the configuration."""
    return CUDA if asked(model)[1] else CPU


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the values that depend on the run's devices, in place of `auto` and null.

    trainer.dtype=auto is bfloat16 on devices, and float32 on CPUs. trainer.ranks=null is one for each device, and
    without devices one on each node.
    """
    trainer, (nodes, devices) = dict(config["trainer"]), asked(config["model"])
    if trainer.get("dtype") == AUTO:
        trainer["dtype"] = BFLOAT16 if devices else FLOAT32
    if trainer.get("ranks", 1) is None:
        trainer["ranks"] = nodes * max(1, devices)
    return {**config, "trainer": trainer}


def environment(kind: str) -> dict[str, str]:
    """What the processes of a run under Ray have in their environment: its kind of device; a CPU has no GPU."""
    return {KIND: kind} if kind == CUDA else {KIND: kind, _VISIBLE: ""}


def kind() -> str:
    """The kind of device on which this process computes: that of its run, or what the machine has."""
    import torch

    return os.environ.get(KIND) or (CUDA if torch.cuda.is_available() else CPU)


def visible() -> dict[str, str]:
    """The environment of a process that has the devices of this one, and no other; empty: all of the machine's."""
    return {name: os.environ[name] for name in (_VISIBLE,) if name in os.environ}

"""What a run requests from a cluster, with one meaning on every scheduler: `model.resources` of its model's file, and
the memory of processes that the trainer starts beside the model's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


@dataclass(frozen=True)
class Shape:
    """Nodes, and on each of them devices, CPUs and memory (10^9 bytes); the time limit in seconds. 0: not requested.

    joins_ray: on a cluster of Ray, the run's processes are Ray's, inside a placement group that requests all this.
    """

    nodes: int = 1
    devices: int = 0
    cpus: int = 1
    memory_gb: float = 0.0
    time_s: int = 0
    joins_ray: bool = False

    @property
    def units(self) -> int:
        """What device-hours count: the devices on all nodes; without devices, one for each node."""
        return self.nodes * max(self.devices, 1)

    def __str__(self) -> str:
        nodes = f"{self.nodes} node{'' if self.nodes == 1 else 's'}"
        devices = f"{self.devices} devices, " if self.devices else ""
        return f"{nodes}, on each {devices}{self.cpus} CPUs and {self.memory_gb:g} GB, {self.time_s} s"


def shape(config: Mapping[str, Any]) -> Shape:
    """What a run requests. config: checked against conf/config.yaml."""
    asked, trainer = config["model"].get("resources") or {}, config.get("trainer") or {}
    nodes = asked.get("nodes") or 1
    memory = float(asked.get("memory_gb") or 0)
    if memory:
        ranks = math.ceil(trainer.get("ranks", 0) / nodes)  # the services may all be on one node
        each = trainer.get("rank_gb", 0.0) + (trainer["vllm_gb"] if trainer.get("rollout") == "vllm" else 0.0)
        memory += trainer.get("services_gb", 0.0) + ranks * each
    return Shape(
        nodes=nodes,
        devices=asked.get("devices") or 0,
        cpus=asked.get("cpus") or 1,
        memory_gb=memory,
        time_s=seconds(asked.get("time") or "") or 0,
        joins_ray=bool(trainer.get("ray")),
    )


def seconds(time: str) -> int | None:
    """The seconds of a time in SLURM's format, HH:MM:SS or D-HH:MM:SS; None for another format."""
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest

"""Whether a run of trainer=verl_ray fits into the memory that it asks for, and which keys lower what it needs.

Nothing here loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_ext import devices, rank_memory, sizes
from trainer_ext.architectures import FLOAT, Architecture
from trainer_ext.devices import Parallel
from trainer_ext.memory import Need
from trainer_ext.rank_memory import Layout, RankNeed

_GB = 1e9
_DOING = {"sampling": "sampling", "scoring": "scoring a micro-batch", "update": "updating the policy"}
_MEMORY = "model.resources.memory_gb"
_PARTS = 6  # of a sum


@dataclass(frozen=True)
class _Run:
    """What decides the memory of a run. config: settled (devices.settled); verl: verl's whole tree; reward_model: the
    number of its parameters."""

    config: Mapping[str, Any]
    verl: Mapping[str, Any]
    model: Architecture
    target: Architecture
    reward_model: int

    @property
    def layout(self) -> Layout:
        section, trainer = self.config["model"], self.config["trainer"]
        (nodes, on_each), parallel = devices.asked(section), Parallel.of(section)
        return Layout(
            ranks=trainer["ranks"],
            nodes=nodes,
            devices=bool(on_each),
            dtype=trainer["dtype"],
            offload=parallel.offload,
            sequence=parallel.sequence,
            tensor=parallel.tensor,
            rows=parallel.rows,
            server=trainer["rollout"],
            variance=trainer["grad_variance"],
        )

    @property
    def rank(self) -> RankNeed:
        return rank_memory.need(self.config["method"], self.verl, self.model, self.target, self.layout)

    def main(self, rank: Need, phase: str) -> int:
        """Bytes of main memory on the fullest node, which may have the reward model beside its ranks."""
        layout = self.layout
        held = sum(rank.throughout.values()) + sum(rank.phases[phase].values())
        return math.ceil(layout.ranks / layout.nodes) * held + FLOAT * self.reward_model

    def excess(self) -> Iterator[tuple[str, str, Need, int]]:
        """What does not fit: (key of the limit, phase, need of a rank, bytes)."""
        asked, rank = self.config["model"]["resources"], self.rank
        limit = asked.get("device_memory_gb")
        if rank.device is not None and limit is not None:
            for phase, items in rank.device.phases.items():
                count = sum(rank.device.throughout.values()) + sum(items.values())
                if phase == "sampling" and self.layout.server == "vllm":
                    # vLLM takes its part of the device, and fails if that does not hold what it needs at least
                    part = self.verl["actor_rollout_ref"]["rollout"]["gpu_memory_utilization"]
                    own = sum(size for what, size in items.items() if what in rank_memory.OF_VLLM)
                    count = max(count - own + math.ceil(part * limit * _GB), math.ceil(own / part))
                if count > limit * _GB:
                    yield "model.resources.device_memory_gb", phase, rank.device, count
        limit = asked.get("memory_gb")
        if limit is not None:
            for phase in rank.main.phases:
                count = self.main(rank.main, phase)
                if count > limit * _GB:
                    yield _MEMORY, phase, rank.main, count


def misfit(
    config: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, target: Architecture, reward_model: int
) -> sizes.Misfit | None:
    """Why a run does not fit into the memory that it asks for; None: it does, or it states no limit.

    config: settled (devices.settled); verl: verl's whole tree; target: the sizes of the target policy, if the method
    has one; reward_model: the number of its parameters.
    """
    run = _Run(config, verl, model, target, reward_model)
    excess = list(run.excess())
    if not excess:
        return None
    key = excess[0][0]
    of_key = [one for one in excess if one[0] == key]
    ranks = math.ceil(run.layout.ranks / run.layout.nodes)
    who = f"a node with {ranks} rank{'s' if ranks > 1 else ''}" if key == _MEMORY else "each device"
    rule = f"{who} needs " + "; ".join(_sum(run, *one) for one in of_key)
    value = config["model"]["resources"][key.rpartition(".")[2]]
    return sizes.Misfit(key, value, rule, _fix(run, key, max(one[3] for one in of_key)))


def _sum(run: _Run, key: str, phase: str, rank: Need, count: int) -> str:
    """A sum in words, with its largest parts."""
    items = {**rank.throughout, **rank.phases[phase]}
    times = math.ceil(run.layout.ranks / run.layout.nodes) if key == _MEMORY else 1
    parts = {what: times * size for what, size in items.items()}
    if key == _MEMORY and run.reward_model:
        parts["reward model"] = FLOAT * run.reward_model
    largest = sorted(parts.items(), key=lambda one: -one[1])[:_PARTS]
    listed = ", ".join(f"{what} {size / _GB:.1f}" for what, size in largest if size >= 0.005 * count)
    doing = f" while {_DOING[phase]}" if len(rank.phases) > 1 else ""
    if key != _MEMORY and phase == "sampling" and run.layout.server == "vllm":
        listed += ", all that vLLM needs within its part of the device, gpu_memory_utilization="
        listed += f"{run.verl['actor_rollout_ref']['rollout']['gpu_memory_utilization']}"
    return f"{count / _GB:.1f} GB{doing} ({listed})"


def _fix(run: _Run, key: str, most: int) -> str:
    """The keys that lower what a run needs, with their values, and the resources that would hold it."""
    layout, actor = run.layout, run.verl["actor_rollout_ref"]
    rows, (nodes, on_each) = rank_memory.rows_drawn(run.verl, layout), devices.asked(run.config["model"])
    lower = [f"model.parallel.rows={rows}"] if layout.server == "hf" and rows > 1 else []
    micro = min(int(actor["actor"]["ppo_micro_batch_size_per_gpu"] or 0), rank_memory.rows_of_rank(run.verl, layout))
    if not actor["actor"]["use_dynamic_bsz"] and micro > 1:
        lower.append(f"verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={micro}")
    share, settings = [], []
    if layout.devices:
        share = [f"model.resources.devices={on_each}", f"model.resources.nodes={nodes}"]
        share.append(f"model.parallel.sequence={layout.sequence}")
        if layout.server == "vllm":
            share.append(f"model.parallel.tensor={layout.tensor}")
        if not layout.offload:
            settings.append("model.parallel.offload=true")
        if layout.variance:
            settings.append("trainer.grad_variance=false")
        if not actor["model"]["lora_rank"]:
            settings.append("verl.actor_rollout_ref.model.lora_rank=16 (trains adapters instead of all weights)")
        if layout.server == "hf":
            settings.append("trainer.rollout=vllm (its servers share a model)")
    least = math.ceil(most / _GB)
    ways = [
        f"{verb} {', '.join(keys)}" for verb, keys in (("lower", lower), ("raise", share), ("set", settings)) if keys
    ]
    held = f"use {'nodes' if key == _MEMORY else 'devices'} of {least} GB and set {key}={least}"
    return "; or ".join([*ways, f"{held}, or choose a smaller model"])

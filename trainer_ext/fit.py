"""Whether a run of trainer=verl_ray fits into the memory that it asks for, and which changes would make it fit.

Each suggestion is computed: with it, the run fits, and none of its sizes is refused. Nothing here loads torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_ext import devices, rank_memory, sizes
from trainer_ext.architectures import FLOAT, Architecture
from trainer_ext.devices import Parallel
from trainer_ext.memory import Need
from trainer_ext.rank_memory import Layout, RankNeed

_GB = 1e9
_DOING = {"sampling": "sampling", "scoring": "scoring a micro-batch", "update": "updating the policy"}
_MICRO = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
_ROWS, _MEMORY = "model.parallel.rows", "model.resources.memory_gb"
_COUNT, _VARIANCE = "model.resources.nodes", "trainer.grad_variance"
_ROLLOUT, _TENSOR = "trainer.rollout", "model.parallel.tensor"
_ADAPTERS, _RANK = "verl.actor_rollout_ref.model.lora_rank", 16
#: On what a suggestion depends that is not known here.
_PROVIDED = {
    _COUNT: "needs cluster=slurm or cluster=ray",
    _VARIANCE: "if nothing reports actor/grad_variance",
    _MEMORY: "if nodes have that much",
    _ROLLOUT: "if vLLM is installed and can draw what the method needs",
    _ADAPTERS: "trains adapters instead of all weights",
}
_ON_NODE, _NODES = 8, (2, 4, 8, 16)  # devices that are suggested on a node, and nodes
_SHOWN, _TOGETHER = 3, 3  # suggestions that a refusal names, and changes that one of them combines
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

    def fits(self) -> bool:
        """Whether the run fits, and none of its sizes is refused."""
        section = self.config["model"]
        if any(self.excess()) or any(sizes.misfits({**self.config, "verl": self.verl})):
            return False
        return sizes.heads(section, self.model.heads, self.model.key_value_heads) is None

    def changed(self, changes: Mapping[str, Any]) -> _Run:
        """The run with other values of some keys; its ranks follow its devices."""
        config: Any = {**self.config, "verl": self.verl}
        for key, value in changes.items():
            config = _with(config, key.split("."), value)
        if any(key.startswith("model.resources.") and key != _MEMORY for key in changes):
            config = devices.settled(_with(config, ["trainer", "ranks"], None))
        return _Run(config, config["verl"], self.model, self.target, self.reward_model)


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
    """What would make a run fit: the fewest changes that do, each as mild as possible; other servers if need be."""
    levers = list(_levers(run, most if key == _MEMORY else None))
    found = _suggestions(run, levers) or _suggestions(run, [*_other_servers(run), *levers])
    if found:
        return f"set {', or '.join(found)}"
    least = math.ceil(most / _GB)
    return f"choose a smaller model, or {'nodes' if key == _MEMORY else 'devices'} of {least} GB and set {key}={least}"


def _suggestions(run: _Run, levers: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    for together in range(1, min(_TOGETHER, len(levers)) + 1):
        found = []
        for chosen in itertools.combinations(levers, together):
            for settings in itertools.product(*chosen):
                changes = {name: value for setting in settings for name, value in setting.items()}
                if run.changed(changes).fits():
                    found.append(_words(changes))
                    break
            if len(found) == _SHOWN:
                break
        if found:
            return found
    return []


def _levers(run: _Run, main: int | None) -> Iterator[Sequence[dict[str, Any]]]:
    """Keys that change the memory of a run, each with its values from the mildest on. main: bytes that a node needs, if
    it has not so many."""
    layout, actor = run.layout, run.verl["actor_rollout_ref"]["actor"]
    if main is not None:
        yield [{_MEMORY: math.ceil(main / _GB)}]
    if layout.server == "hf":
        yield [{_ROWS: rows} for rows in _halves(rank_memory.rows_drawn(run.verl, layout))]
    if not actor["use_dynamic_bsz"]:
        rows = rank_memory.rows_of_rank(run.verl, layout)
        micro = min(int(actor["ppo_micro_batch_size_per_gpu"]), rows)
        yield [{_MICRO: one} for one in range(micro - 1, 0, -1) if not rows % one]
    if not layout.devices:
        return
    yield [{"model.parallel.sequence": 2**power * layout.sequence} for power in (1, 2, 3)]
    if layout.server == "vllm":
        yield [{_TENSOR: one} for one in _more_tensor(layout)]
    if not layout.offload:
        yield [{"model.parallel.offload": True}]
    nodes, on_each = devices.asked(run.config["model"])
    more = [{"model.resources.devices": one} for one in (2, 4, _ON_NODE) if one > on_each and nodes == 1]
    full = {} if on_each >= _ON_NODE else {"model.resources.devices": _ON_NODE}
    yield more + [{**full, _COUNT: one} for one in _NODES if one > nodes]
    if layout.variance:
        yield [{_VARIANCE: False}]
    if not run.verl["actor_rollout_ref"]["model"]["lora_rank"]:
        yield [{_ADAPTERS: _RANK}]


def _other_servers(run: _Run) -> Iterator[Sequence[dict[str, Any]]]:
    """Servers that share a model between devices, where each has the whole."""
    if run.layout.devices and run.layout.server == "hf":
        yield [{_ROLLOUT: "vllm", _TENSOR: one} for one in _more_tensor(run.layout)]


def _more_tensor(layout: Layout) -> list[int]:
    return [one for one in (layout.tensor * 2**power for power in (1, 2, 3)) if not layout.ranks % one]


def _halves(count: int) -> Iterator[int]:
    while count > 1:
        count //= 2
        yield count


def _words(changes: Mapping[str, Any]) -> str:
    listed = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        + (f" ({_PROVIDED[key]})" if key in _PROVIDED else "")
        for key, value in changes.items()
    ]
    return " with ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else listed[0]


def _with(tree: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A tree with one other value; what does not lie on its path is shared."""
    if len(path) == 1:
        return {**tree, path[0]: value}
    return {**tree, path[0]: _with(tree[path[0]], path[1:], value)}

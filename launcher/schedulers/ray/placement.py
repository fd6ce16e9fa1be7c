"""What runs ask of a Ray cluster, how many fit into it, and the refusal of those that never will.

Ray itself lets a request that no node can meet wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.errors import InvalidPlan, Problem
from launcher.planning import resources
from launcher.planning.plan import Plan
from launcher.planning.resources import Shape
from launcher.schedulers.local.memory import GB
from launcher.text import shown

#: Bytes of the object store of a Ray started here: nothing of a run goes through it.
OBJECTS = 100_000_000

#: A node's resources by Ray's names: CPU, GPU, memory (bytes).
Node = Mapping[str, float]


def bundle(shape: Shape) -> dict[str, float]:
    """What a shape asks of one node, by Ray's names."""
    named = {"CPU": float(shape.cpus), "GPU": float(shape.devices), "memory": float(round(shape.memory_gb * GB))}
    return {name: amount for name, amount in named.items() if amount}


def room(shape: Shape, nodes: Sequence[Node]) -> int:
    """How many runs of a shape an otherwise empty cluster holds at once; the parts of a run are on different nodes."""
    asked = bundle(shape)
    each = [min(int(node.get(name, 0.0) // amount) for name, amount in asked.items()) for node in nodes]
    if shape.nodes == 1:
        return sum(each)
    count = 0
    while sum(min(count + 1, held) for held in each) >= (count + 1) * shape.nodes:
        count += 1
    return count


def refuse(plan: Plan, wanted: Sequence[str], nodes: Sequence[Node], cluster: str) -> None:
    """Raise InvalidPlan, with a line for each model whose runs can never be placed. `cluster`: what to call it."""
    configs = [plan.runs[run_id].config for run_id in wanted]
    models = {(config["model"]["name"], resources.shape(config)) for config in configs}
    lacking = [
        Problem(
            f"conf/model/{name}.yaml",
            "model.resources",
            shown(_said(asked)),
            f"{cluster} has {_offer(nodes)}; no placement there can ever meet this",
            f"ask for less, such as model.resources.{_key(asked, nodes)}, or choose a cluster that has it",
        )
        for name, asked in sorted(models, key=lambda model: (model[0], str(model[1])))
        if room(asked, nodes) == 0
    ]
    if lacking:
        raise InvalidPlan(lacking)


def _said(asked: Shape) -> dict[str, float]:
    said = {"nodes": asked.nodes, "cpus": asked.cpus, "devices": asked.devices, "memory_gb": asked.memory_gb}
    return {name: amount for name, amount in said.items() if amount}


def _key(asked: Shape, nodes: Sequence[Node]) -> str:
    """An override that takes the first obstacle away: the most that one node has."""
    for key, name, unit in (("cpus", "CPU", 1), ("devices", "GPU", 1), ("memory_gb", "memory", GB)):
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if bundle(asked).get(name, 0.0) > most:
            return f"{key}={int(most // unit)}"
    return f"nodes={max(1, len(nodes))}"


def _offer(nodes: Sequence[Node]) -> str:
    """The nodes in words, equal ones together."""
    words = [
        f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs, {node.get('memory', 0) / GB:.1f} GB of memory"
        for node in nodes
    ]
    counts = {one: words.count(one) for one in words}
    said = "; ".join(f"{count} of {one}" for one, count in counts.items())
    return f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} ({said})" if nodes else "no node"

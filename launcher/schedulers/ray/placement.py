"""What runs request from a Ray cluster, how many fit into it, and the refusal of those that can never run there.

Ray itself lets a request that no node can meet wait for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from launcher.application import Shape, application, shape
from launcher.errors import Diagnostics
from launcher.planning.plan import Plan
from launcher.text import counted, shown

GB = 10**9
#: Bytes of the object store of a Ray that is started here. Runs do not use it.
OBJECTS = 100_000_000
_NO_AMOUNTS = ("time_s", "joins_ray")  # of a shape

#: A node's resources by Ray's names: CPU, GPU, memory (bytes).
Node = Mapping[str, float]


def bundle(shape: Shape) -> dict[str, float]:
    """What a shape requests from one node, by Ray's names."""
    named = {"CPU": float(shape.cpus), "GPU": float(shape.devices), "memory": float(round(shape.memory_gb * GB))}
    return {name: amount for name, amount in named.items() if amount}


def room(shape: Shape, nodes: Sequence[Node]) -> int:
    """How many runs of a shape an otherwise empty cluster holds at once; the parts of a run are on different nodes."""
    request = bundle(shape)
    each = [min(int(node.get(name, 0.0) // amount) for name, amount in request.items()) for node in nodes]
    if shape.nodes == 1:
        return sum(each)
    count = 0
    while sum(min(count + 1, held) for held in each) >= (count + 1) * shape.nodes:
        count += 1
    return count


def refuse(plan: Plan, run_ids: Sequence[str], nodes: Sequence[Node], cluster: str) -> None:
    """Raise InvalidPlan, with a line for each model whose runs can never be placed. `cluster`: what to call it."""
    problems, asked = Diagnostics(), set[tuple[str, str, str, Shape]]()
    for config in (plan.runs[run_id].config for run_id in run_ids):
        request = shape(config)
        name, most = _obstacle(request, nodes)
        file, key = application(config).requested_in(config, name)
        asked.add((file, key, f"{key}={most}", request))
    # The nodes in words, equal ones together.
    kinds = Counter(
        f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs, {node.get('memory', 0) / GB:.1f} GB of memory"
        for node in nodes
    )
    listed = "; ".join(f"{count} of {words}" for words, count in kinds.items())
    offer = f"{counted(len(nodes), 'node')} ({listed})" if nodes else "no node"
    for file, key, less, request in sorted(asked, key=str):
        if room(request, nodes) == 0:
            amounts = {name: amount for name, amount in vars(request).items() if amount and name not in _NO_AMOUNTS}
            rule = f"{cluster} has {offer}; no node there can ever meet this request"
            fix = f"ask for less, such as {less}, or choose a cluster that has it"
            problems.add(file, key.rpartition(".")[0], shown(amounts), rule, fix)
    problems.raise_any()


def _obstacle(request: Shape, nodes: Sequence[Node]) -> tuple[str, int]:
    """The first field of a request that no node meets, and the most that one has of it."""
    for key, name, unit in (("cpus", "CPU", 1), ("devices", "GPU", 1), ("memory_gb", "memory", GB)):
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if bundle(request).get(name, 0.0) > most:
            return key, int(most // unit)
    return "nodes", max(1, len(nodes))

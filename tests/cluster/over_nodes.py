"""A Ray program for several nodes: says where it is, and works on each node while a file is there. over_nodes FILE"""

from __future__ import annotations

import os
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote
def here() -> str:
    """The node that runs it."""
    return str(ray.get_runtime_context().get_node_id())


def main() -> None:
    ray.init(log_to_driver=False)  # RAY_ADDRESS says where
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    print(f"CLUSTER {os.environ['RAY_ADDRESS']} {len(nodes)}", flush=True)
    while True:
        tasks = [here.options(scheduling_strategy=NodeAffinitySchedulingStrategy(one, False)) for one in nodes]
        assert ray.get([task.remote() for task in tasks]) == nodes
        if not os.path.exists(sys.argv[1]):
            break
        time.sleep(1)
    print("WORKED", flush=True)


if __name__ == "__main__":
    main()

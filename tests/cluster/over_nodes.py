"""A program that has a Ray over the nodes of its job, and works on each node while a file is there. over_nodes FILE"""

from __future__ import annotations

import os
import secrets
import sys
import time

from launcher import nodes

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # Ray reads them at its import
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote
def here() -> str:
    """The node that runs it."""
    return str(ray.get_runtime_context().get_node_id())


def main() -> None:
    with nodes.ray(nodes.allocation(os.environ), os.environ, ["--num-cpus=1"]) as started:
        ray.init(started.address, log_to_driver=False)
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        print(f"CLUSTER {started.address} {len(alive)}", flush=True)
        while True:
            tasks = [here.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False)) for node in alive]
            assert ray.get([task.remote() for task in tasks]) == alive
            if not os.path.exists(sys.argv[1]):
                break
            time.sleep(1)
        print("WORKED", flush=True)


if __name__ == "__main__":
    main()

"""What Ray counts on each node of a run, and what its processes there need, do first, and hold.

It imports little, because a process that answers for its node imports nothing else.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil

#: In the environment: modules that `import verl` imports, such as a user's own.
EXTERNAL = "VERL_USE_EXTERNAL_MODULES"
#: What each of Ray's processes needs in its environment, whoever has started its Ray.
ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    EXTERNAL: "trainer_ext.backends.in_process.imports",  # it spares each process SciPy
    "TQ_LOGGING_LEVEL": "ERROR",  # it warns of the number of threads with each of thousands of tensors
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",  # otherwise it sends them to its makers
    "VLLM_LOGGING_LEVEL": "WARNING",
}
#: In the environment of a run's processes in a Ray that others use too: the run's own value.
MARK = "RLSWEEP_SHARE"
#: Bytes of the object store; the tensors of a step are in the queue's own memory.
OBJECTS = 200 * 10**6


def cpus(trainer: Mapping[str, Any], nodes: int) -> int:
    """CPUs, whatever the node has. trainer: the section.

    Workers and servers are waited for together, so each needs one; all services may be on one node.
    """
    return 2 * int(trainer["ranks"]) // nodes + int(trainer["storage_units"]) + 8


def collect_rarely() -> None:
    """Make garbage collections rare.

    By Python's default, a process that imports verl's thousands of modules spends an eighth of that time on them.
    """
    gc.set_threshold(50_000, 10, 10)


def in_shared_ray() -> None:
    """Set up a process in a Ray that the run shares with others: rare collections, and the run's own TransferQueue.

    TransferQueue looks for its controller in one namespace for all programs of a Ray. The run's controller is in the
    run's namespace.
    """
    import ray

    collect_rarely()
    get_actor = ray.get_actor

    def own(name: str, namespace: str | None = None) -> Any:
        return get_actor(name, None if namespace == "transfer_queue" else namespace)

    ray.get_actor = own


def held(top: psutil.Process | None = None) -> int:
    """Bytes that a process, this one by default, and all that it started hold; what they share is counted with each."""
    total = 0
    for process in family(top or psutil.Process()):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def family(top: psutil.Process) -> list[psutil.Process]:
    """A process and all that it has started; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return [top, *top.children(recursive=True)]
    return []


def of_ray() -> int:
    """Bytes that the run's processes of Ray hold on the node of this one: its parent is the raylet."""
    here = psutil.Process()
    if MARK not in os.environ:
        return held(here.parents()[1])  # `ray start`
    return sum(held(process) for process in of_share(here.parents()[0], os.environ[MARK]))


def of_share(raylet: psutil.Process, value: str) -> list[psutil.Process]:
    """The processes that a raylet has started for the run whose MARK has this value."""
    marked = []
    for process in raylet.children():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == value:
                marked.append(process)
    return marked

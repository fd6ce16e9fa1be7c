"""What Ray counts on each node of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Bytes of the object store; the tensors of a step are in the queue's own memory.
OBJECTS = 200 * 10**6


def cpus(trainer: Mapping[str, Any], nodes: int) -> int:
    """CPUs, whatever the node has. trainer: the section.

    Workers and servers are waited for together, so each needs one; all services may be on one node.
    """
    return 2 * int(trainer["ranks"]) // nodes + int(trainer["storage_units"]) + 8

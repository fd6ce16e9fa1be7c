"""How much memory a run's processes hold. A process that answers this for a node imports nothing else."""

from __future__ import annotations

import psutil


def held(top: psutil.Process | None = None) -> int:
    """Bytes that a process, this one by default, and all that it started hold; what they share is counted with each."""
    top = top or psutil.Process()
    total = 0
    for one in [top, *top.children(recursive=True)]:
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def of_ray() -> int:
    """Bytes that the processes of Ray hold on the node of this one: its parent is the raylet of `ray start`."""
    return held(psutil.Process().parents()[1])

"""How much memory a run's processes hold. A process that answers this for a node imports nothing else."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

#: In the environment of a run's processes in a Ray that others use too: the run's own value.
MARK = "RLSWEEP_SHARE"


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
    """Bytes that the run's processes of Ray hold on the node of this one: its parent is the raylet."""
    here = psutil.Process()
    if MARK not in os.environ:
        return held(here.parents()[1])  # `ray start`
    return sum(held(one) for one in of_share(here.parents()[0], os.environ[MARK]))


def of_share(raylet: psutil.Process, value: str) -> list[psutil.Process]:
    """The processes that a raylet has started for the run whose MARK has this value."""
    found = []
    for one in raylet.children():
        with suppress(psutil.Error):
            if one.environ().get(MARK) == value:
                found.append(one)
    return found

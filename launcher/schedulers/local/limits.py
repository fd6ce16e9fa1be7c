"""Which running runs must stop: those over their time or their memory, and the newest when the machine's runs short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.run import lifecycle
from launcher.schedulers.local.memory import GB


@dataclass(frozen=True)
class Limits:
    """Seconds and GB (10^9 bytes); None is without limit.

    limit_s: one attempt's time. grace_s: from the request to stop to the kill. memory_gb: one run's memory.
    reserve_gb: what stays free on the machine.
    """

    limit_s: float | None = None
    grace_s: float = 60.0
    memory_gb: float | None = None
    reserve_gb: float = 0.0


def limits(cluster: Mapping[str, Any]) -> Limits:
    """The limits that a cluster's configuration names."""
    return Limits(**{name: cluster[name] for name in Limits.__dataclass_fields__ if name in cluster})


@dataclass(frozen=True)
class Job:
    """A running run: for how many seconds, with how many bytes, and whether it was asked to stop already."""

    name: int
    seconds: float
    held: int
    asked: bool


@dataclass(frozen=True)
class Verdict:
    """A job that must stop, and why."""

    name: int
    kind: str
    cause: str


def judge(jobs: Sequence[Job], available: int, limits: Limits) -> list[Verdict]:
    """Who must stop now. `available`: bytes left on the machine. Jobs asked before are not asked again.

    While one that was asked is on its way out, nobody else is asked for the machine's sake. The only run of a machine
    that is short of memory does not fit; one of several waits for room.
    """
    found: list[Verdict] = []
    for job in jobs:
        if job.asked:
            continue
        if limits.limit_s is not None and job.seconds > limits.limit_s:
            found.append(Verdict(job.name, lifecycle.TIME_OUT, f"over the limit of {limits.limit_s:g} s an attempt"))
        elif limits.memory_gb is not None and job.held > limits.memory_gb * GB:
            cause = f"holds {job.held / GB:.2f} GB of the {limits.memory_gb:g} GB that a run may"
            found.append(Verdict(job.name, lifecycle.OUT_OF_MEMORY, cause))
    leaving = bool(found) or any(job.asked for job in jobs)
    if jobs and not leaving and available < limits.reserve_gb * GB:
        newest = min(jobs, key=lambda job: job.seconds)
        kind = lifecycle.OUT_OF_MEMORY if len(jobs) == 1 else lifecycle.PREEMPTED
        cause = f"the machine has {available / GB:.2f} GB left; {limits.reserve_gb:g} GB stay free"
        found.append(Verdict(newest.name, kind, cause))
    return found


def has_room(running: int, available: int, limits: Limits) -> bool:
    """Whether one more run fits into the machine's memory; the first one always does."""
    wanted = (limits.memory_gb or 0.0) + limits.reserve_gb
    return running == 0 or available >= wanted * GB

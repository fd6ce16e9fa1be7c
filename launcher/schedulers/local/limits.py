"""Which running runs must stop: those over their time or memory limit, and one if the machine is short of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.run.lifecycle import FailureKind
from launcher.schedulers.local.memory import GB


@dataclass(frozen=True)
class Limits:
    """Seconds and GB (10^9 bytes); None is without limit.

    limit_s: of one attempt. grace_s: between the request to stop and the kill. memory_gb: of one run. reserve_gb: what
    stays free on the machine.
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
    """A running run: for how many seconds, with how many bytes, and whether it was already asked to stop."""

    name: int
    seconds: float
    memory: int
    asked: bool


def judge(jobs: Sequence[Job], available: int, limits: Limits) -> dict[int, tuple[FailureKind, str]]:
    """The jobs that must stop now, and why, without those that were asked before. `available`: bytes left here.

    If the machine is short of memory, one run is asked, and no other until it has ended: the newest of several, which
    then waits for room. A run that is alone on the machine does not fit, and fails.
    """
    verdicts: dict[int, tuple[FailureKind, str]] = {}
    for job in jobs:
        if job.asked:
            continue
        if limits.limit_s is not None and job.seconds > limits.limit_s:
            message = f"over the limit of {limits.limit_s:g} s for an attempt"
            verdicts[job.name] = FailureKind.TIME_OUT, message
        elif limits.memory_gb is not None and job.memory > limits.memory_gb * GB:
            message = f"holds {job.memory / GB:.2f} GB of memory; the limit is {limits.memory_gb:g} GB for a run"
            verdicts[job.name] = FailureKind.OUT_OF_MEMORY, message
    stopping = bool(verdicts) or any(job.asked for job in jobs)
    if jobs and not stopping and available < limits.reserve_gb * GB:
        newest = min(jobs, key=lambda job: job.seconds)
        kind = FailureKind.OUT_OF_MEMORY if len(jobs) == 1 else FailureKind.PREEMPTED
        message = f"the machine has {available / GB:.2f} GB of memory left; {limits.reserve_gb:g} GB must stay free"
        verdicts[newest.name] = kind, message
    return verdicts


def has_room(running: int, available: int, limits: Limits) -> bool:
    """Whether one more run fits into the machine's memory. The first run is always tried."""
    needed = (limits.memory_gb or 0.0) + limits.reserve_gb
    return running == 0 or available >= needed * GB

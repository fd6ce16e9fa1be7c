"""This machine's memory, and which running runs must stop: those over a limit, and one if the machine is short of it.

In a container, the machine's memory is that of its control group (version 1 or 2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from launcher.run.lifecycle import FailureKind

GB = 10**9
_CGROUPS = Path("/sys/fs/cgroup")
# The limit of a control group without one is a number near 2**63.
_NO_LIMIT = 2**60


def _groups() -> Iterator[Path]:
    """The folders of this process's control group: by its path, and the root, which it is inside a container."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [_CGROUPS, _CGROUPS / "unified"]
        elif "memory" in controllers.split(","):
            roots = [_CGROUPS / "memory"]
        else:
            continue
        for root in roots:
            yield from (root / path.lstrip("/"), root)


def _text(group: Path, names: Iterable[str]) -> str:
    """The content of the first of these files that the group has."""
    for name in names:
        with suppress(OSError):
            return (group / name).read_text().strip()
    return ""


def _number(group: Path, *names: str) -> int | None:
    text = _text(group, names)
    return int(text) if text.isdigit() else None


def _field(group: Path, names: tuple[str, ...], field: str) -> int:
    match = re.search(rf"^{field} (\d+)$", _text(group, names), re.MULTILINE)
    return int(match[1]) if match else 0


def available() -> int:
    """Bytes that processes may still allocate, on this machine and in this control group."""
    left = int(psutil.virtual_memory().available)
    for group in _groups():
        limit = _number(group, "memory.max", "memory.limit_in_bytes")
        used = _number(group, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            # The kernel frees the file cache if memory is short.
            cache = _field(group, ("memory.stat",), "(?:total_)?inactive_file")
            left = min(left, limit - used + cache)
    return max(0, left)


def held(pid: int) -> int:
    """Bytes that are freed when a process and its children end. Memory shared with the warm server does not count."""
    total = 0
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            total += int(member.memory_full_info().uss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    return total


def oom_kills() -> int:
    """How many processes the kernel has killed because memory ran out, in this control group or on this machine."""
    counts = [_field(group, ("memory.events", "memory.oom_control"), "oom_kill") for group in _groups()]
    machine = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return max([*counts, int(machine[1]) if machine else 0])


# ---------------------------------------------------------------- limits


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
class Usage:
    """A running run: for how many seconds, with how many bytes, and whether it was already asked to stop."""

    name: int
    seconds: float
    memory: int
    asked: bool


def judge(jobs: Sequence[Usage], available: int, limits: Limits) -> dict[int, tuple[FailureKind, str]]:
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

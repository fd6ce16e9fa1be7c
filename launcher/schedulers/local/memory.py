"""This machine's memory: what is available, what a process holds, and how often the kernel killed a process for it.

In a container, the limit is that of its control group (version 1 or 2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil

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


def _number(group: Path, *names: str) -> int | None:
    for name in names:
        try:
            text = (group / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def _field(group: Path, names: tuple[str, ...], field: str) -> int:
    for name in names:
        try:
            match = re.search(rf"^{field} (\d+)$", (group / name).read_text(), re.MULTILINE)
        except OSError:
            continue
        if match:
            return int(match[1])
    return 0


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

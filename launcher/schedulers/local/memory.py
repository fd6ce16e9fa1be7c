"""This machine's memory: what is left, what a process holds, and how often the kernel killed for it.

In a container the limit is its control group's; both versions of control groups are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil

GB = 10**9
_CGROUPS = Path("/sys/fs/cgroup")
# A control group without a limit says so with a number near 2**63.
_NO_LIMIT = 2**60


def _groups() -> Iterator[Path]:
    """The folders of this process's control group: as the path says, and, in a container, the root."""
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
            found = re.search(rf"^{field} (\d+)$", (group / name).read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0


def available() -> int:
    """Bytes that a process may still take, here and in this control group."""
    left = int(psutil.virtual_memory().available)
    for group in _groups():
        limit = _number(group, "memory.max", "memory.limit_in_bytes")
        used = _number(group, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            # The cache of files is given back when memory is short.
            cache = _field(group, ("memory.stat",), "(?:total_)?inactive_file")
            left = min(left, limit - used + cache)
    return max(0, left)


def held(pid: int) -> int:
    """Bytes that ending a process and its children would free: what it shares with the warm server does not count."""
    total = 0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            total += int(one.memory_full_info().uss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    return total


def oom_kills() -> int:
    """How many processes the kernel killed so far because memory ran out, in this control group or on this machine."""
    counts = [_field(group, ("memory.events", "memory.oom_control"), "oom_kill") for group in _groups()]
    machine = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return max([*counts, int(machine[1]) if machine else 0])

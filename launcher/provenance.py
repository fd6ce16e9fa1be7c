"""Where a run came from: commit, uncommitted changes, packages, machine, command. Secrets are masked."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_SHORTEST_SECRET = 6
MASK = "***"


@dataclass(frozen=True)
class Provenance:
    """What is the same for every run of a launch, and the patch of a dirty tree (None when clean or without git)."""

    record: Mapping[str, Any]
    patch: str | None


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without the values of secret environment variables, and without values given to secret-looking keys."""
    environment = os.environ if environment is None else environment
    secrets = [value for name, value in environment.items() if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET]
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, MASK)
    return re.sub(r"([\w.]*(?:api_?key|token|secret|password)=)\S+", rf"\1{MASK}", text, flags=re.IGNORECASE)


def collect(root: Path, command: str) -> Provenance:
    """Read it all once a launch. Without git, commit and dirty are null."""
    commit = _git(root, ["rev-parse", "HEAD"])
    changes = _git(root, ["status", "--porcelain"]) if commit else None
    patch = _git(root, ["diff", "HEAD", "--binary"]) if changes else None
    packages = {
        dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions() if dist.metadata["Name"]
    }
    record = {
        "commit": commit.strip() if commit else None,
        "dirty": bool(changes) if changes is not None else None,
        "command": mask(command),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }
    return Provenance(record, mask(patch) if patch else None)


def _git(root: Path, arguments: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            timeout=30,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

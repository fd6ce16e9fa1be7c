"""What every run of one launch shares: provenance, tracking, retry rules.

multirun/launches/<token>.json       one file a launch, for workers that a scheduler starts as processes
multirun/launches/<token>.closed     no run of it is to begin any more
multirun/launches/<token>/           what a scheduler keeps: the code, lists of runs, logs
multirun/launches/<hash>.patch       the uncommitted changes of the tree, once however many launches had them
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.files import mark_used, write_atomic, write_json


@dataclass(frozen=True)
class Launch:
    """`record`: provenance. `tracking`: the plan's section. `retry`: how often each cause is taken up again.

    `patch` is the name of a file in multirun/launches. `token` names the launch, and its jobs.
    """

    record: Mapping[str, Any] = field(default_factory=dict)
    tracking: Mapping[str, Any] = field(default_factory=dict)
    retry: Mapping[str, int | None] = field(default_factory=dict)
    patch: str | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(6))

    def write(self, multirun: Path) -> Path:
        """Write multirun/launches/<token>.json and return its path."""
        path = launches_folder(multirun) / f"{self.token}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(self))
        return path


def launches_folder(multirun: Path) -> Path:
    """Where the launches' records lie."""
    return multirun / "launches"


def closed(record: Path) -> Path:
    """A mark beside a launch's record: no run of it is to begin any more."""
    return record.with_suffix(".closed")


def read(path: Path) -> Launch:
    """What `Launch.write` wrote."""
    return Launch(**json.loads(path.read_text(encoding="utf-8")))


def keep_patch(multirun: Path, patch: str) -> str:
    """Write a tree's uncommitted changes once, by content; the name for `Launch.patch`."""
    name = f"{hashlib.sha256(patch.encode()).hexdigest()[:16]}.patch"
    path = launches_folder(multirun) / name
    if not mark_used(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, patch)
    return name

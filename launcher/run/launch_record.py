"""The files that all runs of one launch share: provenance, tracking, retry rules.

multirun/launches/<token>.json       one file for each launch, read by workers that start as processes
multirun/launches/<token>.closed     no further run of this launch may start
multirun/launches/<token>/           what a scheduler keeps: the code, lists of runs, logs
multirun/launches/<hash>.patch       the uncommitted changes of the tree, one file for all launches that had them
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.files import mark_used, write_atomic
from launcher.run.records import Record, read_record, write_record


@dataclass(frozen=True)
class Launch(Record):
    """launches/<token>.json: what all runs of one launch share. `token` names the launch, and its jobs.

    `record` is the provenance, `tracking` the plan's section, `retry` how often a run is resumed after each failure
    kind, `patch` the name of a file in multirun/launches.
    """

    record: Mapping[str, Any] = field(default_factory=dict)
    tracking: Mapping[str, Any] = field(default_factory=dict)
    retry: Mapping[str, int | None] = field(default_factory=dict)
    patch: str | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(6))


def launches_folder(multirun: Path) -> Path:
    """The folder of all launch records."""
    return multirun / "launches"


def write(multirun: Path, launch: Launch) -> Path:
    """Write multirun/launches/<token>.json and return its path."""
    path = launches_folder(multirun) / f"{launch.token}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, launch)
    return path


def read(path: Path) -> Launch:
    """What `write` wrote."""
    return read_record(Launch, path)


def closed(record: Path) -> Path:
    """A marker beside a launch's record: no further run of this launch may start."""
    return record.with_suffix(".closed")


def keep_patch(multirun: Path, patch: str) -> str:
    """Write a tree's uncommitted changes to a file named by their content; its name, for `Launch.patch`."""
    name = f"{hashlib.sha256(patch.encode()).hexdigest()[:16]}.patch"
    path = launches_folder(multirun) / name
    if not mark_used(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, patch)
    return name

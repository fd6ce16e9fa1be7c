"""The files that all runs of one launch share: provenance, tracking, retry rules.

multirun/launches/<token>.json       one file for each launch, read by workers that start as processes
multirun/launches/<token>.closed     no further run of this launch may start
multirun/launches/<token>/           what a scheduler keeps: the code, lists of runs, logs
multirun/launches/<token>/jobs.json  the scheduler's own id of each run's job, by run
multirun/launches/<hash>.patch       the uncommitted changes of the tree, one file for all launches of a user
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.files import BadRunFolder, write_atomic, write_json
from launcher.run.folder import LATER, Record, find_object, read_provenance, read_record, write_record

#: The provenance of code from outside of the project: by path (provenance.collect).
USER_CODE = "user_code"


@dataclass(frozen=True)
class Launch(Record):
    """launches/<token>.json: what all runs of one launch share. `token` names the launch, and its jobs.

    `record` is the provenance, `tracking` the plan's section, `retry` how often a run is resumed after each failure
    kind, `patch` the name of a file in multirun/launches, `stall_s` the cluster's. `train` is the function that does
    the runs, as module:function; None: that of their application.
    """

    record: Mapping[str, Any] = field(default_factory=dict)
    tracking: Mapping[str, Any] = field(default_factory=dict)
    retry: Mapping[str, int | None] = field(default_factory=dict)
    patch: str | None = None
    stall_s: float | None = field(default=None, metadata=LATER)
    train: str | None = field(default=None, metadata=LATER)
    token: str = field(default_factory=lambda: secrets.token_hex(6))

    def patches(self) -> dict[str, str]:
        """The files in multirun/launches with uncommitted changes, by their names in a run's folder."""
        further = [source["patch"] for source in (self.record.get(USER_CODE) or {}).values() if source["patch"]]
        return {**{name: name for name in further}, **({"dirty.patch": self.patch} if self.patch else {})}


def repositories(folder: Path) -> dict[str, dict[str, Any]]:
    """The git repositories of a run's code from outside of the project, by path: `commit`, and `patch`, a path or
    None."""
    known = (read_provenance(folder).get(USER_CODE) or {}).values()
    found = [(one["repository"], one["commit"], one["patch"]) for one in known if one["commit"]]
    at = folder.absolute()
    return {top: {"commit": commit, "patch": patch and str(at / patch)} for top, commit, patch in found}


def launches_folder(multirun: Path) -> Path:
    return multirun / "launches"


def path_of(multirun: Path, launch: Launch) -> Path:
    """multirun/launches/<token>.json."""
    return launches_folder(multirun) / f"{launch.token}.json"


def write(multirun: Path, launch: Launch, patches: Mapping[str, bytes] | None = None) -> Path:
    """Write a launch's record, after the patches that its provenance names, by name; the path of the record."""
    keep_patches(multirun, patches or {})
    path = path_of(multirun, launch)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, launch)
    return path


def read(path: Path) -> Launch:
    """What `write` wrote."""
    return read_record(Launch, path)


def closed(record: Path) -> Path:
    """A marker beside a launch's record: no further run of this launch may start."""
    return record.with_suffix(".closed")


def keep_patches(multirun: Path, patches: Mapping[str, bytes]) -> None:
    """Write uncommitted changes to files that only this user may read. patches: by name, which tells their content."""
    for name, patch in patches.items():
        path = launches_folder(multirun) / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, patch, 0o600)


def jobs_path(record: Path) -> Path:
    """The ids of the jobs of the launch with this record."""
    return record.with_suffix("") / "jobs.json"


def add_jobs(record: Path, jobs: Mapping[str, str]) -> None:
    """Record the scheduler's own ids of the jobs of runs, by run, beside those that were recorded before."""
    path = jobs_path(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**_jobs(path), **jobs})


def _jobs(path: Path) -> dict[str, str]:
    with suppress(OSError, BadRunFolder):
        return find_object(path)
    return {}


def jobs_of(multirun: Path, runs: Mapping[str, str | None]) -> dict[str, str]:
    """The scheduler's own ids of the jobs of runs, such as 12_3, without those that have none. runs: their launches."""
    folder = launches_folder(multirun)
    recorded = {launch: _jobs(jobs_path(folder / f"{launch}.json")) for launch in {*runs.values()}}
    return {run_id: recorded[launch][run_id] for run_id, launch in runs.items() if run_id in recorded[launch]}

"""The records of a run folder and of its launch: what each file holds, and how it is read, checked and written.

A record is a frozen dataclass that msgspec validates, because its import takes a fifth of the time of pydantic's. On
disk some fields keep older names (`JSON_KEYS`), so that every version reads the
folders of every other.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from launcher.files import BadRunFolder, write_json
from launcher.run.lifecycle import FailureKind, RunState

FORMAT: Literal[1] = 1  # of a run folder
PLAN_FORMAT = 1  # version of plan.json

#: A field's name in the file, where it is not its name here.
JSON_KEYS = {"launch_id": "job", "message": "cause", "failure_kind": "kind", "failure_counts": "ends"}
#: Metadata of a field that a file has only if it says something: a file of an older version is written back as it was.
LATER: Mapping[str, Any] = {"later": True}
# Not a regular file, or not readable. Retrying will not help.
UNREADABLE = (IsADirectoryError, NotADirectoryError, PermissionError)

AnyRecord = TypeVar("AnyRecord", bound="Record")


class Record:
    """The base of all records, with their pydantic configuration. Unknown keys are ignored: another version may have
    written them."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "alias_generator": lambda name: JSON_KEYS.get(name, name),
        "extra": "ignore",
    }


@dataclass(frozen=True)
class State(Record):
    """state.json of a run. Times are unix seconds; `error` has type, message, place, traceback (last 50
    lines); older ones have no place.

    `launch_id` is the token of the launch that submitted the run. `failure_kind` and `message` say why the last attempt
    ended; `failure_counts` counts the attempts that ended so, by kind. `from_step` is the step after which the attempt
    began. `code` has the id of the record in multirun/code of each attempt whose steps count. `devices` is how many
    devices an attempt holds on all its nodes (without devices, how many nodes), 0 if no launch said so.
    `device_seconds` has the wall time of each attempt that has ended times `devices` (at least 1), by its number.
    `prefix` is the id of the run whose first `prefix_step` steps this run takes over; its attempts count here, too.
    `manifest` is the sha256 of the manifest.json of a done run; an older version wrote none.
    """

    format: Literal[1] = field(default=FORMAT, kw_only=True)
    id: str
    state: RunState
    attempt: int = 0
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    host: str | None = None
    pid: int | None = None
    launch_id: str | None = None
    message: str | None = None
    error: Mapping[str, str] | None = None
    failure_kind: FailureKind | None = None
    failure_counts: Mapping[str, int] = field(default_factory=dict)
    from_step: int | None = None
    code: Mapping[str, str] = field(default_factory=dict, metadata=LATER)
    devices: int = field(default=0, metadata=LATER)
    device_seconds: Mapping[str, float] = field(default_factory=dict, metadata=LATER)
    prefix: str | None = field(default=None, metadata=LATER)
    prefix_step: int | None = field(default=None, metadata=LATER)
    manifest: str | None = field(default=None, metadata=LATER)

    def code_ids(self) -> tuple[str, ...]:
        """The ids of the records of code of the attempts, each once; none for a run of an older version."""
        return tuple(dict.fromkeys(self.code.values()))

    def replace(self, **changes: Any) -> State:
        """A copy of the state with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Claim(Record):
    """claim.json of a run: the process that owns it. `process_start` is in clock ticks since boot, as in /proc."""

    host: str
    pid: int
    process_start: int
    boot_id: str
    token: str
    attempt: int


@dataclass(frozen=True)
class Manifest(Record):
    """manifest.json of a done run or a checkpoint: the sha256 of each file by its path. `times`: of a run, when each
    was changed, in ns; a file that has the same time is not read again. `run`: of a checkpoint, the run's logs then."""

    files: Mapping[str, str]
    times: Mapping[str, int] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FrozenConfig(Record):
    """config.yaml of a run, rewritten only if the files that an unfinished run names have moved. `base` names the
    frozen tree to which the application's sections hold differences.
    `inputs` has the hash of each local file and folder that the configuration names, by absolute path; runs of older
    versions have `data`, with the data files alone. `fork`: the run that it continues, and from where.

    Readers get the mapping as it is. A run that another tool made has fewer keys.
    """

    format: Literal[1] = field(kw_only=True)
    id: str | None = None
    identity: Mapping[str, Any] | None = None
    base: str | None = None
    seed: int | None = None
    method: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    fork: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance(Record):
    """provenance.json of a run: where its last attempt came from. Without git, `commit` and `dirty` are null.

    `patch` says whether dirty.patch is exact, and which new files it leaves out. `user_code` has the hash, repository,
    commit and patch of each package and file from outside of the project, by path. `imported`: another tool made the
    run.
    """

    commit: str | None = None
    dirty: bool | None = None
    patch: Mapping[str, Any] = field(default_factory=dict)
    user_code: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    python: str | None = None
    platform: str | None = None
    host: str | None = None
    cpu_count: int | None = None
    devices: Mapping[str, Any] = field(default_factory=dict)
    threads: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    attempt: int | None = None
    pid: int | None = None
    imported: Mapping[str, Any] | None = None


# ---------------------------------------------------------------- files


def to_json(record: Any) -> dict[str, Any]:
    """A record as its file has it."""
    unset = {item.name for item in dataclasses.fields(record) if item.metadata == LATER}
    values = dataclasses.asdict(record).items()
    return {JSON_KEYS.get(name, name): value for name, value in values if value or name not in unset}


def write_record(path: Path, record: Record) -> None:
    """Replace a record's file atomically."""
    write_json(path, to_json(record))


def read_record(model: type[AnyRecord], path: Path) -> AnyRecord:
    """A record from its file. FileNotFoundError: there is none; BadRunFolder: it cannot be read, and why."""
    return parse(model, path, read_object(path))


def parse(model: type[AnyRecord], path: Path, value: Mapping[str, Any]) -> AnyRecord:
    """A record from the content of its file. BadRunFolder: the first key that is wrong."""
    fields = {name: value[key] for name, key in _keys(model) if key in value}  # type: ignore[arg-type]
    try:
        return msgspec.convert(fields, model, strict=True)
    except msgspec.ValidationError as error:
        raise BadRunFolder(path, str(error)) from error


@functools.cache
def _keys(model: Any) -> list[tuple[str, str]]:
    """The fields of a record, each with its name in the file."""
    return [(item.name, JSON_KEYS.get(item.name, item.name)) for item in dataclasses.fields(model)]


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Errors as in `read_record`."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except ValueError as error:  # not JSON, or not UTF-8
        raise BadRunFolder(path, f"not JSON ({error})") from error
    except UNREADABLE as error:
        raise BadRunFolder(path, str(error.strerror)) from error
    if not isinstance(value, dict):
        raise BadRunFolder(path, f"must be an object, not {type(value).__name__}")
    return value

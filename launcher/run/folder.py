"""The format of a run folder: multirun/README.md lists its files, and docs/schemas says what each holds.

A record is a frozen dataclass that msgspec validates, because its import takes a fifth of the time of pydantic's. On
disk some fields keep older names (`JSON_KEYS`), so that every version reads the folders of every other. state.json
(launcher.run.lifecycle) is replaced atomically. summary.json, and then manifest.json, are written just before `done`.
Only light modules are imported at the top, so that every reader (analysis, commands, a worker) can afford it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from launcher.application import application
from launcher.files import BadRunFolder, create_atomic, load_yaml, write_json

FORMAT: Literal[1] = 1  # of a run folder
PLAN_FORMAT = 1  # version of plan.json

#: A field's name in the file, where it is not its name here.
JSON_KEYS = {"launch_id": "job", "message": "cause", "failure_kind": "kind", "failure_counts": "ends"}
#: Metadata of a field that a file has only if it says something: a file of an older version is written back as it was.
LATER: Mapping[str, Any] = {"later": True}

AnyRecord = TypeVar("AnyRecord", bound="Record")


class Record:
    """The base of all records, with their pydantic configuration. Unknown keys are ignored: another version may have
    written them."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "alias_generator": lambda name: JSON_KEYS.get(name, name),
        "extra": "ignore",
    }


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


def create_record(path: Path, record: Record) -> bool:
    """Write a record's file unless it exists; whether it was written."""
    text = json.dumps(to_json(record), indent=1) + "\n"
    return create_atomic(path, text)


def read_record(model: type[AnyRecord], path: Path) -> AnyRecord:
    """A record from its file. FileNotFoundError: there is none; BadRunFolder: it cannot be read, and why."""
    return parse(model, path, read_object(path))


def find_record(model: type[AnyRecord], path: Path) -> AnyRecord | None:
    """`read_record`, but None where there is no file."""
    with suppress(FileNotFoundError):
        return read_record(model, path)
    return None


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


def _load_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def read_object(path: Path, load: Callable[[Path], Any] = _load_json, form: str = "JSON") -> dict[str, Any]:
    """The object in a file of JSON, or of another form that `load` reads. Errors as in `read_record`."""
    try:
        value = load(path)
    except ValueError as error:  # not of this form, or not UTF-8
        raise BadRunFolder(path, f"not {form} ({error})") from error
    except (IsADirectoryError, NotADirectoryError, PermissionError) as error:  # to retry would not help
        fix = "let this user read it, and the folders above it" if isinstance(error, PermissionError) else None
        raise BadRunFolder(path, str(error.strerror), fix) from error
    if not isinstance(value, dict):
        raise BadRunFolder(path, f"must be an object, not {type(value).__name__}")
    return value


def find_object(path: Path) -> dict[str, Any]:
    """`read_object`, but empty where there is no file."""
    with suppress(FileNotFoundError):
        return read_object(path)
    return {}


# ---------------------------------------------------------------- paths

_CHECKPOINT = re.compile(r"step_(\d+)")
#: Names in multirun that no experiment may have, in upper or lower case: some file systems ignore case.
RESERVED = ("archive", "bases", "cache", "code", "launches", "runs", "verdicts")
#: The name of an experiment, and of its folder.
NAME = "[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}"


def can_be_named(name: str) -> bool:
    """Whether an experiment can have this name."""
    return re.fullmatch(NAME, name) is not None and name.casefold() not in RESERVED


def runs_folder(multirun: Path) -> Path:
    return multirun / "runs"


def run_folder(multirun: Path, run_id: str) -> Path:
    return multirun / "runs" / run_id


def base_path(multirun: Path, base: str) -> Path:
    """The frozen configuration tree with that content hash; each run stores its difference from such a tree."""
    return multirun / "bases" / f"{base}.yaml"


def multirun_of(folder: Path) -> Path:
    """The multirun folder that holds this run's folder."""
    return folder.parent.parent


def cache_folder(multirun: Path) -> Path:
    """The folder of files that all runs share; their names are hashes of content."""
    return multirun / "cache"


def metrics_path(folder: Path) -> Path:
    """The metric log: docs/schemas/run_folder_metrics.json describes its lines."""
    return folder / "metrics.jsonl"


def histograms_path(folder: Path) -> Path:
    """The histograms: docs/schemas/run_folder_histograms.json describes the lines."""
    return folder / "histograms.jsonl"


def returned_path(folder: Path) -> Path:
    """What the function of a program of @hydra.main has returned."""
    return folder / "returned.json"


def responses_path(folder: Path) -> Path:
    """The responses of evaluations: docs/schemas/run_folder_responses.json describes the lines."""
    return folder / "responses.jsonl"


def attempt_folder(folder: Path, attempt: int) -> Path:
    """The folder of one attempt: stdout.log, stderr.log, superseded.jsonl, and unusable evaluations and checkpoints."""
    return folder / "attempts" / str(attempt)


def stacks_path(folder: Path, attempt: int) -> Path:
    """What the processes of a stalled attempt were doing. It is empty or absent for any other attempt."""
    return attempt_folder(folder, attempt) / "stacks.txt"


def checkpoints_folder(folder: Path) -> Path:
    """Complete checkpoints, as step_000040."""
    return folder / "checkpoints"


# ---------------------------------------------------------------- configuration, summary and provenance


def read_config(folder: Path) -> dict[str, Any]:
    """The frozen configuration, as FrozenConfig has it. BadRunFolder: the file is gone, or cannot be read."""
    path = folder / "config.yaml"
    try:
        value = read_object(path, load_yaml, "YAML")
    except FileNotFoundError as error:
        raise BadRunFolder(path, str(error.strerror)) from error
    parse(FrozenConfig, path, value)
    return value


def planned_steps(folder: Path) -> int | None:
    """The steps of a run that was planned; None where only the run knows. Errors as in `read_config`."""
    config = read_config(folder)
    return application(config).length(config).steps


def read_summary(folder: Path) -> dict[str, Any]:
    """What train() returned; empty before the end."""
    return find_object(folder / "summary.json")


def read_provenance(folder: Path) -> dict[str, Any]:
    """Where the run came from, as Provenance has it; empty before its first attempt."""
    path = folder / "provenance.json"
    value = find_object(path)
    parse(Provenance, path, value)
    return value


def is_imported(folder: Path) -> bool:
    """Whether another tool made the run: `python -m analysis import` says so in its provenance."""
    return "imported" in read_provenance(folder)


# ---------------------------------------------------------------- checkpoints


def checkpoint_name(step: int) -> str:
    """The folder of the checkpoint after that step."""
    return f"step_{step:06d}"


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints as (step, path), oldest first."""
    try:
        paths = list(checkpoints_folder(folder).iterdir())
    except FileNotFoundError:
        return []
    matches = ((_CHECKPOINT.fullmatch(path.name), path) for path in paths)
    return sorted((int(match[1]), path) for match, path in matches if match and path.is_dir())


def latest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """The newest complete checkpoint as (step, path), or None."""
    return next(reversed(checkpoints(folder)), None)


def last_final_step(folder: Path) -> int:
    """The step of the newest checkpoint, or 0. A resume repeats no step up to it, unless the checkpoint is damaged."""
    return (latest_checkpoint(folder) or (0, None))[0]

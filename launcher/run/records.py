"""The records of a run folder and of its launch: what each file holds, and how it is read, checked and written.

A record is a frozen dataclass that pydantic validates. On disk some fields keep older names (`JSON_KEYS`), so that
every version reads the folders of every other. To import pydantic takes longer than to read a thousand states. It is
therefore imported only if a value is not exactly of its declared type; then pydantic decides, and says what is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from launcher.files import BadRunFolder, write_json
from launcher.run.lifecycle import FailureKind, RunState
from launcher.text import shown

FORMAT: Literal[1] = 1  # of a run folder
PLAN_FORMAT = 1  # of the plan.json that names runs

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
        """The same state with some fields changed."""
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
    """A record from the content of its file. BadRunFolder: every key that is wrong."""
    try:
        fields = _fields(model)  # type: ignore[arg-type]  # mypy asks the instances for __hash__
        return model(**{name: exact(value[key]) for name, key, exact in fields if key in value})
    except (_Inexact, TypeError, ValueError):
        return _validated(model, path, value)


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


# ---------------------------------------------------------------- validation


def _validated(model: type[AnyRecord], path: Path, value: Mapping[str, Any]) -> AnyRecord:
    from pydantic import TypeAdapter, ValidationError

    try:
        # As JSON: there a string is an enum's member, and in Python only a member is.
        return TypeAdapter(model).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problems = error.errors()
        # The other keys of another format are not wrong.
        of_format = [problem for problem in problems if problem["loc"] == ("format",)]
        raise BadRunFolder(path, "; ".join(map(_explained, of_format or problems))) from error


def _explained(error: Mapping[str, Any]) -> str:
    """`key = value: what is allowed`, of one of pydantic's errors."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{key} is missing"
    return f"{key} = {shown(error['input'])}: {error['msg'].replace('Input should be', 'must be')}"


class _Inexact(Exception):
    """A value is not exactly of the declared type."""


@functools.cache
def _fields(model: Any) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """(name, key in the file, function that gives the value or raises) of each field."""
    hints = get_type_hints(model)
    return tuple(
        (item.name, JSON_KEYS.get(item.name, item.name), _exact(hints[item.name])) for item in dataclasses.fields(model)
    )


def _exact(hint: Any) -> Callable[[Any], Any]:
    """A function that returns a JSON value of exactly this type, and raises _Inexact or ValueError for others."""
    if isinstance(hint, UnionType):
        (inner,) = (_exact(part) for part in get_args(hint) if part is not NoneType)
        return lambda value: None if value is None else inner(value)
    if hint is Any:
        return lambda value: value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Mapping:
        if arguments[1] is Any:
            return lambda value: _of((dict,), value)
        exact_item = _exact(arguments[1])
        return lambda value: {key: exact_item(item) for key, item in _of((dict,), value).items()}
    if origin is None and issubclass(hint, StrEnum):
        member: Callable[[Any], Any] = hint
        return member
    if origin is Literal:
        return lambda value: arguments[arguments.index(_of((int,), value))]
    types = (int, float) if hint is float else (hint,)
    return lambda value: _of(types, value)


def _of(types: tuple[type, ...], value: Any) -> Any:
    if type(value) not in types:
        raise _Inexact
    return value

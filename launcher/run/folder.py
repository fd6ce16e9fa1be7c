"""The format of a run folder: state, frozen configuration, metric log, checkpoints.

    multirun/runs/<id>/config.yaml       frozen, never rewritten
    multirun/runs/<id>/state.json        replaced atomically
    multirun/runs/<id>/metrics.jsonl     one line a step
    multirun/runs/<id>/responses.jsonl   one line a response of an evaluation
    multirun/runs/<id>/summary.json      written just before `done`
    multirun/runs/<id>/checkpoints/      complete ones only

Standard library only at import, so that every reader (analysis, the command line, a worker) may afford it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.files import BadRunFolder, create_atomic, load_yaml, parse_lines, write_atomic

FORMAT = 1  # of a run folder
PLAN_FORMAT = 1  # of the plan.json that names runs

PLANNED = "planned"
SUBMITTED = "submitted"
RUNNING = "running"
DONE = "done"
FAILED = "failed"
DIVERGED = "diverged"
PREEMPTED = "preempted"
CANCELLED = "cancelled"
LOST = "lost"
STATES = (PLANNED, SUBMITTED, RUNNING, DONE, FAILED, DIVERGED, PREEMPTED, CANCELLED, LOST)
# The same command takes these up again; a failed run would fail again, so it waits for `retry`.
RESUMABLE = frozenset({PLANNED, SUBMITTED, RUNNING, PREEMPTED, LOST})
RETRYABLE = frozenset({FAILED, DIVERGED, CANCELLED})
# What commands call a planned run without a folder; no state file says it.
NEW = "new"

_CHECKPOINT = re.compile(r"step_(\d+)")


@dataclass(frozen=True)
class State:
    """What state.json holds. Times are unix seconds; `error` has type, message, traceback (last 50 lines).

    `job` is the token of the launch that the run was submitted by. `kind` is one of lifecycle.CAUSES, `cause` says it
    in words; `ends` counts the attempts that ended so, by kind. `from_step` is the step that the attempt began after.
    """

    id: str
    state: str
    attempt: int = 0
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    host: str | None = None
    pid: int | None = None
    job: str | None = None
    cause: str | None = None
    error: Mapping[str, str] | None = None
    kind: str | None = None
    ends: Mapping[str, int] = field(default_factory=dict)
    from_step: int | None = None

    def but(self, **changes: Any) -> State:
        """The same state with some fields changed."""
        return dataclasses.replace(self, **changes)


_FIELDS = tuple(one.name for one in dataclasses.fields(State))
_NONE = type(None)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "attempt": (int,),
    "ends": (dict,),
    **dict.fromkeys(("created", "started", "finished"), (float, int, _NONE)),
    **dict.fromkeys(("host", "job", "cause", "kind"), (str, _NONE)),
    **dict.fromkeys(("pid", "from_step"), (int, _NONE)),
    "error": (dict, _NONE),
}
# A file that is no file, or another user's: nothing that a later look would find otherwise.
_UNREADABLE = (IsADirectoryError, NotADirectoryError, PermissionError)


# ---------------------------------------------------------------- places


def runs_folder(multirun: Path) -> Path:
    """Where every run of every experiment lies, by id."""
    return multirun / "runs"


def run_folder(multirun: Path, run_id: str) -> Path:
    """One run's folder."""
    return multirun / "runs" / run_id


def base_path(multirun: Path, base: str) -> Path:
    """The frozen tree of verl with that content hash."""
    return multirun / "bases" / f"{base}.yaml"


def multirun_of(folder: Path) -> Path:
    """The multirun folder that holds this run's folder."""
    return folder.parent.parent


def cache_folder(multirun: Path) -> Path:
    """Artifacts shared by all runs, by content."""
    return multirun / "cache"


def metrics_path(folder: Path) -> Path:
    """One JSON object a step: step (from 1), attempt (from 1), time (unix seconds), and the metrics."""
    return folder / "metrics.jsonl"


def histograms_path(folder: Path) -> Path:
    """One JSON object a histogram: step, attempt, name, edges, counts."""
    return folder / "histograms.jsonl"


def responses_path(folder: Path) -> Path:
    """One JSON object a response of an evaluation: step, attempt, id (prompt's), prompt, response, reward, answer."""
    return folder / "responses.jsonl"


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Output of one attempt: stdout.log, stderr.log, superseded.jsonl."""
    return folder / "attempts" / str(attempt)


def checkpoints_folder(folder: Path) -> Path:
    """Complete checkpoints, as step_000040."""
    return folder / "checkpoints"


# ---------------------------------------------------------------- writing


def write_state(folder: Path, state: State) -> None:
    """Replace state.json atomically."""
    write_atomic(folder / "state.json", _state_text(folder, state))


def create_state(folder: Path, state: State) -> bool:
    """Write a new run's first state, unless another launcher was faster; whether it was written."""
    return create_atomic(folder / "state.json", _state_text(folder, state))


def _state_text(folder: Path, state: State) -> str:
    if state.state not in STATES:
        raise ValueError(f"{folder}: state {state.state!r} is not one of {', '.join(STATES)}")
    return json.dumps({"format": FORMAT, **dataclasses.asdict(state)}, indent=1) + "\n"


# ---------------------------------------------------------------- reading


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # or no UTF-8
        raise BadRunFolder(path, f"not JSON ({error})") from error
    except _UNREADABLE as error:
        raise BadRunFolder(path, str(error.strerror)) from error
    if not isinstance(value, dict):
        raise BadRunFolder(path, f"an object is expected, not {type(value).__name__}")
    return value


def _check_format(path: Path, value: Mapping[str, Any]) -> None:
    if value.get("format") != FORMAT:
        raise BadRunFolder(path, f"format {value.get('format')!r}; this version reads format {FORMAT}")


def read_state(folder: Path) -> State:
    """The run's state. FileNotFoundError: there is no such run; BadRunFolder: the file cannot be read."""
    path = folder / "state.json"
    value = _read_json(path)
    _check_format(path, value)
    if not isinstance(value.get("id"), str) or value.get("state") not in STATES:
        raise BadRunFolder(path, f"`id` must be a string and `state` one of {', '.join(STATES)}")
    for name, kinds in _KINDS.items():
        if not isinstance(value.get(name, kinds[0]()), kinds):
            raise BadRunFolder(path, f"`{name}` is {value[name]!r}, not {kinds[0].__name__}")
    return State(**{name: value[name] for name in _FIELDS if name in value})


def find_state(folder: Path) -> State | None:
    """The run's state, or None where the run does not exist."""
    try:
        return read_state(folder)
    except FileNotFoundError:
        return None


def read_config(folder: Path) -> dict[str, Any]:
    """The frozen configuration: format, id, identity, base, seed, method, model, task, trainer, verl (differences).

    BadRunFolder: the file is gone, or cannot be read.
    """
    import yaml

    path = folder / "config.yaml"
    try:
        value = load_yaml(path)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadRunFolder(path, f"not YAML ({' '.join(str(error).split())})") from error
    except (FileNotFoundError, *_UNREADABLE) as error:
        raise BadRunFolder(path, str(error.strerror)) from error
    if not isinstance(value, dict):
        raise BadRunFolder(path, "a mapping is expected")
    _check_format(path, value)
    return value


def read_summary(folder: Path) -> dict[str, Any] | None:
    """What train() returned, or None before the end."""
    try:
        return _read_json(folder / "summary.json")
    except FileNotFoundError:
        return None


def read_provenance(folder: Path) -> dict[str, Any] | None:
    """Where the run came from, or None before its first attempt."""
    try:
        return _read_json(folder / "provenance.json")
    except FileNotFoundError:
        return None


def is_imported(folder: Path) -> bool:
    """Whether another tool made the run: `python -m analysis import` says so in its provenance."""
    return "imported" in (read_provenance(folder) or {})


@dataclass(frozen=True)
class Log:
    """The complete lines of a .jsonl file, and how many were torn."""

    records: list[dict[str, Any]]
    torn: int


def read_log(path: Path) -> Log:
    """Every complete line of a .jsonl file in its order; an absent file is an empty log."""
    records: list[dict[str, Any]] = []
    torn = 0
    try:
        with open(path, "rb") as file:
            for record in parse_lines(file):
                if record is None:
                    torn += 1
                else:
                    records.append(record)
    except FileNotFoundError:
        pass
    return Log(records, torn)


def last_record(path: Path, tail: int = 16384) -> dict[str, Any] | None:
    """The newest complete line among the last `tail` bytes of a .jsonl file, or None."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - tail))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    for record in parse_lines(reversed(lines)):
        if record is not None:
            return record
    return None


# ---------------------------------------------------------------- checkpoints


def checkpoint_name(step: int) -> str:
    """The folder of the checkpoint after that step."""
    return f"step_{step:06d}"


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints as (step, path), oldest first."""
    found: list[tuple[int, Path]] = []
    try:
        entries = list(checkpoints_folder(folder).iterdir())
    except FileNotFoundError:
        return []
    for path in entries:
        match = _CHECKPOINT.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match.group(1)), path))
    return sorted(found)


def latest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """The newest complete checkpoint as (step, path), or None."""
    found = checkpoints(folder)
    return found[-1] if found else None

"""The format of a run folder: multirun/README.md lists its files, and docs/schemas says what each holds.

state.json is replaced atomically. summary.json, and then manifest.json, are written just before `done`. Only the
standard library is imported at the top, so that every reader (analysis, commands, a worker) can afford it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from launcher.files import BadRunFolder, create_atomic, load_yaml, write_atomic
from launcher.run.lifecycle import RunState
from launcher.run.records import UNREADABLE, FrozenConfig, Provenance, State, parse, read_object, read_record, to_json

_CHECKPOINT = re.compile(r"step_(\d+)")
#: Names in multirun that no experiment may have, in upper or lower case: some file systems ignore case.
RESERVED = ("archive", "bases", "cache", "code", "launches", "runs", "verdicts")
#: The name of an experiment, and of its folder.
NAME = "[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}"


# ---------------------------------------------------------------- paths


def can_be_named(name: str) -> bool:
    """Whether an experiment can have this name."""
    return re.fullmatch(NAME, name) is not None and name.casefold() not in RESERVED


def runs_folder(multirun: Path) -> Path:
    """The folder of all runs of all experiments, by id."""
    return multirun / "runs"


def run_folder(multirun: Path, run_id: str) -> Path:
    """One run's folder."""
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


# ---------------------------------------------------------------- state and configuration


def write_state(folder: Path, state: State) -> None:
    """Replace state.json atomically."""
    write_atomic(folder / "state.json", _state_text(state))


def create_state(folder: Path, state: State) -> bool:
    """Write a new run's first state. Returns False if another launcher wrote it before."""
    return create_atomic(folder / "state.json", _state_text(state))


def _state_text(state: State) -> str:
    RunState(state.state)  # ValueError: there is no such state
    return json.dumps(to_json(state), indent=1) + "\n"


def read_state(folder: Path) -> State:
    """The run's state. FileNotFoundError: there is no such run; BadRunFolder: the file cannot be read."""
    return read_record(State, folder / "state.json")


def find_state(folder: Path) -> State | None:
    """The run's state, or None where the run does not exist."""
    try:
        return read_state(folder)
    except FileNotFoundError:
        return None


def read_config(folder: Path) -> dict[str, Any]:
    """The frozen configuration, as records.FrozenConfig has it. BadRunFolder: the file is gone, or cannot be read."""
    import yaml

    path = folder / "config.yaml"
    try:
        value = load_yaml(path)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadRunFolder(path, f"not YAML ({' '.join(str(error).split())})") from error
    except (FileNotFoundError, *UNREADABLE) as error:
        raise BadRunFolder(path, str(error.strerror)) from error
    if not isinstance(value, dict):
        raise BadRunFolder(path, "must be a mapping")
    parse(FrozenConfig, path, value)
    return value


def read_summary(folder: Path) -> dict[str, Any] | None:
    """What train() returned, or None before the end."""
    try:
        return read_object(folder / "summary.json")
    except FileNotFoundError:
        return None


def read_provenance(folder: Path) -> dict[str, Any] | None:
    """Where the run came from, as records.Provenance has it, or None before its first attempt."""
    path = folder / "provenance.json"
    try:
        value = read_object(path)
    except FileNotFoundError:
        return None
    parse(Provenance, path, value)
    return value


def is_imported(folder: Path) -> bool:
    """Whether another tool made the run: `python -m analysis import` says so in its provenance."""
    return "imported" in (read_provenance(folder) or {})


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

"""The trainer_state.json of Hugging Face's Trainer and of TRL: what a run logged, in `log_history`.

The Trainer writes the file into each checkpoint, and some scripts into the run's folder. The one with the most steps is
read. It does not contain the configuration of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.importing.found import BadImport, Found, configuration_in, stage

KIND = "Trainer"
FILE = "trainer_state.json"
_CHECKPOINT = "checkpoint-"


def find(source: Path) -> list[tuple[str, Path]]:
    """The run folders below a folder, or that of a file, and their names: the path from the last part of `source`."""
    root = source.resolve()
    files = [root] if root.is_file() else sorted(path for path in root.rglob(FILE) if path.is_file())
    base = files[0].parent if root.is_file() else root
    folders = dict.fromkeys(_run_of(path) for path in files)
    return [(str(folder.relative_to((base if folder.is_relative_to(base) else folder).parent)), folder)
            for folder in folders]  # fmt: skip


def read(folders: Sequence[tuple[str, Path]], stage_in: Path) -> Iterator[Found]:
    """The runs of these folders. Entries of one step, such as those of training and evaluation, are one line.

    Raises BadImport with every file that is not the Trainer's, and for a configuration file that is not YAML.
    """
    problems: list[str] = []
    states = [(name, folder, *_newest(folder, problems)) for name, folder in folders]
    if problems:
        raise BadImport("\n".join(problems))
    for number, (name, folder, state, rows) in enumerate(states):
        if not rows:
            continue
        config = configuration_in([folder])
        staged = stage(stage_in / f"trainer-{number}", rows, ())
        yield Found.in_files(KIND, name, config, staged, problem=_problem(state))


def _run_of(path: Path) -> Path:
    return path.parent.parent if path.parent.name.startswith(_CHECKPOINT) else path.parent


def _newest(folder: Path, problems: list[str]) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """The state with the most steps, and its rows."""
    own = [folder / FILE, *sorted(folder.glob(f"{_CHECKPOINT}*/{FILE}"))]
    states = [state for path in own if path.is_file() and (state := _state(path, problems)) is not None]
    if not states:
        return {}, []
    newest = max(states, key=lambda state: state[0]["global_step"])
    return newest


def _state(path: Path, problems: list[str]) -> tuple[Mapping[str, Any], list[dict[str, Any]]] | None:
    try:
        state = json.loads(path.read_bytes())
        rows: dict[int, dict[str, Any]] = {}
        for entry in state["log_history"]:
            row = rows.setdefault(int(entry["step"]), {"step": int(entry["step"]), "attempt": 1, "time": None})
            row |= {key: float(value) for key, value in entry.items() if key != "step" and _is_number(value)}
        if not _is_number(state["global_step"]):
            raise TypeError("global_step must be a number")
    except (ValueError, KeyError, TypeError) as error:
        problems.append(f"{path}: not a state of the Trainer ({error!r}); fix: remove this file, or move it away")
        return None
    return state, [rows[step] for step in sorted(rows)]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _problem(state: Mapping[str, Any]) -> str | None:
    """That the run has not ended: it has fewer steps than planned, and no callback stopped it."""
    control = (state.get("stateful_callbacks") or {}).get("TrainerControl") or {}
    stopped = (control.get("args") or {}).get("should_training_stop", False)
    planned = state.get("max_steps") or 0
    if stopped or not _is_number(planned) or state["global_step"] >= planned:
        return None
    return f"it did not end: step {state['global_step']} of {planned}"

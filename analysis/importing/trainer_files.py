"""The trainer_state.json of Hugging Face's Trainer and of TRL: what a run logged, in `log_history`.

The Trainer writes the file into each checkpoint, and some scripts into the run's folder. The one with the most steps is
read. It does not contain the configuration of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.importing.found import Found, configuration_in, stage
from analysis.importing.log import BadImport, Log

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
    for number, (name, folder, state, log) in enumerate(states):
        log.resolve()
        config = configuration_in([folder])
        staged = stage(stage_in / f"trainer-{number}", log)
        yield Found.in_files(KIND, name, config, staged, problem=staged.problem or _problem(state))


def _run_of(path: Path) -> Path:
    return path.parent.parent if path.parent.name.startswith(_CHECKPOINT) else path.parent


def _newest(folder: Path, problems: list[str]) -> tuple[Mapping[str, Any], Log]:
    """The state with the most steps, and its rows. A file that a crash cut off is not used."""
    log = Log(folder)
    states: list[tuple[Mapping[str, Any], list[tuple[int, dict[str, Any]]]]] = []
    for path in [folder / FILE, *sorted(folder.glob(f"{_CHECKPOINT}*/{FILE}"))]:
        try:
            states.append(_state(json.loads(path.read_bytes())))
        except FileNotFoundError:
            continue
        except json.JSONDecodeError:
            log.unused[f"{path.relative_to(folder)} is incomplete"] += 1
        except (ValueError, KeyError, TypeError) as error:
            problems.append(f"{path}: not a state of the Trainer ({error!r}); fix: remove this file, or move it away")
    state, rows = max(states, key=lambda state: state[0]["global_step"], default=({}, []))
    for step, values in rows:
        log.add(step, values)
    return state, log


def _state(state: Any) -> tuple[Mapping[str, Any], list[tuple[int, dict[str, Any]]]]:
    if not _is_number(state["global_step"]):
        raise TypeError("global_step must be a number")
    return state, [
        (int(entry["step"]), {key: value for key, value in entry.items() if key != "step" and value is not None})
        for entry in state["log_history"]
    ]


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

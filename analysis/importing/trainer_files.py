"""The trainer_state.json of Hugging Face's Trainer and of TRL: what a run logged, in `log_history`.

The Trainer writes the file into each checkpoint, and some scripts into the run's folder. The one with the most steps is
read. It does not contain the configuration of the run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.importing.found import Found, configuration_in
from analysis.importing.log import Log, refuse

KIND = "Trainer"
FILES = ("trainer_state.json",)
_CHECKPOINT = "checkpoint-"


def find(source: Path, step: str | None) -> dict[Path, str]:
    """The run folders below a folder, or that of a file, and their names."""
    root = source.resolve()
    files = [root] if root.is_file() else [path for path in root.rglob(*FILES) if path.is_file()]
    base = root if root.is_dir() else root.parent
    folders = {path.parent.parent if path.parent.name.startswith(_CHECKPOINT) else path.parent for path in files}
    return {folder: str(folder.relative_to((base if folder.is_relative_to(base) else folder).parent))
            for folder in folders}  # fmt: skip


def read(folders: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[Found]:
    """The runs of these folders. Entries of one step, such as those of training and evaluation, are one line.

    Raises BadImport with every file that is not the Trainer's, and for a configuration file that is not YAML.
    """
    problems: list[str] = []
    for folder, name in folders.items():
        state, log = _newest(folder, problems)
        log.resolve()
        yield Found(KIND, name, configuration_in([folder]), log, problem=_problem(state) if log else None)
    refuse(problems)


def _newest(folder: Path, problems: list[str]) -> tuple[Mapping[str, Any], Log]:
    """The state with the most steps, and its rows. A file that a crash cut off is not used."""
    log = Log(folder)
    states: list[tuple[float, Mapping[str, Any], list[tuple[int, dict[str, Any]]]]] = []
    for path in [folder / FILES[0], *sorted(folder.glob(f"{_CHECKPOINT}*/{FILES[0]}"))]:
        try:
            state = json.loads(path.read_bytes())
            rows = [(int(entry["step"]), {key: value for key, value in entry.items() if key != "step"})
                    for entry in state["log_history"]]  # fmt: skip
            states.append((state["global_step"] + 0.0, state, rows))
        except FileNotFoundError:
            continue
        except json.JSONDecodeError:
            log.unused[f"{path.relative_to(folder)} is incomplete"] += 1
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{path}: not a state of the Trainer ({error!r}); fix: remove this file, or move it away")
    _, state, rows = max(states, key=lambda each: each[0], default=(0.0, {}, []))
    for step, values in rows:
        log.add(step, {key: value for key, value in values.items() if value is not None})
    return state, log


def _problem(state: Mapping[str, Any]) -> str | None:
    """That the run has not ended: it has fewer steps than planned, and no callback stopped it."""
    control = (state.get("stateful_callbacks") or {}).get("TrainerControl") or {}
    stopped = (control.get("args") or {}).get("should_training_stop", False)
    planned = state.get("max_steps") or 0
    if stopped or not isinstance(planned, (int, float)) or state["global_step"] >= planned:
        return None
    return f"it did not end: step {state['global_step']} of {planned}"

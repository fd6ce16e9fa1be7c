"""The trainer_state.json of Hugging Face's Trainer and of TRL: what a run logged, in `log_history`.

The Trainer writes the file into each checkpoint, and some scripts into the run's folder. The one with the most steps is
read. It does not contain the configuration of the run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.sources.log import BadImport, Log
from analysis.sources.source import LoggedRun, below, configuration_in, source
from analysis.spec.validation import KEY_ALONE, Diagnostics

_FILE, _CHECKPOINT = "trainer_state.json", "checkpoint-"


@source
class TrainerFiles:
    """A run is a folder. Entries of one step are one line, in which the first value of a metric counts."""

    kind, files, beats = "Trainer", (_FILE,), ("JSONL", "TensorBoard", "verl's console", "CSV")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        root = place.resolve()
        homes = {path.parent for path in below(root, _FILE)}
        folders = {home.parent if home.name.startswith(_CHECKPOINT) else home for home in homes}
        # a checkpoint, or a file, that was given itself is below the folder of its run
        return {folder: str(folder.relative_to(min(root, folder).parent)) for folder in folders}

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        problems = Diagnostics()
        for folder, name in places.items():
            state, log = _newest(folder, problems)
            log.resolve(step)
            config = configuration_in([folder], keys)
            yield LoggedRun(self.kind, name, config, log, problem=_problem(state) if log else None)
        problems.raise_any(BadImport)


def _newest(folder: Path, problems: Diagnostics) -> tuple[Mapping[str, Any], Log]:
    """The state with the most steps, and its rows. A file that a crash cut off is not used."""
    log = Log(folder)
    states: list[tuple[float, Mapping[str, Any], list[tuple[int, dict[str, Any]]]]] = []
    for path in [folder / _FILE, *sorted(folder.glob(f"{_CHECKPOINT}*/{_FILE}"))]:
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
            rule = f"not a state of the Trainer ({error!r})"
            problems.add(str(path), KEY_ALONE, rule, "remove this file, or move it away")
    _, state, rows = max(states, key=lambda each: each[0], default=(0.0, {}, []))
    last, known = None, set[str]()
    for step, values in rows:
        known, last = known if step == last else set(), step
        new = {key: value for key, value in values.items() if value is not None and key not in known}
        if new or known.isdisjoint(values):
            log.add(step, new)
        else:  # and perhaps of the best checkpoint; the history of a run that was resumed never goes back
            log.unused["evaluated again after the training"] += 1
            log.elsewhere += 1
        known |= new.keys()
    return state, log


def _problem(state: Mapping[str, Any]) -> str | None:
    """A sentence if the run has fewer steps than planned and no callback stopped it, so that it has not ended."""
    control = (state.get("stateful_callbacks") or {}).get("TrainerControl") or {}
    stopped = (control.get("args") or {}).get("should_training_stop", False)
    planned = state.get("max_steps") or 0
    if stopped or not isinstance(planned, (int, float)) or state["global_step"] >= planned:
        return None
    return f"it did not end: step {state['global_step']} of {planned}"

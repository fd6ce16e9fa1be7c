"""Experiments of this project: MULTIRUN/NAME/plan.json, and the folders of its runs in MULTIRUN/runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextvars import copy_context
from pathlib import Path
from typing import Any

from analysis.sources.formats.json_files import lines
from analysis.sources.log import ASKED, Log
from analysis.sources.source import LoggedRun, below, source
from analysis.spec.validation import Diagnostics
from launcher.files import BadRunFolder
from launcher.run import whole
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import RunState, read_state

_FILE, _KEYS = "plan.json", {"id", "group", "seed"}


@source
class RunFolders:
    """A run is a run of a plan, whose group, seed and levels are `rlsweep.group`, `rlsweep.seed` and `rlsweep.FACTOR`.
    The experiment's folder is a place, too, so that the tables of its report are not read as logs."""

    kind, files = "rlsweep", (_FILE,)
    beats = ("JSONL", "W&B", "TensorBoard", "Trainer", "MLflow", "Trackio", "verl's console", "CSV", "Parquet")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        places = dict[Path, str]()
        for file in below(place, _FILE):
            for entry in _runs(file):
                places[file.parent] = name = file.parent.name
                places[run_folder(file.parents[1], entry["id"])] = f"{name}/{entry['id']}"
        return places

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        """See Source.read. Lines that cannot be read are counted, as by the report of the experiment."""
        for experiment, name in places.items():
            for entry in _runs(experiment / _FILE):
                folder, title = run_folder(experiment.parent, entry["id"]), f"{entry['group']}/{entry['id']}"
                if places.get(folder) != f"{name}/{entry['id']}":
                    continue
                labels = {f"rlsweep.{key}": entry[key] for key in ("group", "seed")}
                labels |= {f"rlsweep.{key}": level for key, level in (entry.get("factors") or {}).items()}
                try:
                    state = read_state(folder)
                    done = state.state == RunState.DONE
                    problem = whole.problem(folder, state) if done else state.message or str(state.state)
                except (FileNotFoundError, BadRunFolder) as error:
                    problem = str(error) if folder.exists() else "it was not started"
                log = copy_context().run(_log, metrics_path(folder))
                log.resolve(step)
                place = f"{experiment.parent.name}/{name}/{title}"
                yield LoggedRun(self.kind, f"{name}/{title}", {}, log, labels, problem, key=title, place=place)


def _runs(file: Path) -> list[dict[str, Any]]:
    """The runs of a plan; none for a file of another program."""
    try:
        return [run for run in json.loads(file.read_bytes())["runs"] if run.keys() >= _KEYS]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _log(path: Path) -> Log:
    """The rows that count. An attempt supersedes the earlier ones from its first step on, which may be the run's."""
    ASKED.set(None)  # a report shows more of our own runs, such as their cost and health
    log, unread, begins = Log(path), Diagnostics(), dict[int, int]()
    if path.exists():
        for line in lines(path, None, Counter(), Diagnostics()):
            attempt = line.values.get("attempt", 1)
            begins[attempt] = min(line.step, begins.get(attempt, line.step))
        for line in lines(path, None, log.unused, unread):
            attempt = line.values.pop("attempt", 1)
            if any(step <= line.step for later, step in begins.items() if later > attempt):
                log.unused["superseded by a later attempt"] += 1
            else:
                log.add(line.step, line.values, f"line {line.number}", line.time)
    log.unused["cannot be read"] += len(unread)
    return log

"""Freezing a plan: what it needs and is not there yet is written, and what is frozen stays as it is."""

from __future__ import annotations

import json
import time
from pathlib import Path

from launcher import files
from launcher.config import hydra_compose, identity, verl_tree
from launcher.errors import InvalidPlan, Problem
from launcher.planning import preregistration
from launcher.planning.plan import Experiment, Plan, PlannedRun
from launcher.planning.variants import SECTIONS
from launcher.run import folder as folders
from launcher.run.folder import State
from launcher.text import one_line


def freeze(plan: Plan) -> None:
    """Write what the plan needs and is not there yet: verl's trees, run folders, and for each experiment its
    hypotheses and plan.json.

    Raises InvalidPlan, before it writes anything, when the frozen configuration of a run that is not done was changed.
    """
    changed = [_changed(plan.multirun, run) for run in plan.runs.values()]
    if any(changed):
        raise InvalidPlan([problem for problem in changed if problem is not None])
    for experiment in plan.experiments:
        _declare(plan.multirun, experiment)
    for base in plan.bases.values():
        verl_tree.freeze(plan.multirun, base)
    for run in plan.runs.values():
        _freeze_run(plan.multirun, run)
    for experiment in plan.experiments:
        path = plan.multirun / experiment.name / "plan.json"
        text = json.dumps(experiment.document(), indent=1) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            files.write_atomic(path, text)


def _declare(multirun: Path, experiment: Experiment) -> None:
    folder = multirun / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    ids = dict.fromkeys(entry.id for entry in experiment.entries)
    done = [run_id for run_id in ids if _state(multirun, run_id) == folders.DONE]
    try:
        preregistration.declare(folder, experiment.analysis.get("hypotheses"), len(ids), done)
    except ValueError as error:
        fix = "move the file away to begin a new record"
        raise InvalidPlan(
            [Problem(str(folder / preregistration.NAME), "declarations", None, str(error), fix)]
        ) from error


def _state(multirun: Path, run_id: str) -> str | None:
    state = folders.find_state(folders.run_folder(multirun, run_id))
    return state.state if state is not None else None


def _frozen(run: PlannedRun) -> str:
    """What a run's config.yaml says."""
    frozen = {
        "format": folders.FORMAT,
        "id": run.id,
        "identity": {"version": identity.VERSION, "hash": run.hash},
        "base": run.base,
        **{key: run.config[key] for key in SECTIONS},
    }
    return files.dump_yaml(frozen)


def _changed(multirun: Path, run: PlannedRun) -> Problem | None:
    """The problem of a run whose frozen configuration is another run's by now."""
    folder = folders.run_folder(multirun, run.id)
    path = folder / "config.yaml"
    state = folders.find_state(folder)
    if state is None or state.state == folders.DONE or not path.is_file():
        return None
    if path.read_bytes() == _frozen(run).encode("utf-8"):
        return None
    try:
        identity.verify(folders.read_config(folder), run.id)  # labels and resources may differ
    except (ValueError, *hydra_compose.ERRORS) as error:
        fix = f"restore the file, or move the folder {folder.name} away to run it anew"
        return Problem(str(path), "identity", None, one_line(str(error)), fix)
    return None


def _freeze_run(multirun: Path, run: PlannedRun) -> None:
    folder = folders.run_folder(multirun, run.id)
    folder.mkdir(parents=True, exist_ok=True)
    if not files.mark_used(folder / "config.yaml"):
        files.write_atomic(folder / "config.yaml", _frozen(run))
    if (folder / "state.json").is_file():
        return  # the state is written after the configuration
    folders.create_state(folder, State(run.id, folders.PLANNED, created=time.time()))


def missing(plan: Plan) -> list[str]:
    """The runs that the same command takes up: all but what is done or waits for `retry`, in the plan's order."""
    found: list[str] = []
    for run_id in plan.runs:
        state = _state(plan.multirun, run_id)
        if state is None or state in folders.RESUMABLE:
            found.append(run_id)
    return found

"""Freezes a plan: writes the files that it needs and that do not exist yet. A frozen file is rewritten only
if the files that an unfinished run names have moved."""

from __future__ import annotations

import json
from pathlib import Path

from launcher import files
from launcher.application import Base, application
from launcher.config import content, hydra_compose, identity
from launcher.errors import Diagnostics, InvalidPlan, Objection
from launcher.planning import preregistration
from launcher.planning.plan import Plan, PlannedRun
from launcher.run import lifecycle
from launcher.run.folder import FORMAT, base_path, read_config, run_folder
from launcher.run.lifecycle import RESUMABLE, RunState, create_state, find_state
from launcher.text import one_line


def freeze(plan: Plan) -> None:
    """Write base trees, run folders, and for each experiment its declaration and plan.json, unless they are there.

    Raises InvalidPlan, before it writes anything, when the frozen configuration of a run that is not done was changed.
    """
    problems = Diagnostics()
    for run in plan.runs.values():
        _check_unchanged(plan.multirun, run, problems)
    problems.raise_any()
    for experiment in plan.experiments:
        folder = plan.multirun / experiment.name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            preregistration.declare(plan.multirun, experiment)
        except ValueError as error:
            record, fix = str(folder / preregistration.NAME), "move the file away to begin a new record"
            raise InvalidPlan([Objection("declarations", None, str(error), fix, record)]) from error
    for base in plan.bases.values():
        freeze_base(plan.multirun, base)
    for run in plan.runs.values():
        folder = run_folder(plan.multirun, run.id)
        folder.mkdir(parents=True, exist_ok=True)
        if not files.mark_used(folder / "config.yaml") or _moved(plan.multirun, run):
            files.write_atomic(folder / "config.yaml", _frozen(run))
        if not (folder / "state.json").is_file():  # the state is written after the configuration
            prefix = plan.prefixes.get(run.id)
            create_state(folder, lifecycle.created(run.id, *((prefix.run, prefix.step) if prefix is not None else ())))
    for experiment in plan.experiments:
        path = plan.multirun / experiment.name / "plan.json"
        text = json.dumps(experiment.document(), indent=1) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            files.write_atomic(path, text)


def freeze_base(multirun: Path, base: Base) -> Path:
    """Write the tree below multirun/bases unless it is there already."""
    path = base_path(multirun, base.hash)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, base.text)
    return path


def _state(multirun: Path, run_id: str) -> str | None:
    state = find_state(run_folder(multirun, run_id))
    return state.state if state is not None else None


def _frozen(run: PlannedRun) -> str:
    """What a run's config.yaml says."""
    rules = application(run.config).identity
    frozen = {
        "format": FORMAT,
        "id": run.id,
        "identity": {"version": identity.VERSION, "hash": run.hash},
        "base": run.base,
        **{key: run.config[key] for key in (*rules.sections, *rules.frozen, identity.INPUTS) if key in run.config},
    }
    return files.dump_yaml(frozen)


def _check_unchanged(multirun: Path, run: PlannedRun, problems: Diagnostics) -> None:
    """Add a problem when a run's frozen configuration was changed to that of another run."""
    folder = run_folder(multirun, run.id)
    path = folder / "config.yaml"
    if _state(multirun, run.id) in (None, RunState.DONE) or not path.is_file():
        return
    if path.read_bytes() == _frozen(run).encode("utf-8"):
        return
    try:
        identity.verify(read_config(folder), run.id)  # labels and resources may differ
    except (ValueError, *hydra_compose.ERRORS) as error:
        fix = f"restore the file, or move the folder {folder.name} away; the next launch then runs it from the start"
        problems.add(str(path), "identity", None, one_line(str(error)), fix)


def _moved(multirun: Path, run: PlannedRun) -> bool:
    """Whether an unfinished run names files that are not there any more, but have the same content elsewhere."""
    if not run.config.get(identity.INPUTS) or _state(multirun, run.id) in (None, RunState.DONE):
        return False
    return bool(content.changes(read_config(run_folder(multirun, run.id))))


def missing(plan: Plan) -> list[str]:
    """The runs that the same command runs or resumes, in the plan's order: not those done or waiting for `resume`."""
    return [run_id for run_id in plan.runs if _state(plan.multirun, run_id) in (None, *RESUMABLE)]

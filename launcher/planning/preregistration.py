"""Preregistration: when an experiment declared what decides its question, in multirun/<experiment>/hypotheses.json.

    {"format": 1, "declarations": [{"hash", "time", "planned", "done", "hypotheses", "plan"}, ...]}

The first declaration is written with the first submission. One that differs from the last one is added after it, and
none is ever changed. `plan` has the parts of the plan that a verdict depends on (analysis/spec/declaration.py);
declarations of older versions have only `hypotheses`. `done` holds the ids of the runs that had results at that time,
of all runs that the experiment has ever planned at this scale, and `planned` counts these runs. `hash` is that of the
canonical declaration.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.spec import declaration
from analysis.spec.declaration import Declaration
from launcher import files
from launcher.config import identity
from launcher.planning import added_seeds
from launcher.planning.plan import Experiment, Plan
from launcher.run import lifecycle
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, find_state

FORMAT = 1
NAME = "hypotheses.json"


def declare(multirun: Path, experiment: Experiment) -> None:
    """Record what an experiment declares, unless its last declaration is the same. Its folder exists.

    ValueError: the file has another format.
    """
    folder, said = multirun / experiment.name, _said(experiment)
    with lifecycle.locked(folder):  # two launches at once must not overwrite each other's declaration
        earlier = _read(folder / NAME)
        last = declaration.registration(earlier[-1:], experiment.document(), Declaration(1, 1))
        if last is not None and last.plan is not None and not last.changes:
            return
        known, done = _results(multirun, experiment, earlier)
        digest = identity.content_hash(identity.canonical_json(said))
        now = {"hash": digest, "time": time.time(), "planned": len(known), "done": done, **said}
        files.write_json(folder / NAME, {"format": FORMAT, "declarations": [*earlier, now]})


def warnings(plan: Plan) -> list[str]:
    """A line for each experiment of which a launch changes what was declared, after results."""
    return [line for experiment in plan.experiments if (line := _warning(plan.multirun, experiment)) is not None]


def _warning(multirun: Path, experiment: Experiment) -> str | None:
    """What a launch changes of what was declared, or else of the plan that it replaces, with the command that keeps
    every seed. None: nothing, or the record cannot be read, which the launch refuses."""
    former = added_seeds.frozen_plan(multirun / experiment.name)
    try:
        earlier = _read(multirun / experiment.name / NAME)
    except ValueError:
        return None
    before = earlier
    if former is not None and not any("plan" in entry for entry in earlier):
        before = [{"done": [], "planned": 0, **_said(former)}]
    changed = declaration.registration(before, experiment.document(), Declaration(1, 1))
    if changed is None or changed.plan is None or not changed.changes:
        return None  # without a look at thousands of runs
    known, done = _results(multirun, experiment, earlier)
    changed = declaration.registration(before, experiment.document(), Declaration(len(done), len(known)))
    if changed is None or changed.plan is None or not changed.changes:
        return None
    seeds = sorted({*changed.plan["seeds"], *(former.seeds if former is not None else ()), *experiment.seeds})
    lost = added_seeds.rule_of(experiment) is None and len(seeds) > len(experiment.seeds)
    keep = f" To keep every seed: {added_seeds.with_seeds(experiment.command, seeds)}" if lost else ""
    return f"{experiment.name}: {changed.sentence()} Every report says so first.{keep}"


def _said(experiment: Experiment) -> dict[str, Any]:
    """What a plan declares, as a record keeps it."""
    plan = experiment.document()
    section = dict(plan["analysis"])
    hypotheses = section.pop("hypotheses", None) or {}
    return {"hypotheses": hypotheses, "plan": {key: plan[key] for key in declaration.PARTS} | {"analysis": section}}


def _results(
    multirun: Path, experiment: Experiment, earlier: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """The runs that an experiment has ever planned at this scale, and those of them that have had results."""
    plan, former = experiment.document(), added_seeds.frozen_plan(multirun / experiment.name)
    kept = [*earlier, *([{"plan": former.document()}] if former is not None else [])]
    plans = [plan, *(entry["plan"] for entry in declaration.of_scale(kept, plan) if "plan" in entry)]
    known = list(dict.fromkeys(run["id"] for document in plans for run in document["runs"]))
    seen = {run_id for entry in earlier for run_id in entry["done"]}
    archived = lifecycle.archived(multirun)
    folders = {run_id: [run_folder(multirun, run_id), *archived.get(run_id, ())] for run_id in known}
    return known, [run_id for run_id in known if run_id in seen or any(map(_has_result, folders[run_id]))]


def _has_result(folder: Path) -> bool:
    try:
        state = find_state(folder)
    except files.BadRunFolder:
        return True  # what cannot be read may have been a result
    return state is not None and state.state == RunState.DONE


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    entries = value.get("declarations") if isinstance(value, dict) and value.get("format") == FORMAT else None
    whole = {"done", "planned", "hypotheses"}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and whole <= entry.keys() for entry in entries):
        raise ValueError(f"not a record of declarations in format {FORMAT}")
    return entries

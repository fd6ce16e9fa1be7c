"""Tolerant reading of an experiment: its plan.json, and the folders of its runs.

A sweep is read while it is written to, after power cuts and after resumes. So a run that cannot be read at all is a gap
with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.data import cache
from analysis.data.metric_log import EMPTY, Array, Curves
from analysis.spec.validation import BadPlan as BadPlan
from launcher.run import folder as folders

Cell = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Run:
    """One planned run under one group, with what its folder holds. `problem`: why it has no full result, or None.
    created: when it was planned, finished: when it ended, in unix seconds; None where nobody said.
    """

    id: str
    group: str
    seed: int
    cell: Cell
    folder: str
    state: str
    attempt: int
    curves: Curves
    summary: Mapping[str, Any]
    provenance: Mapping[str, Any]
    problem: str | None
    created: float | None = None
    finished: float | None = None

    @property
    def done(self) -> bool:
        """Whether the run ended as planned."""
        return self.state == folders.DONE and self.problem is None


@dataclass(frozen=True)
class Sweep:
    """An experiment: its plan as frozen, and its runs in the plan's order."""

    folder: Path
    plan: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def baseline(self) -> str | None:
        """The group that the others are compared with."""
        name = self.plan.get("baseline")
        return None if name is None else str(name)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, the baseline first, then in the plan's order."""
        names = [str(name) for name in self.plan["groups"]]
        return tuple(sorted(names, key=lambda name: name != self.baseline))

    def label(self, group: str) -> str:
        """What the reader sees for a group: no letter that moves or turns round those beside it."""
        declared = self.plan["groups"][group]
        text = str((declared.get("label") if isinstance(declared, Mapping) else None) or group)
        shown = "".join(char for char in text if char.isprintable() or char.isspace())
        return " ".join(shown.split()) or group


def read_sweep(folder: Path) -> Sweep:
    """Read FOLDER/plan.json and the folders of its runs.

    Raises BadPlan when there is no plan, or not one of this format.
    """
    plan = _read_plan(folder / "plan.json")
    multirun = folder.parent
    seen: dict[str, Run] = {}
    known: dict[bytes, Array] = {}
    runs = []
    for entry in plan["runs"]:
        run_id = str(entry["id"])
        cell: Cell = tuple(sorted((str(key), _level(level)) for key, level in (entry.get("factors") or {}).items()))
        if run_id not in seen:
            seen[run_id] = _on_shared_steps(_read_run(multirun, run_id), known)
        # One run may stand in several groups.
        runs.append(replace(seen[run_id], group=str(entry["group"]), seed=int(entry["seed"]), cell=cell))
    return Sweep(folder, plan, tuple(runs))


def _on_shared_steps(run: Run, known: dict[bytes, Array]) -> Run:
    """Runs with the same steps have one array of them, which tells that they are the same."""
    steps = known.setdefault(run.curves.steps.tobytes(), run.curves.steps)
    return replace(run, curves=replace(run.curves, steps=steps))


def _level(level: Any) -> Any:
    return json.dumps(level, sort_keys=True) if isinstance(level, (list, dict)) else level


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadPlan(
            f"{path}: there is no plan.json; give the folder of an experiment, such as multirun/quickstart, "
            "which `python launch.py -m experiment=NAME` makes"
        ) from None
    except (OSError, ValueError) as error:
        raise BadPlan(
            f"{path}: cannot be read ({error}); `python launch.py -m experiment=NAME` writes it anew"
        ) from error
    if not isinstance(plan, dict) or plan.get("format") != folders.PLAN_FORMAT:
        found = plan.get("format") if isinstance(plan, dict) else type(plan).__name__
        raise BadPlan(f"{path}: format = {found!r}; this version reads format {folders.PLAN_FORMAT}")
    for key, kind in (("groups", dict), ("runs", list)):
        if not isinstance(plan.get(key), kind):
            raise BadPlan(f"{path}: {key} = {plan.get(key)!r}; a {'mapping' if kind is dict else 'list'} is needed")
    for place, entry in enumerate(plan["runs"]):
        if not isinstance(entry, dict) or not {"id", "group", "seed"} <= set(entry):
            raise BadPlan(f"{path}: runs[{place}] = {entry!r}; id, group and seed are needed")
        if entry["group"] not in plan["groups"]:
            raise BadPlan(
                f"{path}: runs[{place}].group = {entry['group']!r}; the groups are {', '.join(plan['groups'])}"
            )
    if plan.get("baseline") is not None and plan["baseline"] not in plan["groups"]:
        raise BadPlan(f"{path}: baseline = {plan['baseline']!r}; the groups are {', '.join(plan['groups'])}")
    return plan


def _read_run(multirun: Path, run_id: str) -> Run:
    folder = folders.run_folder(multirun, run_id)
    shown = f"runs/{run_id}"
    curves, summary, provenance = EMPTY, {}, {}
    state, attempt = "missing", 0
    problem: str | None = None
    created = finished = None
    try:
        found = folders.read_state(folder)
        state, attempt, created, finished = found.state, found.attempt, found.created, found.finished
    except FileNotFoundError:
        problem = "not started: there is no run folder" if not folder.exists() else "state.json is missing"
    except (OSError, ValueError, TypeError) as error:
        problem = f"state.json cannot be read: {error}"
    else:
        if state != folders.DONE:
            problem = _why(found)
    path = folders.metrics_path(folder)
    try:
        curves = cache.curves(path, f"{shown}/{path.name}", folders.cache_folder(multirun) / "curves" / run_id)
    except FileNotFoundError:
        if state == folders.DONE:
            problem = f"done, but {path.name} is missing"
    if problem is None and curves.steps.size == 0:
        problem = f"done, but {path.name} holds no step"
    if problem is not None and curves.steps.size:
        problem += f" (last step {int(curves.steps[-1])})"
    try:
        summary = folders.read_summary(folder) or {}
        provenance = folders.read_provenance(folder) or {}
    except (OSError, ValueError) as error:
        problem = problem or f"summary or provenance cannot be read: {error}"
    return Run(run_id, "", 0, (), shown, state, attempt, curves, summary, provenance, problem, created, finished)


def _why(state: folders.State) -> str:
    parts = [state.state]
    if state.cause and state.cause != state.state:
        parts.append(str(state.cause))
    elif state.error:
        kind, message = state.error.get("type"), str(state.error.get("message") or "").strip()
        first = message.splitlines()[0] if message else ""
        parts.append(f"{kind}: {first}" if kind and first else str(kind or first))
    return ": ".join(part for part in parts if part)


def leaves(config: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The leaves of a configuration by their dotted keys; a list is a leaf, and so is an empty mapping."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{at}{key}.")
        else:
            found[f"{at}{key}"] = value
    return found

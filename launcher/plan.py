"""From the command line's overrides to frozen runs: compose, resolve, validate everything, identify, freeze.

Nothing is written before the whole plan is known to be sound: `make` only reads, and raises InvalidPlan with every
problem.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from launcher import base as bases
from launcher import compose, design, identity, methods, validate
from launcher import run as folders
from launcher.arguments import COMMAND_LINE
from launcher.base import Base
from launcher.cells import Cells, Entry, PlannedRun
from launcher.compose import Composer
from launcher.declared import declared
from launcher.problem import InvalidPlan, Problem
from launcher.provenance import mask
from launcher.run import State
from launcher.workshop import SECTIONS, Workshop, does_not_compose

ROOT_CONFIG = "config"
FORMAT = 1


@dataclass(frozen=True)
class Experiment:
    """One experiment's plan: what multirun/<name>/plan.json holds."""

    name: str
    command: str
    baseline: str | None
    steps: int
    seeds: tuple[int, ...]
    groups: Mapping[str, Mapping[str, Any]]
    factors: Mapping[str, Mapping[str, Any]]
    analysis: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def document(self) -> dict[str, Any]:
        """The content of plan.json: deterministic, without times."""
        return {
            "format": FORMAT,
            "experiment": self.name,
            "command": self.command,
            "baseline": self.baseline,
            "steps": self.steps,
            "seeds": list(self.seeds),
            "groups": self.groups,
            "factors": self.factors,
            "analysis": self.analysis,
            "runs": [
                {"id": entry.id, "group": entry.group, "seed": entry.seed, "factors": entry.factors}
                for entry in self.entries
            ],
        }


@dataclass(frozen=True)
class Plan:
    """A sound plan: experiments, their runs by id (in the order of the plan), verl's trees by hash, the cluster."""

    experiments: tuple[Experiment, ...]
    runs: Mapping[str, PlannedRun]
    bases: Mapping[str, Base]
    cluster: Mapping[str, Any]
    multirun: Path


def make(root: Path, arguments: Sequence[str], composer: Composer | None = None) -> Plan:
    """Plan what the overrides ask for. `root` is the project's folder; `composer` that of its conf/ by default.

    Several plans may share a composer while the files stay as they are. Raises InvalidPlan with every problem found;
    writes nothing.
    """
    return _Planner(root, composer or Composer(root / "conf", ROOT_CONFIG), arguments).plan()


class _Planner:
    """The life of one planning: the problems and compositions gathered on the way."""

    def __init__(self, root: Path, composer: Composer, arguments: Sequence[str]) -> None:
        self._root = root
        self._workshop = Workshop(composer, arguments)
        self._composer, self._problems = self._workshop.composer, self._workshop.problems
        self._arguments = self._workshop.arguments
        self._runs: dict[str, PlannedRun] = {}
        self._command = mask(" ".join(["python launch.py -m", *map(shlex.quote, arguments)]))

    def plan(self) -> Plan:
        experiments: list[Experiment] = []
        root: Mapping[str, Any] = {}
        for name in self._arguments.experiments:
            found = self._root_tree(name)
            if found is None:
                continue
            root = root or found
            experiments.append(self._experiment(name, found))
        names = [experiment.name for experiment in experiments]
        for twice in {name for name in names if names.count(name) > 1}:
            rule = "two experiments of one command have this name, and so one folder"
            self._problems.append(Problem(COMMAND_LINE, "experiment.name", twice, rule, "plan them one by one"))
        cluster = dict(root.get("cluster") or {})
        slots = cluster.get("slots")
        if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
            fix = "give a number of runs at a time, or null for one a core"
            self._problems.append(
                Problem(COMMAND_LINE, "cluster.slots", str(slots), "an integer of 1 or more, or null", fix)
            )
        if self._problems:
            raise InvalidPlan(self._problems)
        multirun = self._root / str(root.get("multirun") or "multirun")
        return Plan(tuple(experiments), self._runs, self._workshop.used_bases, cluster, multirun)

    # ------------------------------------------------------------ one experiment

    def _root_tree(self, experiment: str | None) -> dict[str, Any] | None:
        """The composed root with the command line's values for what holds for a whole experiment, resolved."""
        where = self._workshop.where(experiment)
        try:
            tree = compose.plain(self._composer.compose(self._workshop.selection(experiment)).config)
        except compose.ERRORS as error:
            self._problems.append(does_not_compose(where, error))
            return None
        for key, value in self._arguments.values.items():
            section = key.partition(".")[0]
            if section in SECTIONS:
                continue
            if not compose.lookup(tree, key)[0] and section != "analysis":
                names = ", ".join(tree) if section not in tree else ", ".join(map(str, tree[section] or {}))
                self._problems.append(
                    Problem(COMMAND_LINE, key, validate.brief(value), "no such key", f"use one of {names}")
                )
                continue
            tree = compose.assign(tree, key, value)
        try:
            return compose.resolved(tree)
        except OmegaConfBaseException as error:
            self._problems.append(does_not_compose(where, error))
            return None

    def _experiment(self, name: str | None, root: Mapping[str, Any]) -> Experiment:
        where = self._workshop.where(name)
        default = self._composer.compose(self._workshop.selection(name)).choices.get("method") or methods.BASELINE
        wanted = declared(root.get("experiment") or {}, root["seed"], default, self._arguments, where, self._problems)
        cells = Cells(self._workshop, name, wanted)
        entries = cells.entries()
        labels = design.short_labels(list(cells.levels))
        steps = [int(run.config["trainer"]["steps"]) for run in cells.runs.values()]
        self._runs.update(cells.runs)
        return Experiment(
            name=wanted.name,
            command=self._command,
            baseline=wanted.baseline,
            steps=max(steps, default=0),
            seeds=wanted.seeds,
            groups={
                group.name: {
                    "label": group.label,
                    "method": group.methods[0] if len(group.methods) == 1 else list(group.methods),
                }
                for group in wanted.groups.values()
            },
            factors={key: {"label": labels[key], "levels": list(levels)} for key, levels in cells.levels.items()},
            analysis=self._analysis(root, where),
            entries=tuple(entries),
        )

    def _analysis(self, root: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The analysis section, checked against the root configuration's own."""
        defaults = compose.plain(self._composer.compose([]).config)["analysis"]
        section = validate.strip({"analysis": root.get("analysis") or {}})
        for breach in validate.Checker({"analysis": defaults}).check(section):
            said = any(breach.key == key or breach.key.startswith(f"{key}.") for key in self._arguments.values)
            place = COMMAND_LINE if said else where
            self._problems.append(Problem(place, breach.key, validate.brief(breach.value), breach.rule, breach.fix))
        found: dict[str, Any] = section["analysis"]
        return found


# ---------------------------------------------------------------- freezing


def freeze(plan: Plan) -> None:
    """Write what the plan needs and is not there yet: verl's trees, each run's folder, each experiment's plan.json."""
    for base in plan.bases.values():
        bases.freeze(plan.multirun, base)
    for run in plan.runs.values():
        _freeze_run(plan.multirun, run)
    for experiment in plan.experiments:
        path = plan.multirun / experiment.name / "plan.json"
        text = json.dumps(experiment.document(), indent=1) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.write_atomic(path, text)


def _freeze_run(multirun: Path, run: PlannedRun) -> None:
    folder = folders.run_folder(multirun, run.id)
    if (folder / "state.json").is_file():
        return  # the state is written after the configuration
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.yaml").is_file():
        frozen = {
            "format": folders.FORMAT,
            "id": run.id,
            "identity": {"version": identity.VERSION, "hash": run.hash},
            "base": run.base,
            **{key: run.config[key] for key in SECTIONS},
        }
        folders.write_atomic(folder / "config.yaml", folders.dump_yaml(frozen))
    folders.write_state(folder, State(run.id, folders.PLANNED, created=time.time()))


def missing(plan: Plan) -> list[str]:
    """The runs that the same command takes up: all but what is done or waits for `retry`, in the plan's order."""
    found: list[str] = []
    for run_id in plan.runs:
        state = folders.find_state(folders.run_folder(plan.multirun, run_id))
        if state is None or state.state in folders.RESUMABLE:
            found.append(run_id)
    return found

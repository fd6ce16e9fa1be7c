"""From the command line's overrides to frozen runs: compose, resolve, validate everything, identify, freeze.

Nothing is written before the whole plan is known to be sound: `make` only reads, and raises InvalidPlan with every
problem.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from launcher import base as bases
from launcher import (
    compose,
    design,
    files,
    hypotheses,
    identity,
    inheritance,
    methods,
    preregistration,
    secrets,
    validate,
)
from launcher import run as folders
from launcher.arguments import COMMAND_LINE
from launcher.base import Base
from launcher.cells import Cells, Entry, PlannedRun
from launcher.compose import Composed, Composer
from launcher.declared import Declared, declared
from launcher.errors import InvalidPlan, Problem
from launcher.run import State
from launcher.text import nearest, one_line
from launcher.workshop import SECTIONS, Workshop, does_not_compose

ROOT_CONFIG = "config"
# Sections that hold for a whole experiment and are no part of its runs.
CHECKED = ("analysis", "cluster", "tracking")


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

    def seeds_of(self) -> dict[str, list[int]]:
        """The seeds of each group, in the order of the plan."""
        return seeds_of(self.groups, self.entries)

    def document(self) -> dict[str, Any]:
        """The content of plan.json: deterministic, without times."""
        return {
            "format": folders.PLAN_FORMAT,
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


def seeds_of(groups: Iterable[str], entries: Iterable[Entry]) -> dict[str, list[int]]:
    """The seeds of each group's entries."""
    found: dict[str, dict[int, None]] = {group: {} for group in groups}
    for entry in entries:
        found[entry.group][entry.seed] = None
    return {group: list(seeds) for group, seeds in found.items()}


@dataclass(frozen=True)
class Plan:
    """A sound plan: experiments, their runs by id (in the order of the plan), verl's trees by hash, and the sections
    that hold for the whole launch.
    """

    experiments: tuple[Experiment, ...]
    runs: Mapping[str, PlannedRun]
    bases: Mapping[str, Base]
    cluster: Mapping[str, Any]
    tracking: Mapping[str, Any]
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
        # Quoted, a secret with a quote in it would no longer be recognized.
        self._command = " ".join(["python launch.py -m", *(shlex.quote(secrets.mask(word)) for word in arguments)])

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
        if not root:
            raise InvalidPlan(self._problems)
        where = self._workshop.where(self._arguments.experiments[0])
        cluster, tracking = (self._section(root, name, where) for name in ("cluster", "tracking"))
        self._refuse_secrets(experiments, {"cluster": cluster, "tracking": tracking})
        if self._problems:
            raise InvalidPlan(self._problems)
        multirun = self._root / str(root.get("multirun") or "multirun")
        return Plan(tuple(experiments), self._runs, self._workshop.used_bases, cluster, tracking, multirun)

    def _refuse_secrets(self, experiments: Sequence[Experiment], sections: Mapping[str, Any]) -> None:
        """What is frozen is kept and shown; an API key has no place in it."""
        if not secrets.of_environment():
            return
        written = [sections, *(run.config for run in self._runs.values())]
        for experiment in experiments:
            document = experiment.document()
            written.append({key: document[key] for key in ("experiment", "groups", "factors", "analysis")})
        for key, variable in (found for tree in written for found in secrets.within(tree)):
            rule = f"this is the environment's {variable}, and a plan is kept and shown"
            fix = "leave it in the environment, and read it there where it is used"
            self._problems.append(Problem(COMMAND_LINE, key, secrets.MASK, rule, fix))

    # ------------------------------------------------------------ one experiment

    def _root_tree(self, experiment: str | None) -> dict[str, Any] | None:
        """The composed root with the command line's values for what holds for a whole experiment, resolved."""
        where = self._workshop.where(experiment)
        try:
            composed = self._composer.compose(self._workshop.selection(experiment))
        except compose.ERRORS as error:
            self._problems.append(does_not_compose(where, error))
            return None
        if not self._workshop.refuse_sections(composed):
            return None
        tree = dict(composed.tree)
        for key, value in self._arguments.values.items():
            section = key.partition(".")[0]
            if isinstance(tree.get(key), Mapping) and not isinstance(value, Mapping):
                breach = validate.not_a_mapping(key, value, tree[key])
                self._problems.append(Problem(COMMAND_LINE, key, validate.brief(value), breach.rule, breach.fix))
                return None
            if section in SECTIONS:
                continue
            if not compose.lookup(tree, key)[0] and section not in CHECKED:
                within, wrong, names = _first_unknown(tree, key)
                close = nearest(wrong, names)
                fix = f"use one of {', '.join(names)}" if names else "remove it"
                fix = f"write {within}{close}" if close else fix
                self._problems.append(Problem(COMMAND_LINE, key, validate.brief(value), "no such key", fix))
                continue
            tree = compose.assign(tree, key, value)
        try:
            found = compose.resolved(tree)
        except OmegaConfBaseException as error:
            self._problems.append(does_not_compose(where, error))
            return None
        folder = found.get("multirun")
        if isinstance(folder, (Mapping, list)):
            value, place = validate.brief(folder), self._blamed("multirun", where)
            self._problems.append(Problem(place, "multirun", value, "the name of one folder", "write multirun=FOLDER"))
        return found

    def _experiment(self, name: str | None, root: Mapping[str, Any]) -> Experiment:
        where = self._workshop.where(name)
        composed = self._composer.compose(self._workshop.selection(name))
        default = composed.choices.get("method") or methods.BASELINE
        section = self._kept("experiment", inheritance.EXPERIMENT, root.get("experiment") or {}, composed, where)
        if name is not None and "experiment.name" not in self._arguments.values:
            source = self._composer.source(self._workshop.selection(name), "experiment.name")
            inheritance.own_name(section, source, where, self._problems)
        before = len(self._problems)
        wanted = declared(section, root["seed"], default, self._arguments, where, self._problems)
        self._problems[before:] = [
            replace(one, where=self._blamed(one.key, one.where)) for one in self._problems[before:]
        ]
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
            analysis=self._analysis(root, wanted, seeds_of(wanted.groups, entries), composed, where),
            entries=tuple(entries),
        )

    def _analysis(
        self,
        root: Mapping[str, Any],
        wanted: Declared,
        seeds: Mapping[str, Sequence[int]],
        composed: Composed,
        where: str,
    ) -> Mapping[str, Any]:
        section = self._section(root, "analysis", where)
        section = self._kept("analysis", inheritance.ANALYSIS, section, composed, where)
        if not self._problems:
            for problem in hypotheses.problems(section, seeds, wanted.baseline, composed, where):
                self._problems.append(replace(problem, where=self._blamed(problem.key, problem.where)))
        return section

    def _kept(
        self, name: str, parts: Sequence[str], section: Mapping[str, Any], composed: Composed, where: str
    ) -> dict[str, Any]:
        files = [compose.lookup(file.tree, name)[1] for file in composed.files]
        own = [one for one in files if isinstance(one, Mapping)]
        return inheritance.kept(name, parts, section, own, where, self._problems)

    def _section(self, root: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
        """One of the sections in CHECKED, checked against what holds without an experiment."""
        chosen = [f"{group}={choice}" for group, choice in self._arguments.choices.items() if group == name]
        defaults = self._composer.compose(chosen).tree[name]
        section = validate.strip({name: root.get(name) or {}})
        for breach in validate.Checker({name: defaults}).check(section):
            place = self._blamed(breach.key, where)
            self._problems.append(Problem(place, breach.key, validate.brief(breach.value), breach.rule, breach.fix))
        found: dict[str, Any] = section[name]
        return found

    def _blamed(self, key: str, where: str) -> str:
        """Who set a key: the command line, or else `where`."""
        said = any(key == own or key.startswith((f"{own}.", f"{own}[")) for own in self._arguments.values)
        return COMMAND_LINE if said else where


def _first_unknown(tree: Mapping[str, Any], key: str) -> tuple[str, str, list[str]]:
    """Of a dotted key: what is before its first word that names no mapping, the word, and the keys that are there."""
    within, words = "", key.split(".")
    while len(words) > 1 and isinstance(tree.get(words[0]), Mapping):
        tree, within = tree[words[0]], f"{within}{words.pop(0)}."
    return within, words[0], list(map(str, tree))


# ---------------------------------------------------------------- freezing


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
        bases.freeze(plan.multirun, base)
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
    except (ValueError, *compose.ERRORS) as error:
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

"""From the command line's overrides to frozen runs: compose, resolve, validate everything, identify, freeze.

Nothing is written before the whole plan is known to be sound: `make` only reads, and raises InvalidPlan with every
problem.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from launcher import secrets
from launcher.config import hydra_compose, schema
from launcher.config.hydra_compose import Composed, Composer
from launcher.errors import InvalidPlan, Problem
from launcher.planning import design, experiment_spec, hypotheses, method_parts
from launcher.planning.experiment_spec import Declared, declared
from launcher.planning.overrides import COMMAND_LINE
from launcher.planning.plan import Experiment, Plan, PlannedRun, seeds_of
from launcher.planning.run_specs import Cells
from launcher.planning.variants import SECTIONS, Workshop, does_not_compose
from launcher.text import nearest

ROOT_CONFIG = "config"
# Sections that hold for a whole experiment and are no part of its runs.
CHECKED = ("analysis", "cluster", "tracking")


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
        except hydra_compose.ERRORS as error:
            self._problems.append(does_not_compose(where, error))
            return None
        if not self._workshop.refuse_sections(composed):
            return None
        tree = dict(composed.tree)
        for key, value in self._arguments.values.items():
            section = key.partition(".")[0]
            if isinstance(tree.get(key), Mapping) and not isinstance(value, Mapping):
                breach = schema.not_a_mapping(key, value, tree[key])
                self._problems.append(Problem(COMMAND_LINE, key, schema.brief(value), breach.rule, breach.fix))
                return None
            if section in SECTIONS:
                continue
            if not hydra_compose.lookup(tree, key)[0] and section not in CHECKED:
                within, wrong, names = _first_unknown(tree, key)
                close = nearest(wrong, names)
                fix = f"use one of {', '.join(names)}" if names else "remove it"
                fix = f"write {within}{close}" if close else fix
                self._problems.append(Problem(COMMAND_LINE, key, schema.brief(value), "no such key", fix))
                continue
            tree = hydra_compose.assign(tree, key, value)
        try:
            found = hydra_compose.resolved(tree)
        except OmegaConfBaseException as error:
            self._problems.append(does_not_compose(where, error))
            return None
        folder = found.get("multirun")
        if isinstance(folder, (Mapping, list)):
            value, place = schema.brief(folder), self._blamed("multirun", where)
            self._problems.append(Problem(place, "multirun", value, "the name of one folder", "write multirun=FOLDER"))
        return found

    def _experiment(self, name: str | None, root: Mapping[str, Any]) -> Experiment:
        where = self._workshop.where(name)
        composed = self._composer.compose(self._workshop.selection(name))
        default = composed.choices.get("method") or method_parts.BASELINE
        section = self._kept("experiment", experiment_spec.EXPERIMENT, root.get("experiment") or {}, composed, where)
        if name is not None and "experiment.name" not in self._arguments.values:
            source = self._composer.source(self._workshop.selection(name), "experiment.name")
            experiment_spec.own_name(section, source, where, self._problems)
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
        section = self._kept("analysis", experiment_spec.ANALYSIS, section, composed, where)
        if not self._problems:
            for problem in hypotheses.problems(section, seeds, wanted.baseline, composed, where):
                self._problems.append(replace(problem, where=self._blamed(problem.key, problem.where)))
        return section

    def _kept(
        self, name: str, parts: Sequence[str], section: Mapping[str, Any], composed: Composed, where: str
    ) -> dict[str, Any]:
        files = [hydra_compose.lookup(file.tree, name)[1] for file in composed.files]
        own = [one for one in files if isinstance(one, Mapping)]
        return experiment_spec.kept(name, parts, section, own, where, self._problems)

    def _section(self, root: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
        """One of the sections in CHECKED, checked against what holds without an experiment."""
        chosen = [f"{group}={choice}" for group, choice in self._arguments.choices.items() if group == name]
        defaults = self._composer.compose(chosen).tree[name]
        section = schema.strip({name: root.get(name) or {}})
        for breach in schema.Checker({name: defaults}).check(section):
            place = self._blamed(breach.key, where)
            self._problems.append(Problem(place, breach.key, schema.brief(breach.value), breach.rule, breach.fix))
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

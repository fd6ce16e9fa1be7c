"""From the command line's overrides to identified runs: compose, resolve, validate everything.

Nothing is written before the whole plan is known to be sound: `make` only reads, and raises InvalidPlan with every
problem.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from analysis.spec import registry
from analysis.spec.settings import Settings
from analysis.spec.validation import NO_SUCH_KEY, Context, closest, objections
from launcher import secrets
from launcher.application import Composed
from launcher.application.isolated import Ended, Isolated
from launcher.config import hydra_compose, identity, installed_parts
from launcher.config.hydra_compose import Composer
from launcher.planning import added_seeds, clusters, continuation, design, experiment_spec, schema
from launcher.planning.clusters import Budget
from launcher.planning.experiment_spec import ExperimentSpec
from launcher.planning.overrides import COMMAND_LINE, HYPOTHESIS, command_line, is_code_choice
from launcher.planning.plan import Experiment, FactorLevels, Plan, PlannedGroup, PlannedRun, seeds_of
from launcher.planning.run_specs import run_specs
from launcher.planning.variants import SECTIONS, PlanningContext
from launcher.text import one_line
from launcher.tracking import settings as tracking

ROOT_CONFIG = "config"
# Sections that hold for a whole experiment and are not part of its runs.
_WHOLE = ("analysis", "cluster", "tracking", "budget")
_HYPOTHESES = "analysis.hypotheses"
_METRIC = "must be a metric's key"
_OF_GROUP = re.compile(r"experiment\.groups\.[^.]+")
_LONGEST_NAME = 80  # characters, before the hash
_IMPORT_S = 60.0


#: Seeds to add, by experiment and group.
AddedSeeds = Mapping[str, Mapping[str, Iterable[int]]]


def make(
    root: Path, arguments: Sequence[str], composer: Composer | None = None, added: AddedSeeds | None = None
) -> Plan:
    """Plan what the overrides ask for. `root` is the project's folder; `composer` that of its conf/ by default.

    Several plans may share a composer while the files stay as they are. added: of experiments whose number of seeds
    depends on results, those beyond the plan that was frozen last. Raises InvalidPlan with every problem found; writes
    nothing.
    """
    composer = composer or Composer(root / "conf", ROOT_CONFIG, installed_parts.folders())
    planner = _Planner(root, composer, arguments, added or {})
    with closing(planner.checks):
        return planner.plan()


class _Planner:
    """Makes one plan."""

    def __init__(self, root: Path, composer: Composer, arguments: Sequence[str], added: AddedSeeds) -> None:
        self._root, self._composer, self._added = root, composer, added
        self._context = PlanningContext(composer, arguments)
        self.checks = self._context.checks
        self._problems, self._arguments = self._context.problems, self._context.arguments
        self._runs: dict[str, PlannedRun] = {}
        self._command = command_line([word for word in arguments if not is_code_choice(word)])

    def plan(self) -> Plan:
        """The plan. Raises InvalidPlan."""
        experiments: list[Experiment] = []
        sections: dict[str, dict[str, Any]] = {}
        self._check_hydras()
        if entry_points(group=registry.GROUP):  # the settings of the report import them in this process
            self._try_entry_points()
        for name in self._arguments.experiments:
            try:
                composed = self._composer.compose(self._context.selection(name))
            except hydra_compose.ERRORS as error:
                self._context.does_not_compose(self._context.file_of(name), error)
                continue
            tree = self._resolved(composed, name) if self._context.check_files(composed) else None
            if tree is None:
                continue
            if not sections:
                sections = {"cluster": self._cluster(tree, composed, name), "tracking": tree["tracking"]}
                self._check(tracking.Settings, "tracking", sections["tracking"], name)
                budget = tree.get("budget") or {}
                self._check(Budget, "budget", budget, name)
                multirun = self._root / str(tree.get("multirun") or "multirun")
                self._context.cluster = sections["cluster"]
            experiments.append(self._experiment(name, tree, composed))
        names = [experiment.name for experiment in experiments]
        folded = [name.casefold() for name in names]
        for twice in {name for name in names if folded.count(name.casefold()) > 1}:
            rule = "two experiments of this command have this name, so both would write to one folder"
            self._problems.add(COMMAND_LINE, "experiment.name", twice, rule, "plan them one by one")
        self._refuse_secrets(experiments, sections)
        self._problems.raise_any()
        planned = Plan(
            tuple(experiments),
            self._runs,
            self._context.used_bases,
            sections["cluster"],
            sections["tracking"],
            multirun=multirun,
            budget=budget.get("device_hours"),
            code_choice=self._arguments.code_choice,
        )
        return continuation.continued(planned)

    def _try_entry_points(self) -> None:
        """Import the analysis of other packages in a process of its own. Raises InvalidPlan."""
        with closing(Isolated()) as isolated:
            try:
                isolated.call(_IMPORT_S, registry.load)
            except Ended as ended:
                key = "analysis" if ended.file is None else f"line {ended.line}"
                self._problems.add(ended.shown_file or "configuration", key, None, ended.rule, "correct it")
        self._problems.raise_any()

    def _check_hydras(self) -> None:
        """Add a problem for each override of Hydra's own section that Hydra refuses when it starts."""
        # A value may be one of a chosen launcher: hydra.launcher.timeout_min of hydra/launcher=submitit_slurm.
        chosen: list[str] = []
        for word in sorted(self._arguments.hydras, key=lambda word: "/" not in word.partition("=")[0]):
            try:
                self._composer.check_hydras([*chosen, word])
                chosen += [word] if "/" in word.partition("=")[0] else []
            except hydra_compose.ERRORS as error:
                key, _, value = word.partition("=")
                rule = one_line(f"Hydra refuses this: {error}").partition(" Config search path")[0]
                fix = "correct it; python launch.py --cfg hydra prints Hydra's own keys"
                self._problems.add(COMMAND_LINE, key, value, rule, fix)

    def _refuse_secrets(self, experiments: Sequence[Experiment], sections: Mapping[str, Any]) -> None:
        """Refuse API keys in what is frozen, which is kept and shown."""
        if not secrets.of_environment():
            return
        kept = [experiment.model_dump(by_alias=True, exclude={"command", "entries"}) for experiment in experiments]
        for tree in (sections, *(run.config for run in self._runs.values()), *kept):
            for key, variable in secrets.within(tree):
                rule = f"this is the value of the environment variable {variable}, but plans are stored and printed"
                fix = "remove it; the code that needs it can read the environment variable"
                self._problems.add(COMMAND_LINE, key, secrets.MASK, rule, fix)

    # ------------------------------------------------------------ the root configuration

    def _resolved(self, composed: Composed, experiment: str | None) -> dict[str, Any] | None:
        """The composed root with the command line's values for what holds for a whole experiment, resolved."""
        where = self._context.file_of(experiment)
        tree = dict(composed.tree)
        for key, value in self._arguments.values.items():
            section = key.partition(".")[0]
            if isinstance(tree.get(key), Mapping) and not isinstance(value, Mapping):
                schema.report(self._problems, COMMAND_LINE, schema.not_a_mapping(key, value, tree[key]))
                return None
            if section in SECTIONS:
                continue
            group, _, last = key.rpartition(".")
            overrides = last == "overrides" and _OF_GROUP.fullmatch(group) and hydra_compose.lookup(tree, group)[0]
            if not hydra_compose.lookup(tree, key)[0] and section not in _WHOLE and not overrides:
                within, wrong, names = _first_unknown(tree, key)
                otherwise = f"use one of {', '.join(names)}" if names else "remove it"
                fix = self._context.suggested(key, value) or closest(wrong, names, within, otherwise)
                self._problems.add(COMMAND_LINE, key, schema.brief(value), NO_SUCH_KEY, fix)
                continue
            tree = hydra_compose.assign(tree, key, value)
        try:
            resolved = hydra_compose.resolved(tree)
        except OmegaConfBaseException as error:
            self._context.does_not_compose(where, error)
            return None
        folder = resolved.get("multirun")
        if isinstance(folder, (Mapping, list)):
            at = self._arguments.origin("multirun", where)
            self._problems.add(
                at, "multirun", schema.brief(folder), "must be the path of one folder", "write multirun=FOLDER"
            )
        return resolved

    # ------------------------------------------------------------ one experiment

    def _experiment(self, name: str | None, tree: Mapping[str, Any], composed: Composed) -> Experiment:
        where = self._context.file_of(name)
        default = composed.choices.get("method") or self._context.parts.BASELINE
        declared = tree.get("experiment") or {}
        section = experiment_spec.check_dropped("experiment", declared, composed, where, self._problems)
        if name is None and "experiment.name" not in self._arguments.values:
            section["name"] = self._adhoc_name(str(section.get("name")), default)
        multirun = self._root / str(tree.get("multirun") or "multirun")
        self._check_owner(name, str(section.get("name")), where, multirun)
        frozen = added_seeds.frozen_plan(multirun / str(section.get("name")))
        arguments = added_seeds.recorded(
            self._arguments, frozen, section.get("seeds") or [tree["seed"]], self._problems
        )
        spec = experiment_spec.read(section, tree["seed"], default, arguments, where, self._problems)
        if frozen is not None:
            by = "seed" if self._arguments.seeds is not None else "experiment.seeds"
            at = COMMAND_LINE if by == "seed" else self._arguments.origin(by, where)
            added_seeds.check_unchanged(spec.rule, frozen, multirun, at, by, self._problems)
        seeds_now: Mapping[str, Iterable[int]] = dict.fromkeys(spec.groups, spec.all_seeds)
        if spec.rule is not None:
            seeds_now = added_seeds.current(spec.rule, spec.groups, frozen, self._added.get(spec.name, {}))
        specs = run_specs(self._context, name, spec, {group: {*own} for group, own in seeds_now.items()})
        self._runs.update(specs.runs)
        if not self._problems:
            experiment_spec.check_groups(spec, specs.entries, where, self._arguments, self._problems)
        groups: dict[str, PlannedGroup] = {
            group: {"label": str(own.label), "method": own.methods[0] if len(own.methods) == 1 else list(own.methods)}
            for group, own in spec.groups.items()
        }
        labels = design.short_labels(list(specs.levels))
        factors: dict[str, FactorLevels] = {
            key: {"label": labels[key], "levels": list(levels)} for key, levels in specs.levels.items()
        }
        seeds = seeds_of(groups, specs.entries)
        steps = [int(run.config["trainer"]["steps"]) for run in specs.runs.values()]
        # What the section `analysis` is checked with; the metrics and cells of runs with problems are not known.
        known = Context(seeds, spec.baseline, True, None, self._context.unwritten)
        if not self._problems:
            cells = [tuple(entry.factors.items()) for entry in specs.entries]
            known = replace(known, written=specs.metrics, cells=cells, sources=specs.sources)
        return Experiment(
            experiment=spec.name,
            command=added_seeds.with_seeds(self._command, spec.all_seeds) if arguments.adds_seeds else self._command,
            baseline=spec.baseline,
            steps=max(steps, default=0),
            seeds=tuple(sorted({entry.seed for entry in specs.entries})) if spec.rule else spec.all_seeds,
            groups=groups,
            factors=factors,
            analysis=self._analysis(tree, composed, name, known, spec),
            runs=specs.entries,
        )

    def _adhoc_name(self, prefix: str, method: str) -> str:
        """The name of an experiment without a file: its methods, and a hash of what else the command line chooses.

        It does not depend on the seeds, so that a later launch can add some.
        """
        own = self._arguments
        methods = own.methods or [(method,)]
        whole = ("cluster", HYPOTHESIS)
        chosen = {key: one for key, one in own.choices.items() if key not in whole}
        sections = (*SECTIONS, "base", "experiment")
        values = {key: one for key, one in own.values.items() if key.partition(".")[0] in sections}
        values = {key: one for key, one in values.items() if key not in ("experiment.baseline", "experiment.seeds")}
        rest = [sorted(map(repr, each.items())) for each in (chosen, values, own.choice_factors, own.value_factors)]
        name = "-".join([prefix, *dict.fromkeys("+".join(files) for files in methods)])[:_LONGEST_NAME].rstrip("-+")
        return f"{name}-{identity.content_hash(repr(rest))[:6]}" if any(rest) else name

    def _check_owner(self, experiment: str | None, name: str, where: str, multirun: Path) -> None:
        """Add a problem when the experiment's folder is that of another file, of a campaign, or, where a file system
        ignores case, of another experiment.

        A file that is called like the experiment owns the name, whatever other files declare.
        """
        at, fix = self._arguments.origin("experiment.name", where), "give this experiment a name of its own"
        others = [f"conf/campaign/{one}.yaml" for one in self._composer.options("campaign") if _alike(one, name)]
        present = [one.name for one in multirun.iterdir()] if multirun.is_dir() else []
        others += [str(multirun / one) for one in present if one != name and _alike(one, name)]
        for other in others:
            rule = f"{other} has the same folder, at least on file systems that ignore the case of letters"
            self._problems.add(at, "experiment.name", name, rule, fix)
        if experiment == name:
            return
        for other in self._composer.options("experiment"):
            try:
                declared = hydra_compose.lookup(self._composer.content(f"experiment/{other}"), "experiment.name")[1]
            except hydra_compose.ERRORS:
                continue  # the plan of that file reports it
            if other != experiment and _alike(str(declared), name):
                rule = f"this is the name of conf/experiment/{other}.yaml, whose plan and report lie in its folder"
                self._problems.add(at, "experiment.name", name, rule, fix)

    # ------------------------------------------------------------ sections that hold for a whole experiment

    def _analysis(
        self,
        tree: Mapping[str, Any],
        composed: Composed,
        experiment: str | None,
        context: Context,
        spec: ExperimentSpec,
    ) -> dict[str, Any]:
        where = self._context.file_of(experiment)
        section = experiment_spec.check_dropped("analysis", tree.get("analysis") or {}, composed, where, self._problems)
        sequential = spec.rule.model_dump() if spec.rule is not None else None
        if section.get("sequential") not in (None, sequential):
            at = self._arguments.origin("analysis.sequential", where)
            self._problems.add(
                at,
                "analysis.sequential",
                schema.brief(section["sequential"]),
                "experiment.seeds decides how seeds are added, and the report follows it",
                "remove it, and write experiment.seeds: {start: 4, max: 12, until: decided}",
            )
        section["sequential"] = sequential
        files = {Path(file.path).name: file.content for file in composed.files if file.package == _HYPOTHESES}
        for file, other in itertools.combinations(reversed(files), 2):
            for name in [name for name in files[file] if name in files[other]]:
                rule = f"conf/{HYPOTHESIS}/{other}.yaml also declares {name}"
                at = f"conf/{HYPOTHESIS}/{file}.yaml"
                self._problems.add(at, f"{_HYPOTHESES}.{name}", None, rule, "rename one")
        # The groups of an experiment with problems may not be all that its hypotheses are about.
        judged = {**section, "hypotheses": None} if self._problems else section
        self._check(Settings, "analysis", judged, experiment, where, context, files)
        return section

    def _cluster(self, tree: Mapping[str, Any], composed: Composed, experiment: str | None) -> dict[str, Any]:
        section = schema.strip(tree["cluster"])  # a file from before this schema has `allowed`
        where = f"{self._composer.folder.name}/cluster/{composed.choices.get('cluster')}.yaml"
        name = (composed.tree.get("cluster") or {}).get("name")  # by the file, whatever the command line says
        if isinstance(name, str) and (settings := clusters.settings(name)) is not None:
            self._check(settings, "cluster", section, experiment, where)
        else:
            needed = f"one of {', '.join(clusters.names())}"
            self._problems.add(where, "cluster.name", schema.brief(name), f"must be {needed}", f"give {needed}")
        return section

    def _check(
        self,
        model: type[BaseModel],
        name: str,
        section: Any,
        experiment: str | None,
        where: str | None = None,
        context: Context | None = None,
        hypotheses: Mapping[str, Any] | None = None,
    ) -> None:
        """Add every objection to a section, with the file that set its key; where: the file for a key that none set, by
        default the experiment's. hypotheses: the content of their files.
        """
        where = where or self._context.file_of(experiment)
        for objection in objections(model, section, name, context):
            words = objection.key.partition("[")[0].split(".")
            above = [".".join(words[:end]) for end in range(len(words), 1, -1)]
            selection = self._context.selection(experiment)
            sources = filter(None, (self._composer.source(selection, key) for key in above))
            origin = self._arguments.origin(objection.key, next(sources, where))
            fix = objection.fix
            if objection.rule.startswith(_METRIC) and isinstance(objection.value, str):
                fix = self._context.meant_metric(objection.value) or fix
            if objection.rule == NO_SUCH_KEY:
                fix = self._context.suggested(objection.key, objection.value) or fix
            if objection.key.startswith(f"{_HYPOTHESES}."):
                fix += f", or leave it out: {'.'.join(words[:3])}=null"
                owner = next((file for file, own in (hypotheses or {}).items() if words[2] in own), None)
                if owner is not None:
                    others = ",".join(file for file in hypotheses or {} if file != owner)
                    fix += f", or with the rest of its file: {HYPOTHESIS}=[{others}]"
            schema.report(self._problems, origin, replace(objection, fix=fix))


def _alike(name: str, other: str) -> bool:
    return name.casefold() == other.casefold()


def _first_unknown(tree: Mapping[str, Any], key: str) -> tuple[str, str, list[str]]:
    """Split a dotted key at its first unknown word: the part before it, the word, and the keys that exist there."""
    within, words = "", key.split(".")
    while len(words) > 1 and isinstance(tree.get(words[0]), Mapping):
        tree, within = tree[words[0]], f"{within}{words.pop(0)}."
    return within, words[0], list(map(str, tree))

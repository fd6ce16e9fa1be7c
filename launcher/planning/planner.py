"""From the command line's overrides to identified runs: compose, resolve, validate everything.

Nothing is written before the whole plan is known to be sound: `make` only reads, and raises InvalidPlan with every
problem.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from analysis.spec import registry
from analysis.spec.settings import Settings
from analysis.spec.validation import NO_SUCH_KEY, Context, closest, objections
from launcher import secrets
from launcher.application import Checks, application
from launcher.application.isolated import Ended, Isolated
from launcher.config import hydra_compose, identity, installed_parts
from launcher.config.hydra_compose import Composer, spelled
from launcher.errors import Diagnostics, InvalidPlan, Objection
from launcher.planning import added_seeds, clusters, continuation, experiment_spec, freeze, schema, variants
from launcher.planning.clusters import Budget
from launcher.planning.experiment_spec import ExperimentSpec
from launcher.planning.overrides import COMMAND_LINE, HYPOTHESIS, Arguments, command_line, is_code_choice, parse
from launcher.planning.plan import Experiment, Plan, PlannedGroup, PlannedRun, seeds_of
from launcher.planning.run_specs import RunSpecs, run_specs
from launcher.planning.variants import SECTIONS, Planning, Root
from launcher.tracking import settings as tracking

# Sections that hold for a whole experiment and are not part of its runs.
_WHOLE = ("analysis", "cluster", "tracking", "budget")
_HYPOTHESES = "analysis.hypotheses"
_METRIC = "must be a metric's key"
# By section, the keys of which a file can drop inherited entries: see _section.
_INHERITED = {"experiment": ("groups", "factors", "zip", "scales"), "analysis": ("hypotheses",)}
_OF_GROUP = re.compile(r"experiment\.groups\.[^.]+")
_LONGEST_NAME = 80  # characters, before the hash
_IMPORT_S = 60.0


#: Seeds to add, by experiment and group.
AddedSeeds = Mapping[str, Mapping[str, Iterable[int]]]


def make(
    root: Path,
    arguments: Sequence[str],
    composer: Composer | None = None,
    added: AddedSeeds | None = None,
    checks: Checks | None = None,
) -> Plan:
    """Plan what the overrides ask for. `root` is the project's folder; `composer` that of its conf/ by default.

    Several plans may share a composer and checks while the files stay as they are. added: of experiments whose number
    of seeds depends on results, those beyond the plan that was frozen last. Raises InvalidPlan with every problem
    found; writes nothing.
    """
    composer, problems = composer or hydra_compose.of_project(), Diagnostics()
    given = parse(composer, arguments, problems)
    command = command_line([word for word in arguments if not is_code_choice(word)])
    if installed_parts.entries().select(group=registry.GROUP):  # the settings of the report import them in this process
        _try_entry_points(problems)
    with closing(checks or application().checks()) as checks:
        return continuation.continued(_plan(Planning(composer, given, problems, checks), root, command, added or {}))


def _plan(planning: Planning, root: Path, command: str, added: AddedSeeds) -> Plan:
    problems, given = planning.problems, planning.arguments
    experiments: list[Experiment] = []
    runs: dict[str, PlannedRun] = {}
    first: Root | None = None  # for what holds for the whole launch
    for config_root in filter(None, (_root(planning, name) for name in given.experiments)):
        if first is None:
            first = config_root
            planning.cluster = _cluster(planning, config_root)
            _check(planning, config_root, tracking.Settings, "tracking", config_root.tree["tracking"])
            _check(planning, config_root, Budget, "budget", config_root.tree.get("budget") or {})
        experiment, its_runs = _experiment(planning, config_root, root, command, added)
        experiments.append(experiment)
        runs.update(its_runs)
    names = [experiment.name for experiment in experiments]
    for twice in {name for name in names if names.count(name) > 1}:
        rule = "two experiments of this command have this name, so both would write to one folder"
        problems.add(COMMAND_LINE, "experiment.name", twice, rule, "plan them one by one")
    whole = {"cluster": planning.cluster, "tracking": first.tree["tracking"] if first is not None else {}}
    problems += _kept_secrets(experiments, whole, runs)
    problems.raise_any()
    assert first is not None
    return Plan(
        tuple(experiments),
        runs,
        planning.bases,
        whole["cluster"],
        whole["tracking"],
        multirun=_multirun(root, first),
        budget=(first.tree.get("budget") or {}).get("device_hours"),
        code_choice=given.code_choice,
    )


def _multirun(root: Path, config_root: Root) -> Path:
    return root / str(config_root.tree.get("multirun") or "multirun")


def _try_entry_points(problems: Diagnostics) -> None:
    """Import the analysis of other packages in a process of its own. Raises InvalidPlan."""
    with closing(Isolated()) as isolated:
        try:
            isolated.call(_IMPORT_S, registry.load)
        except Ended as ended:
            key = "analysis" if ended.file is None else f"line {ended.line}"
            problems.add(ended.shown_file or "configuration", key, None, ended.rule, "correct the code")
    problems.raise_any()


def _kept_secrets(
    experiments: Iterable[Experiment], whole: Mapping[str, Any], runs: Mapping[str, PlannedRun]
) -> Iterator[Objection]:
    """The API keys in what is frozen, which is kept and shown."""
    if not secrets.of_environment():
        return
    kept = [experiment.model_dump(by_alias=True, exclude={"command", "entries"}) for experiment in experiments]
    for tree in (whole, *(run.config for run in runs.values()), *kept):
        for key, variable in secrets.within(tree):
            rule = f"this is the value of the environment variable {variable}, but plans are stored and printed"
            fix = "remove it; the code that needs it can read the environment variable"
            yield Objection(key, secrets.MASK, rule, fix, COMMAND_LINE)


# ---------------------------------------------------------------- the root configuration


def _root(planning: Planning, experiment: str | None) -> Root | None:
    """The root configuration of an experiment; None (and problems) if the experiment cannot be judged without it."""
    composer, problems, values = planning.composer, planning.problems, planning.arguments.values
    where = f"{composer.folder.name}/{f'experiment/{experiment}' if experiment else composer.config}.yaml"
    try:
        chosen = _selection(planning, experiment)
        composed = composer.compose(chosen)
    except hydra_compose.ERRORS as error:
        problems.append(variants.not_composed(composer, where, error))
        return None
    objections_to_files = variants.file_problems(composer, composed)
    problems += objections_to_files
    if any(problem.rule not in variants.HARMLESS for problem in objections_to_files):
        return None
    tree = dict(composed.tree)
    for key, value in values.items():
        section = key.partition(".")[0]
        if isinstance(tree.get(key), Mapping) and not isinstance(value, Mapping):
            schema.report(problems, COMMAND_LINE, schema.not_a_mapping(key, value, tree[key]))
            return None
        if section in SECTIONS:
            continue
        group, _, last = key.rpartition(".")
        overrides = last == "overrides" and _OF_GROUP.fullmatch(group) and hydra_compose.lookup(tree, group)[0]
        if hydra_compose.lookup(tree, key)[0] or section in _WHOLE or overrides:
            tree = hydra_compose.assign(tree, key, value)
        else:
            within, wrong, names = _first_unknown(tree, key)
            otherwise = f"use one of {', '.join(names)}" if names else "remove it"
            fix = variants.suggested(composer, key, value) or closest(wrong, names, within, otherwise)
            problems.add(COMMAND_LINE, key, schema.brief(value), NO_SUCH_KEY, fix)
    try:
        resolved = hydra_compose.resolved(tree)
    except OmegaConfBaseException as error:
        problems.append(variants.not_composed(composer, where, error))
        return None
    if isinstance(folder := resolved.get("multirun"), (Mapping, list)):
        at, rule = planning.arguments.origin("multirun", where), "must be the path of one folder"
        problems.add(at, "multirun", schema.brief(folder), rule, "write multirun=FOLDER")
    return Root(experiment, where, chosen, composed, resolved)


def _selection(planning: Planning, experiment: str | None) -> list[str]:
    """The choices of groups that hold for the whole experiment, as Hydra's overrides."""
    chosen = {group: choice for group, choice in planning.arguments.choices.items() if not group.startswith("method/")}
    if experiment:
        chosen = {"experiment": experiment, **chosen}
    if planning.arguments.more_hypotheses:
        hypotheses = planning.composer.compose([f"{group}={name}" for group, name in chosen.items()]).chosen(HYPOTHESIS)
        chosen.pop(HYPOTHESIS, None)
        chosen[HYPOTHESIS] = spelled([*hypotheses, *planning.arguments.more_hypotheses])
    return [f"{group}={choice}" for group, choice in chosen.items()]


def _section(planning: Planning, config_root: Root, at: str) -> dict[str, Any]:
    """The section `at` without its null entries: a file inherits what another one declares, through Hydra's `defaults:
    [other, _self_]`, and null drops an entry (`groups: {C2: null}`). A problem is added for each null entry that no
    file declares."""
    result = dict(config_root.tree.get(at) or {})
    for key in _INHERITED[at]:
        entries = result.get(key)
        if not isinstance(entries, Mapping):
            continue
        of_files = (hydra_compose.lookup(file.tree, f"{at}.{key}")[1] for file in config_root.composed.files)
        theirs = [named for named in of_files if isinstance(named, Mapping)]
        declared = sorted({str(name) for named in theirs for name, entry in named.items() if entry is not None})
        for name in [str(name) for name, entry in entries.items() if entry is None and str(name) not in declared]:
            others = f"; declared: {', '.join(declared)}" if declared else ""
            fix = closest(name, declared, otherwise=f"remove it, or give it a value{others}")
            rule = "null removes an entry of another file, but no other file has this entry"
            planning.problems.add(config_root.where, f"{at}.{key}.{name}", None, rule, fix)
        result[key] = {name: entry for name, entry in entries.items() if entry is not None}
    return result


def _first_unknown(tree: Mapping[str, Any], key: str) -> tuple[str, str, list[str]]:
    """Split a dotted key at its first unknown word: the part before it, the word, and the keys that exist there."""
    within, words = "", key.split(".")
    while len(words) > 1 and isinstance(tree.get(words[0]), Mapping):
        tree, within = tree[words[0]], f"{within}{words.pop(0)}."
    return within, words[0], list(map(str, tree))


# ---------------------------------------------------------------- one experiment


def _experiment(
    planning: Planning, config_root: Root, root: Path, command: str, added: AddedSeeds
) -> tuple[Experiment, Mapping[str, PlannedRun]]:
    """An experiment and its runs, by id."""
    problems, given, tree = planning.problems, planning.arguments, config_root.tree
    default = config_root.composed.choices.get("method") or application().parts().BASELINE
    section = _section(planning, config_root, "experiment")
    if config_root.experiment is None and "experiment.name" not in given.values:
        section["name"] = _adhoc_name(given, str(section.get("name")), default)
    name, multirun = str(section.get("name")), _multirun(root, config_root)
    problems += _other_owners(planning, config_root, name)
    frozen = freeze.frozen_plan(multirun / name)
    arguments = added_seeds.recorded(given, frozen, section.get("seeds") or [tree["seed"]], problems)
    spec = experiment_spec.read(section, tree["seed"], default, arguments, config_root.where, problems)

    def specs_after(frozen: Experiment | None) -> RunSpecs:
        more, seeds = added.get(spec.name, {}), {group: {*spec.all_seeds} for group in spec.groups}
        seeds = seeds if spec.rule is None else added_seeds.current(spec.rule, spec.groups, frozen, more)
        return run_specs(planning, config_root, spec, seeds)

    specs = specs_after(frozen)
    if frozen is not None and specs.runs.keys() & frozen.members.keys():
        by = "seed" if given.seeds is not None else "experiment.seeds"
        at = COMMAND_LINE if by == "seed" else given.origin(by, config_root.where)
        added_seeds.check_unchanged(spec.rule, frozen, multirun, at, by, problems)
    elif frozen is not None and spec.rule is not None and not problems:  # its plan is of another scale or length
        specs = specs_after(None)
    if not problems:
        experiment_spec.check_groups(spec, specs.entries, config_root.where, given, problems)
        places = {key: (config_root.where, f"experiment.factors.{key}") for key in specs.factors}
        places |= {key: (COMMAND_LINE, key) for key in given.keys}
        experiment_spec.check_factors(specs.factors, specs.entries, places, problems)
    groups: dict[str, PlannedGroup] = {
        name: {"label": str(group.label), "method": group.methods[0] if len(group.methods) == 1 else [*group.methods]}
        for name, group in spec.groups.items()
    }
    # What the section `analysis` is checked with; the metrics and cells of runs with problems are not known.
    known = Context(
        seeds_of(groups, specs.entries),
        spec.baseline,
        own_metrics=True,
        unwritten=lambda metric: planning.checks.unwritten(
            metric, planning.compositions, variants.parts(planning.composer)
        ),
    )
    if not problems:
        factors = {id(entry.factors): entry.factors for entry in specs.entries}  # the entries of a cell share theirs
        cells = [tuple(levels.items()) for levels in factors.values()]
        known = replace(known, written=specs.metrics, cells=cells, sources=specs.sources)
    experiment = Experiment(
        experiment=spec.name,
        command=added_seeds.with_seeds(command, spec.all_seeds) if arguments.adds_seeds else command,
        baseline=spec.baseline,
        steps=max((int(run.config["trainer"]["steps"]) for run in specs.runs.values()), default=0),
        seeds=tuple(sorted({entry.seed for entry in specs.entries})) if spec.rule else spec.all_seeds,
        groups=groups,
        factors=specs.factors,
        analysis=_analysis(planning, config_root, known, spec),
        runs=specs.entries,
    )
    return experiment, specs.runs


def _adhoc_name(given: Arguments, prefix: str, method: str) -> str:
    """The name of an experiment without a file: its methods, and a hash of what else the command line chooses.

    It does not depend on the seeds, so that a later launch can add some.
    """
    methods = given.methods or [(method,)]
    chosen = {key: choice for key, choice in given.choices.items() if key not in ("cluster", HYPOTHESIS)}
    sections = (*SECTIONS, "base", "experiment")
    values = {key: value for key, value in given.values.items() if key.partition(".")[0] in sections}
    values = {key: value for key, value in values.items() if key not in ("experiment.baseline", "experiment.seeds")}
    rest = [sorted(map(repr, each.items())) for each in (chosen, values, given.choice_factors, given.value_factors)]
    name = "-".join([prefix, *dict.fromkeys("+".join(files) for files in methods)])[:_LONGEST_NAME].rstrip("-+")
    return f"{name}-{identity.content_hash(repr(rest))[:6]}" if any(rest) else name


def _other_owners(planning: Planning, config_root: Root, name: str) -> Iterator[Objection]:
    """Another file or a campaign whose folder is the experiment's."""
    for group in ("campaign", "experiment"):
        if name in planning.composer.options(group) and (group, name) != ("experiment", config_root.experiment):
            rule = f"conf/{group}/{name}.yaml has the same folder"
            at = planning.arguments.origin("experiment.name", config_root.where)
            yield Objection("experiment.name", name, rule, "give this experiment a name of its own", at)


# ---------------------------------------------------------------- sections that hold for a whole experiment


def _analysis(planning: Planning, config_root: Root, context: Context, spec: ExperimentSpec) -> dict[str, Any]:
    problems = planning.problems
    section = _section(planning, config_root, "analysis")
    sequential = spec.rule.model_dump() if spec.rule is not None else None
    if section.get("sequential") not in (None, sequential):
        value, where = schema.brief(section["sequential"]), config_root.where
        rule = "experiment.seeds decides how seeds are added, and the report follows it"
        fix = "remove it, and write experiment.seeds: {start: 4, max: 12, until: decided}"
        problems.add(planning.arguments.origin("analysis.sequential", where), "analysis.sequential", value, rule, fix)
    section["sequential"] = sequential
    files = {Path(file.path).name: file.content for file in config_root.composed.files if file.package == _HYPOTHESES}
    for file, other in itertools.combinations(reversed(files), 2):
        for name in [name for name in files[file] if name in files[other]]:
            rule = f"conf/{HYPOTHESIS}/{other}.yaml also declares {name}"
            problems.add(f"conf/{HYPOTHESIS}/{file}.yaml", f"{_HYPOTHESES}.{name}", None, rule, "rename one")
    # The groups of an experiment with problems may not be all that its hypotheses are about.
    judged = {**section, "hypotheses": None} if problems else section
    _check(planning, config_root, Settings, "analysis", judged, context=context, hypotheses=files)
    return section


def _cluster(planning: Planning, config_root: Root) -> dict[str, Any]:
    section = schema.strip(config_root.tree["cluster"])  # a file from before this schema has `allowed`
    where = f"{planning.composer.folder.name}/cluster/{config_root.composed.choices.get('cluster')}.yaml"
    name = (config_root.composed.tree.get("cluster") or {}).get("name")  # by the file, whatever the command line says
    try:
        _check(planning, config_root, clusters.settings(schema.brief(name), where), "cluster", section, where)
    except InvalidPlan as invalid:
        planning.problems += invalid.problems
    return section


def _check(
    planning: Planning,
    config_root: Root,
    model: type[BaseModel],
    name: str,
    section: Any,
    where: str | None = None,
    context: Context | None = None,
    hypotheses: Mapping[str, Any] | None = None,
) -> None:
    """Add every objection to a section, with the file that set its key; where: the file for a key that none set, by
    default the experiment's. hypotheses: the content of their files.
    """
    composer, chosen, files = planning.composer, config_root.selection, hypotheses or {}
    for objection in objections(model, section, name, context):
        words = objection.key.partition("[")[0].split(".")
        above = [".".join(words[:end]) for end in range(len(words), 1, -1)]
        sources = filter(None, (composer.source(chosen, key) for key in above))
        origin = planning.arguments.origin(objection.key, next(sources, where or config_root.where))
        fix = objection.fix
        if objection.rule.startswith(_METRIC) and isinstance(objection.value, str):
            fix = planning.checks.meant_metric(objection.value, planning.compositions) or fix
        if objection.rule == NO_SUCH_KEY:
            choice = config_root.composed.choices.get(words[0])
            fix = variants.suggested(composer, objection.key, objection.value, choice) or fix
        if objection.key.startswith(f"{_HYPOTHESES}."):
            fix += f", or leave it out: {'.'.join(words[:3])}=null"
            if owner := next((file for file, content in files.items() if words[2] in content), None):
                others = ",".join(file for file in files if file != owner)
                fix += f", or with the rest of its file: {HYPOTHESIS}=[{others}]"
        schema.report(planning.problems, origin, replace(objection, fix=fix))

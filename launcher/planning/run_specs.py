"""The runs of one experiment: its cells and seeds, composed, checked, identified."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from analysis.spec.metric_catalog import drawn_from
from analysis.spec.validation import NO_SUCH_KEY, closest
from launcher.application import application
from launcher.config import content, hydra_compose, identity
from launcher.config.hydra_compose import Composer, spelled
from launcher.errors import Objection
from launcher.planning import design, variants
from launcher.planning import overrides as command_line
from launcher.planning.design import Cell, Choices, Exclusion, Factor, equal, excludes
from launcher.planning.experiment_spec import ExperimentSpec, Group
from launcher.planning.overrides import COMMAND_LINE
from launcher.planning.plan import Entry, FactorLevels, PlannedRun
from launcher.planning.schema import brief, report
from launcher.planning.variants import SECTIONS, ConfigVariant, Planning, Root

_NAMED, _OF_GROUPS = 5, "experiment.groups"  # how many levels a message names
#: By key of a value: the file that sets it, and under which key.
_Places = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class RunSpecs:
    """The entries of an experiment, their runs by id, its factors by key, and the metrics that some run of each group
    writes. sources: from which policies each group draws its responses.
    """

    entries: tuple[Entry, ...]
    runs: Mapping[str, PlannedRun]
    factors: dict[str, FactorLevels]
    metrics: Mapping[str, Collection[str]]
    sources: Mapping[str, Collection[str]]


@dataclass(frozen=True)
class _Layout:
    """What decides the configurations of an experiment's runs.

    fixed: values of the command line; scaled, chosen: values of the scale, and its choices of whole groups as Hydra's
    overrides; groups: of each sound group its overrides of configuration groups, and the values that its methods set
    beside them.
    """

    root: Root
    spec: ExperimentSpec
    factors: Factors
    fixed: Mapping[str, Any]
    scaled: Mapping[str, Any]
    chosen: Sequence[str]
    places: _Places
    groups: Mapping[str, tuple[list[str], Mapping[str, tuple[Any, str]]]]


@dataclass(frozen=True)
class _Treatment:
    """A cell as composed: its tree before it is resolved, and who set each of the cell's values."""

    cell: Cell
    variant: ConfigVariant
    tree: dict[str, Any]
    sources: _Places


@dataclass(frozen=True)
class _Settled:
    """What the runs of a cell have in common: the configuration as it is frozen, the hash of its base tree, bytes of a
    checkpoint and seconds of a step, the metrics that they write, and from which policy they draw responses."""

    config: Mapping[str, Any]
    base: str
    estimate: tuple[int | None, float | None]
    metrics: Collection[str]
    source: str


def run_specs(planning: Planning, root: Root, spec: ExperimentSpec, seeds: Mapping[str, Collection[int]]) -> RunSpecs:
    """Every run of an experiment. Every breach is added to the problems; its runs are left out.

    seeds: those that each group has now, of `spec.all_seeds`.
    """
    layout = _layout(planning, root, spec)
    names, factors = list(layout.groups), layout.factors

    def reads(group: str, choices: Choices, key: str) -> bool:
        if key == "seed" or key in spec.groups[group].values:
            return False  # experiment.seeds decides, or the group holds it fixed
        variant = _variant(planning, layout, group, choices)
        return variant is not None and variant.has(key)

    values = {**layout.scaled, **layout.fixed, **factors.values}
    for key in design.unread(names, factors.factors, list(values), reads) if names else []:
        if len(names) == len(spec.groups) or not key.startswith("method."):  # else another group may read it
            planning.problems.add(*layout.places[key], brief(values[key]), *_hint(planning, layout, key, names))
    labels = design.short_labels(list(factors.levels))
    entries: list[Entry] = []
    fields = {*Entry.model_fields}  # one set for all: an entry's own takes more memory than the entry
    runs: dict[str, PlannedRun] = {}
    metrics: dict[str, set[str]] = {}
    sources: dict[str, set[str]] = {}
    matched: set[int] = set()
    begins: list[int] = []
    for cell in (cells := design.cells(names, factors.factors, reads)):
        begins.append(len(planning.problems))
        fixed = {key: level for key, level in layout.fixed.items() if reads(cell.group, cell.choices, key)}
        fixed |= {**planning.arguments.choices, **dict(cell.factors), "group": cell.group}
        kept = []
        for seed in spec.all_seeds:
            at_seed = {**fixed, "seed": seed}
            out = [number for number, (rule, _) in enumerate(factors.excluded) if excludes(rule, at_seed)]
            matched.update(out)
            kept += [seed] if not out and seed in seeds[cell.group] else []
        if (treatment := _treatment(planning, layout, cell)) is None:
            continue
        levels = {labels[key]: level for key, level in cell.factors}
        for settled, run in _runs(planning, layout, treatment, kept):
            runs.setdefault(run.id, run)
            entries.append(Entry.model_construct(fields, id=run.id, group=cell.group, seed=run.seed, factors=levels))
            metrics.setdefault(cell.group, set()).update(settled.metrics)
            sources.setdefault(cell.group, set()).add(settled.source)
    if begins and len(planning.problems) > begins[0]:
        _name_cells(planning, root, cells, [*begins, len(planning.problems)])
    if len(names) == len(spec.groups):  # else an exclusion may speak of a group that is not sound
        _refuse_idle_exclusions(planning, layout, matched, bool(entries))
    planned: dict[str, FactorLevels] = {key: {"label": labels[key], "levels": of} for key, of in factors.levels.items()}
    return RunSpecs(tuple(entries), runs, planned, metrics, sources)


# ---------------------------------------------------------------- what the experiment declares


def _layout(planning: Planning, root: Root, spec: ExperimentSpec) -> _Layout:
    composer, problems, given, where = planning.composer, planning.problems, planning.arguments, root.where
    fixed = {key: value for key, value in given.values.items() if key.partition(".")[0] in SECTIONS}
    for name in spec.scales:
        if name not in composer.options("scale"):
            problems.append(command_line.unknown_option(composer, where, f"experiment.scales.{name}", "scale", name))
    scale = root.composed.choices.get("scale")
    of_scale = spec.scales.get(scale or "") or {}
    scaled = {key: value for key, value in of_scale.items() if not composer.is_group(key)}
    chosen: list[str] = []
    for key, choice in of_scale.items():
        if key not in scaled and key not in given.choices:
            chosen += _spelled(planning, where, key, choice, f"experiment.scales.{scale}.{key}")
    factors = _resolved_factors(planning, spec, where)
    places = {
        **{key: (where, f"experiment.scales.{scale}.{key}") for key in scaled},
        **{key: (where, f"experiment.factors.{key}") for key in spec.factors},
        **{key: (where, f"experiment.zip.{name}.{key}") for name, keys in spec.zip.items() for key in keys},
        **{key: (COMMAND_LINE, key) for key in (*fixed, *given.value_factors)},
    }
    resolved = {name: _resolved_group(planning, spec, where, name, group) for name, group in spec.groups.items()}
    groups = {name: group for name, group in resolved.items() if group is not None}
    return _Layout(root, spec, factors, fixed, scaled, chosen, places, groups)


def _resolved_group(
    planning: Planning, spec: ExperimentSpec, where: str, name: str, group: Group
) -> tuple[list[str], Mapping[str, tuple[Any, str]]] | None:
    """A group's overrides of configuration groups, and the values that its methods set beside them, each with its
    method; None (and problems) if it is not sound."""
    composer, problems, given = planning.composer, planning.problems, planning.arguments
    place, at = (where, f"experiment.groups.{name}.method") if given.methods is None else (COMMAND_LINE, "method")
    if command_line.choice_levels(composer, "method", [group.methods], place, at, problems) is None:
        return None
    try:
        combined = application().parts().combine(composer, group.methods, place, at, problems)
    except hydra_compose.ERRORS as error:
        problems.append(variants.not_composed(composer, where, error))
        return None
    pinned: list[str] = []
    known = [f"method/{part}" for part in application().parts().parts(composer)]
    for key, choice in group.choices.items():
        at = f"experiment.groups.{name}.overrides.{key}"
        if key not in known:
            fix = closest(key, known, otherwise=f"use one of {', '.join(known)}")
            problems.add(where, at, brief(choice), "this is not a part of a method", fix)
        elif key in spec.multiplied:
            rule = "a choice that is a factor of the experiment cannot be held fixed"
            problems.add(where, at, brief(choice), rule, "remove it, or remove the factor")
        else:
            pinned += _spelled(planning, where, key, choice, at)
    if combined is None or len(pinned) < len(group.choices):
        return None
    parts = [f"{key}={choice}" for key, choice in given.choices.items() if key.startswith("method/")]
    return [*combined[0], *pinned, *parts], combined[1]


def _spelled(planning: Planning, where: str, key: str, choice: Any, at: str) -> list[str]:
    """A choice of a group, as Hydra's override; none (and problems) if it is not one."""
    levels = command_line.choice_levels(planning.composer, key, [choice], where, at, planning.problems)
    return [f"{key}={level}" for level in levels or []]


def _variant(planning: Planning, layout: _Layout, group: str, choices: Choices) -> ConfigVariant | None:
    overrides = [*layout.chosen, *layout.groups[group][0], *(f"{key}={choice}" for key, choice in choices)]
    return variants.variant(planning, layout.root, overrides)


def _refuse_idle_exclusions(planning: Planning, layout: _Layout, matched: Collection[int], some: bool) -> None:
    for number, (exclusion, at) in enumerate(layout.factors.excluded):
        if number not in matched and at is not None:
            value = brief({key: list(levels) for key, levels in exclusion.items()})
            rule = "this exclusion removes no run: no cell has these levels together"
            planning.problems.add(layout.root.where, at, value, rule, "correct its levels, or remove it")
    if matched and not some and not planning.problems:
        rule, fix = "the exclusions remove every run", "remove some exclusions"
        planning.problems.add(layout.root.where, "experiment.exclude", None, rule, fix)


def _hint(planning: Planning, layout: _Layout, key: str, names: Sequence[str]) -> tuple[str, str]:
    """The rule and the fix for a key that these groups do not read."""
    section, _, rest = key.partition(".")
    readers = variants.readers(planning.composer, rest) if section == "method" else ""
    if readers:
        return f"no group's method reads this key; methods with {readers} do", "add such a group, or remove it"
    given = {**layout.scaled, **layout.fixed, **layout.factors.values}.get(key)
    if (meant := variants.suggested(planning.composer, key, given)) is not None:
        return NO_SUCH_KEY, meant
    above, _, last = key.rpartition(".")
    choices = tuple((group, levels[0]) for group, levels in layout.factors.choices.items())
    known: dict[str, None] = {}
    for variant in filter(None, (_variant(planning, layout, name, choices) for name in names)):
        siblings = hydra_compose.lookup(variant.tree, above)[1]
        known.update(dict.fromkeys(map(str, siblings)) if isinstance(siblings, Mapping) else {})
    fix = closest(last, list(known), f"{above}.", "correct the key, or remove it")
    return f"no group's {'method' if section == 'method' else 'configuration'} reads this key", fix


# ---------------------------------------------------------------- the runs of a cell


def _treatment(planning: Planning, layout: _Layout, cell: Cell) -> _Treatment | None:
    """A cell's choices composed, with its values; a later layer wins. None (and a problem): they do not compose."""
    if (variant := _variant(planning, layout, cell.group, cell.choices)) is None:
        return None
    at_group = f"experiment.groups.{cell.group}.overrides"
    methods = f"{planning.composer.folder.name}/method"
    of_methods = layout.groups[cell.group][1]
    layers = [
        *((key, value, f"{methods}/{method}.yaml", key) for key, (value, method) in of_methods.items()),
        *((key, value, *layout.places[key]) for key, value in layout.scaled.items() if variant.has(key)),
    ]
    for key, value in layout.spec.groups[cell.group].values.items():
        if variant.has(key) and key != "seed":
            layers.append((key, value, layout.root.where, f"{at_group}.{key}"))
        else:
            hint = _hint(planning, layout, key, [cell.group])
            planning.problems.add(layout.root.where, f"{at_group}.{key}", brief(value), *hint)
    layers += [(key, value, *layout.places[key]) for key, value in cell.values]
    layers += [(key, value, COMMAND_LINE, key) for key, value in layout.fixed.items() if variant.has(key)]
    tree = variant.tree
    for key, value, _, _ in layers:
        tree = hydra_compose.assign(tree, key, value)
    return _Treatment(cell, variant, tree, {key: (where, at) for key, _, where, at in layers})


def _runs(
    planning: Planning, layout: _Layout, treatment: _Treatment, seeds: Sequence[int]
) -> Iterator[tuple[_Settled, PlannedRun]]:
    """The runs of a cell; those that could not start are left out, with problems."""
    before, settled = None, None
    interpolates = hydra_compose.interpolates(treatment.tree)
    for seed in seeds:
        config = {**treatment.tree, "seed": seed}
        try:
            config = hydra_compose.resolved(config) if interpolates else config
        except OmegaConfBaseException as error:
            planning.problems.append(variants.not_composed(planning.composer, layout.root.where, error))
            return
        if {**config, "seed": None} != before:  # as a rule, runs differ in nothing else
            before, settled = {**config, "seed": None}, _settled(planning, layout, treatment, config)
            digest_of = None if settled is None else identity.by_seed(settled.base, settled.config)
        if settled is not None and digest_of is not None:
            digest, base = digest_of(seed), settled.base
            run = PlannedRun(identity.run_id(digest), digest, base, settled.config, seed, *settled.estimate)
            yield settled, run


def _settled(planning: Planning, layout: _Layout, treatment: _Treatment, config: Mapping[str, Any]) -> _Settled | None:
    """A resolved configuration, completed; None (and problems) if a run with it could not start."""
    checks, variant, composed = planning.checks, treatment.variant, treatment.variant.composed
    for part, rule, fix in variant.unmet:
        where = _chooser(planning, layout, treatment, part)
        planning.problems.add(where, f"method/{part}", variant.parts[part], rule, fix)
    breaches = [*variant.breaches(config), *checks.refusals(composed, config)]
    _report(planning, layout, treatment, breaches)
    if breaches or variant.unmet:
        return None
    completed, base = checks.settle(composed, config)
    planning.bases[base.hash] = base
    objections = checks.objections(composed, completed, base, planning.cluster)
    _report(planning, layout, treatment, objections)
    if objections:
        return None
    try:
        final = content.settled(completed)
    except OSError as error:
        rule, fix = f"cannot be read: {error.strerror}", "make it readable, or name another"
        planning.problems.add(layout.root.where, "configuration", str(error.filename), rule, fix)
        return None
    estimate = checks.estimate(composed, completed, base)
    return _Settled(final, base.hash, estimate, checks.metrics(composed, completed), drawn_from(completed))


def _chooser(planning: Planning, layout: _Layout, treatment: _Treatment, part: str) -> str:
    """Who chose a part of a group's method: the command line, the experiment, or a method file."""
    composer, given, key = planning.composer, planning.arguments, f"method/{part}"
    group = layout.spec.groups[treatment.cell.group]
    if key in given.choices or key in given.choice_factors:
        return COMMAND_LINE
    if key in layout.factors.choices or key in group.choices:
        return layout.root.where
    chosen = application().parts().chosen
    choices = {method: chosen(composer, composer.compose([f"method={method}"]))[part] for method in group.methods}
    choice = treatment.variant.parts[part]
    likely = [method for method, its_choice in choices.items() if its_choice == choice] or group.methods
    return f"{composer.folder.name}/method/{likely[-1]}.yaml"


def _report(planning: Planning, layout: _Layout, treatment: _Treatment, objections: Sequence[Objection]) -> None:
    """Add objections, each with the place that set its key."""
    for objection in objections:
        where, at = _origin(planning, layout, treatment, objection.key)
        section, _, rest = objection.key.partition(".")
        unknown = objection.rule == NO_SUCH_KEY and section == "method"
        if unknown and (readers := variants.readers(planning.composer, rest)):
            rule = f"the method does not read this key; methods with {readers} do"
            objection = replace(objection, rule=rule, fix="choose that part, or remove the key")
        report(planning.problems, where, objection, at)


def _name_cells(planning: Planning, root: Root, cells: Sequence[Cell], begins: Sequence[int]) -> None:
    """Let a problem of some groups or levels alone name them. begins: where each cell's problems begin, and the end."""
    levels = [{"group": cell.group, **{key: brief(level) for key, level in cell.factors}} for cell in cells]
    every: dict[str, set[str]] = {}
    having: dict[Objection, list[Mapping[str, str]]] = {}
    for cell, (begin, end) in zip(levels, pairwise(begins), strict=True):
        for key, level in cell.items():
            every.setdefault(key, set()).add(level)
        for problem in planning.problems[begin:end]:
            having.setdefault(replace(problem, file=None), []).append(cell)
    declared = root.experiment is not None and planning.arguments.methods is None
    named: dict[Objection, Objection] = {}
    for at in range(begins[0], begins[-1]):
        problem = planning.problems[at]
        if problem not in named:
            own = having[replace(problem, file=None)]
            its = {key: [*dict.fromkeys(cell[key] for cell in own if key in cell)] for key in own[0]}
            some = {key: each for key, each in its.items() if every[key] > {*each}}
            said = " and ".join(
                f"{key}={','.join(each[:_NAMED])}{f' and {len(each) - _NAMED} more' if len(each) > _NAMED else ''}"
                for key, each in some.items()
                if not problem.key.endswith(key) and problem.file not in each
                if key != "group" or _OF_GROUPS not in problem.key
            )
            fix, groups = problem.fix, some.get("group", [])
            if len(groups) == 1 and declared and problem.key.partition(".")[0] in {*SECTIONS} - {"method"}:
                instead = "not on the command line but " if problem.file == COMMAND_LINE else ""
                fix += f"; for this group alone, {instead}under {_OF_GROUPS}.{groups[0]}.overrides"
            rule = f"{problem.rule} (with {said})" if said else problem.rule
            named[problem] = replace(problem, rule=rule, fix=fix)
        planning.problems[at] = named[problem]


def _origin(planning: Planning, layout: _Layout, treatment: _Treatment, key: str) -> tuple[str, str]:
    """Who set a key: the command line, the experiment's factors or overrides, or a configuration file."""
    sources = treatment.sources
    for above in (key, *(known for known in sources if key.startswith(f"{known}."))):
        if above in sources:
            where, at = sources[above]
            return where, at + key.removeprefix(above)
    for below in (known for known in sources if known.startswith(f"{key}.")):  # section.nosuch, of section.nosuch.x=1
        where, at = sources[below]
        return where, at.removesuffix(below.removeprefix(key))
    return planning.composer.source(treatment.variant.overrides, key) or layout.root.where, key


# ---------------------------------------------------------------- factors and exclusions

# The command line has the last word: its sweeps replace a factor's levels, its single values remove the factor, and a
# key that it sets leaves its zip.


@dataclass(frozen=True)
class Factors:
    """The factors that multiply an experiment's groups, and the cells that are left out.

    choices, values: the levels of each key over a configuration group, and of each other key; excluded: each exclusion
    with the key that declares it, or None if the command line changed one of its keys: then it need not match any cell.
    """

    factors: tuple[Factor, ...]
    choices: Mapping[str, list[Any]]
    values: Mapping[str, list[Any]]
    excluded: tuple[tuple[Exclusion, str | None], ...]

    @property
    def levels(self) -> dict[str, list[Any]]:
        """The levels of every key: those over configuration groups come first."""
        return {**self.choices, **self.values}


def _resolved_factors(planning: Planning, spec: ExperimentSpec, where: str) -> Factors:
    """The factors of an experiment, whose file is `where`. Every breach is added to the problems."""
    arguments = planning.arguments
    declared = [
        *(({key: levels}, f"experiment.factors.{key}") for key, levels in spec.factors.items()),
        *((keys, f"experiment.zip.{name}") for name, keys in spec.zip.items()),
    ]
    read = [factor for keys, at in declared if (factor := _factor(planning, keys, where, at)) is not None]
    places = [key for factor in read for key in factor.keys]
    for key in dict.fromkeys(key for key in places if places.count(key) > 1):
        rule = "two factors, or zips, have this key"
        planning.problems.add(where, f"experiment.zip: {key}", None, rule, "keep it in one of them")
    factors = [factor for whole in read if (factor := whole.without(arguments.keys)) is not None]
    factors += [Factor((key,), (), tuple((x,) for x in levels)) for key, levels in arguments.choice_factors.items()]
    factors += [Factor((), (key,), tuple((x,) for x in levels)) for key, levels in arguments.value_factors.items()]
    # A sweep of a declared factor stays in its place.
    factors.sort(key=lambda factor: min(places.index(key) if key in places else len(places) for key in factor.keys))
    choices = {key: factor.levels_of(key) for factor in factors for key in factor.choices}
    values = {key: factor.levels_of(key) for factor in factors for key in factor.values}
    return Factors(tuple(factors), choices, values, _exclusions(planning, spec, {**choices, **values}, where))


def _factor(planning: Planning, keys: Mapping[str, Sequence[Any]], where: str, at: str) -> Factor | None:
    """One declared factor; None (and problems) when a key cannot be one."""
    choices: dict[str, list[Any]] = {}
    values: dict[str, list[Any]] = {}
    for key, levels in keys.items():
        at_key = at if len(keys) == 1 else f"{at}.{key}"
        if key in ("method", "experiment", *command_line.WHOLE_GROUPS):
            fix = "declare one group for each method" if key == "method" else "remove it"
            planning.problems.add(where, at_key, brief(list(levels)), f"{key} is not a factor", fix)
            return None
        if planning.composer.is_group(key):
            chosen = command_line.choice_levels(planning.composer, key, levels, where, at_key, planning.problems)
            if chosen is None:
                return None
            choices[key] = chosen
        elif key.partition(".")[0] in SECTIONS and key != "seed":
            values[key] = list(levels)
        else:
            fix = "declare seeds under experiment.seeds" if key == "seed" else f"use a key of {', '.join(SECTIONS)}"
            planning.problems.add(where, at_key, brief(list(levels)), "this key cannot be a factor", fix)
            return None
    return Factor(tuple(choices), tuple(values), tuple(zip(*choices.values(), *values.values(), strict=True)))


def _exclusions(
    planning: Planning, spec: ExperimentSpec, levels: Mapping[str, Any], where: str
) -> tuple[tuple[Exclusion, str | None], ...]:
    arguments = planning.arguments
    changed = arguments.keys | ({"seed"} if arguments.seeds is not None else set())
    levels = {
        **levels,
        **{key: [value] for key, value in (*arguments.choices.items(), *arguments.values.items())},
        "group": list(spec.groups),
        "seed": list(spec.all_seeds),
    }
    exclusions: list[tuple[Exclusion, str | None]] = []
    for number, declared in enumerate(spec.exclude):
        at = f"experiment.exclude[{number}]"
        read = {key: _alternatives(planning.composer, key, value) for key, value in declared.items()}
        unchanged = [key for key in read if key not in changed]
        if all([_known(planning, key, read[key], levels, where, f"{at}.{key}") for key in unchanged]):
            exclusions.append((read, None if changed & set(declared) else at))
    return tuple(exclusions)


def _alternatives(composer: Composer, key: str, value: Any) -> tuple[Any, ...]:
    """The levels that an exclusion names for a key: a list of them, or one."""
    if application().parts().is_list_part(composer, key):
        several = isinstance(value, (list, tuple)) and any(isinstance(choice, (list, tuple)) for choice in value)
        choices = list(value) if several else [value]
        return tuple(spelled([choice] if isinstance(choice, str) else map(str, choice)) for choice in choices)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _known(planning: Planning, key: str, named: Sequence[Any], levels: Mapping[str, Any], where: str, at: str) -> bool:
    """Whether an exclusion names a factor and its levels."""
    if key not in levels:
        rule = f"not a factor of this experiment; it has {', '.join(levels)}"
        fix = closest(key, list(levels), otherwise="name a factor, group or seed")
        planning.problems.add(where, at, brief(list(named)), rule, fix)
        return False
    unknown = [other for other in named if not any(equal(other, level) for level in levels[key])]
    for other in unknown:
        names = list(map(str, levels[key]))
        fix = closest(str(other), names, otherwise="correct the level, or remove the exclusion")
        rule = f"not a level of {key}; its levels are {', '.join(names)}"
        planning.problems.add(where, at, brief(other), rule, fix)
    return not unknown

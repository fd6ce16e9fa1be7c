"""The runs of one experiment: its cells and seeds, composed, checked, identified."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from analysis.spec.metric_catalog import WIN_RATE, drawn_from
from analysis.spec.validation import NO_SUCH_KEY, closest
from launcher.config import content, hydra_compose, identity, verl_tree
from launcher.config.verl_tree import Base
from launcher.planning import design, method_parts
from launcher.planning import overrides as command_line
from launcher.planning.design import Cell, Choices, Exclusion, Factor, distinct, equal
from launcher.planning.experiment_spec import ExperimentSpec, Group
from launcher.planning.overrides import COMMAND_LINE
from launcher.planning.plan import Entry, PlannedRun
from launcher.planning.schema import brief, report
from launcher.planning.variants import SECTIONS, ConfigVariant, PlanningContext
from launcher.worker import preflight
from launcher.worker.preflight import Objection

_Sources = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class RunSpecs:
    """The entries of an experiment, their runs by id, the levels of each factor by key, and the metrics that some run
    of each group writes. sources: from which policies each group draws its responses.
    """

    entries: tuple[Entry, ...]
    runs: Mapping[str, PlannedRun]
    levels: Mapping[str, list[Any]]
    metrics: Mapping[str, Collection[str]]
    sources: Mapping[str, Collection[str]]


def run_specs(
    context: PlanningContext, experiment: str | None, spec: ExperimentSpec, seeds: Mapping[str, Collection[int]]
) -> RunSpecs:
    """Every run of an experiment. Every breach is added to the context's problems; its runs are left out.

    seeds: those that each group has now, of `spec.all_seeds`.
    """
    return _Builder(context, experiment, spec, seeds).build()


class _Builder:
    """Composes and checks the runs of one experiment."""

    def __init__(
        self,
        context: PlanningContext,
        experiment: str | None,
        spec: ExperimentSpec,
        seeds: Mapping[str, Collection[int]],
    ) -> None:
        self._context, self._experiment, self._spec, self._seeds = context, experiment, spec, seeds
        self._composer, self._problems, self._arguments = context.composer, context.problems, context.arguments
        self._where = context.file_of(experiment)
        self._fixed = {key: one for key, one in self._arguments.values.items() if key.partition(".")[0] in SECTIONS}
        for name in spec.scales:
            if name not in self._composer.options("scale"):
                at = f"experiment.scales.{name}"
                command_line.unknown_option(self._composer, self._where, at, "scale", name, self._problems)
        self._scale = self._composer.compose(context.selection(experiment)).choices.get("scale")
        scaled = spec.scales.get(self._scale or "") or {}
        #: What the scale sets for this experiment: values, and choices of whole groups, as Hydra's overrides.
        self._scaled = {key: value for key, value in scaled.items() if not self._composer.is_group(key)}
        self._scaled_choices = self._chosen_by_scale(scaled)
        self._factors = _resolved_factors(context, spec, self._where)
        pinned = [key for group in spec.groups.values() for key in group.values]
        self._parts_as_values = self._refuse_parts([*self._factors.values, *self._fixed, *self._scaled, *pinned])
        #: Of each sound group: its overrides of configuration groups, and the values that its methods set beside them.
        self._groups = self._resolve_groups()
        self._written: dict[str, set[str]] = {}
        self._sources: dict[str, set[str]] = {}

    def build(self) -> RunSpecs:
        self._refuse_unread()
        labels = design.short_labels(list(self._factors.levels))
        entries: list[Entry] = []
        runs: dict[str, PlannedRun] = {}
        matched: set[int] = set()
        for cell in design.cells(list(self._groups), self._factors.factors, self._reads):
            levels = {labels[key]: level for key, level in cell.factors}
            for seed, run in self._runs_of(cell, self._seeds_of(cell, matched)):
                runs.setdefault(run.id, run)
                entries.append(Entry.model_construct(id=run.id, group=cell.group, seed=seed, factors=levels))
        self._refuse_idle_exclusions(matched, bool(entries))
        return RunSpecs(tuple(entries), runs, self._factors.levels, self._written, self._sources)

    # ------------------------------------------------------------ groups

    def _chosen_by_scale(self, scaled: Mapping[str, Any]) -> list[str]:
        """The choices of whole groups that the scale makes, but for those that the command line makes."""
        chosen: list[str] = []
        for key, choice in scaled.items():
            if self._composer.is_group(key) and key not in self._arguments.choices:
                chosen += self._spelled(key, choice, f"experiment.scales.{self._scale}.{key}")
        return chosen

    def _spelled(self, key: str, choice: Any, at: str) -> list[str]:
        """A choice of a group, as Hydra's override; none (and problems) if it is not one."""
        found = command_line.choice_levels(self._composer, key, [choice], self._where, at, self._problems)
        return [f"{key}={one}" for one in found or []]

    def _resolve_groups(self) -> dict[str, tuple[list[str], dict[str, tuple[Any, str]]]]:
        parts = [f"{key}={choice}" for key, choice in self._arguments.choices.items() if key.startswith("method/")]
        resolved: dict[str, tuple[list[str], dict[str, tuple[Any, str]]]] = {}
        for name, group in self._spec.groups.items():
            where, at = self._where, f"experiment.groups.{name}.method"
            if self._arguments.methods is not None:
                where, at = COMMAND_LINE, "method"
            unknown = [method for method in group.methods if method not in self._composer.options("method")]
            for method in unknown:
                command_line.unknown_option(self._composer, where, at, "method", method, self._problems)
            if unknown:
                continue
            try:
                combined = method_parts.combine(self._composer, group.methods, where, at, self._problems)
            except hydra_compose.ERRORS as error:
                self._context.does_not_compose(self._where, error)
                continue
            pinned = self._pinned(name, group)
            if combined is not None and pinned is not None:
                resolved[name] = ([*combined[0], *pinned, *parts], combined[1])
        return resolved

    def _pinned(self, name: str, group: Group) -> list[str] | None:
        """The choices of parts that a group's overrides make, for Hydra; None (and problems) if one is not sound."""
        pinned: list[str] = []
        known = [f"method/{part}" for part in method_parts.parts(self._composer)]
        for key, choice in group.choices.items():
            at = f"experiment.groups.{name}.overrides.{key}"
            if key not in known:
                fix = closest(key, known, otherwise=f"use one of {', '.join(known)}")
                self._problems.add(self._where, at, brief(choice), "this is not a part of a method", fix)
            elif key in self._spec.multiplied:
                rule = "a choice that is a factor of the experiment cannot be held fixed"
                self._problems.add(self._where, at, brief(choice), rule, "remove it, or remove the factor")
            else:
                pinned += self._spelled(key, choice, at)
        return pinned if len(pinned) == len(group.choices) else None

    def _variant(self, group: str, choices: Choices) -> ConfigVariant | None:
        overrides = [*self._scaled_choices, *self._groups[group][0], *(f"{key}={choice}" for key, choice in choices)]
        return self._context.variant(self._experiment, overrides)

    def _reads(self, group: str, choices: Choices, key: str) -> bool:
        if key == "seed" or key in self._spec.groups[group].values:
            return False  # experiment.seeds decides, or the group holds it fixed
        variant = self._variant(group, choices)
        return variant is not None and variant.has(key)

    # ------------------------------------------------------------ exclusions

    def _seeds_of(self, cell: Cell, matched: set[int]) -> list[int]:
        """The cell's seeds that no exclusion leaves out; the numbers of the exclusions that did are added."""
        fixed = {key: level for key, level in self._fixed.items() if self._reads(cell.group, cell.choices, key)}
        fixed |= {**self._arguments.choices, **dict(cell.factors), "group": cell.group}
        kept = []
        for seed in self._spec.all_seeds:
            rules = [rule for rule, _ in self._factors.excluded]
            out = {number for number, rule in enumerate(rules) if rule.matches({**fixed, "seed": seed})}
            matched |= out
            if not out and seed in self._seeds[cell.group]:
                kept.append(seed)
        return kept

    def _refuse_idle_exclusions(self, matched: set[int], some: bool) -> None:
        if len(self._groups) < len(self._spec.groups):
            return  # a group that is not sound may be the one that an exclusion speaks of
        for number, (rule, at) in enumerate(self._factors.excluded):
            if number not in matched and at is not None:
                value = brief({key: list(own) for key, own in rule.levels.items()})
                why = "this exclusion removes no run: no cell has these levels together"
                self._problems.add(self._where, at, value, why, "correct it, or remove it")
        if matched and not some and not self._problems:
            at, rule_ = "experiment.exclude", "the exclusions remove every run"
            self._problems.add(self._where, at, None, rule_, "remove some exclusions")

    # ------------------------------------------------------------ keys that nothing reads

    def _refuse_parts(self, keys: Sequence[str]) -> set[str]:
        refused = set()
        for key in keys:
            section, _, rest = key.partition(".")
            part = rest.partition(".")[0]
            if section == "method" and rest.count(".") < 2 and part in method_parts.parts(self._composer):
                refused.add(key)
                options = ", ".join(self._composer.options(f"method/{part}"))
                rule = "a part of a method is chosen as a group, not set as a value"
                fix = f"write method/{part}=NAME; available: {options}"
                self._problems.add(self._source(key), key, None, rule, fix)
        return refused

    def _source(self, key: str) -> str:
        return COMMAND_LINE if key in self._fixed or key in self._arguments.value_factors else self._where

    def _refuse_unread(self) -> None:
        single = {**self._scaled, **self._fixed}
        values = {**single, **self._factors.values}
        names = list(self._groups)
        for key in design.unread(names, self._factors.factors, list(values), self._reads) if names else []:
            if key.startswith("method.") and len(names) < len(self._spec.groups):
                continue  # a group that does not compose may be the one that reads it
            at = f"experiment.scales.{self._scale}.{key}"
            if self._source(key) == COMMAND_LINE:
                at = key
            elif key in self._factors.values:
                at = self._declared_at(key)
            self._problems.add(self._source(key), at, brief(values[key]), *self._hint(key, names))

    def _hint(self, key: str, names: Sequence[str]) -> tuple[str, str]:
        """The rule and the fix for a key that these groups do not read."""
        section, _, rest = key.partition(".")
        readers = self._context.readers(rest) if section == "method" else ""
        if readers:
            return f"no group's method reads this key; methods with {readers} do", "add such a group, or remove it"
        given = self._factors.values.get(key, {**self._scaled, **self._fixed}.get(key))
        if (meant := self._context.suggested(key, given)) is not None:
            return NO_SUCH_KEY, meant
        above, _, last = key.rpartition(".")
        choices = tuple((one, levels[0]) for one, levels in self._factors.choices.items())
        known: dict[str, None] = {}
        for variant in filter(None, (self._variant(name, choices) for name in names)):
            siblings = hydra_compose.lookup(variant.tree, above)[1]
            known.update(dict.fromkeys(map(str, siblings)) if isinstance(siblings, Mapping) else {})
        fix = closest(last, list(known), f"{above}.", "correct the key, or remove it")
        return f"no group's {'method' if section == 'method' else 'configuration'} reads this key", fix

    def _declared_at(self, key: str) -> str:
        """The key under which the experiment's file declares a factor."""
        zips = [name for name, keys in self._spec.zip.items() if key in keys]
        return f"experiment.zip.{zips[0]}.{key}" if zips else f"experiment.factors.{key}"

    # ------------------------------------------------------------ runs

    def _runs_of(self, cell: Cell, seeds: Sequence[int]) -> list[tuple[int, PlannedRun]]:
        variant = self._variant(cell.group, cell.choices)
        if variant is None:
            return []
        base = self._context.base(variant, self._where)
        tree, sources = self._values_of(cell, variant)
        runs: list[tuple[int, PlannedRun]] = []
        can_start: bool | None = None
        arithmetic: tuple[int | None, float | None] = None, None
        before: Mapping[str, Any] = {}
        settled: dict[str, Any] = {}
        for seed in seeds:
            try:
                config = hydra_compose.resolved({**tree, "seed": seed})
            except OmegaConfBaseException as error:
                self._context.does_not_compose(self._where, error)
                return []
            sound = [self._parts_fit(variant, cell.group), self._is_sound(variant, config, sources)]
            if base is None or not isinstance(config["verl"], Mapping):
                continue
            config["verl"], refused = self._context.differences(base, config, variant.verl_keys)
            for bad in refused:
                where, at = self._origin(bad.key, variant, sources)
                report(self._problems, where, bad, at)
            if refused or not all(sound):
                continue
            config = preflight.settled(config)
            if can_start is None:  # whatever the seed
                can_start = self._can_start(variant, config, base, sources)
                if can_start:
                    arithmetic = self._context.checkpoint_and_step(config, base, variant.architecture)
                evaluated = bool(config["trainer"].get("eval_every"))
                of_reward = self._context.task(config["task"]).metrics(evaluated)
                of_scores = preflight.score_metrics(config["trainer"]) if evaluated else set()
                of_judges = {WIN_RATE} if evaluated and config["trainer"].get("eval_responses") else set()
                written = variant.promises.written(config) | of_reward | of_scores | of_judges
                self._written.setdefault(cell.group, set()).update(written)
                self._sources.setdefault(cell.group, set()).add(drawn_from(config))
            if can_start:
                try:
                    if {**config, "seed": None} != before:
                        before, settled = {**config, "seed": None}, content.settled(config)
                    config = {**settled, "seed": config["seed"]}
                except OSError as error:
                    rule, fix = f"cannot be read: {error.strerror}", "make it readable, or name another"
                    self._problems.add(self._where, "configuration", str(error.filename), rule, fix)
                    return runs
                digest = identity.identity(base.hash, config)
                runs.append((seed, PlannedRun(identity.run_id(digest), digest, base.hash, config, *arithmetic)))
        return runs

    def _values_of(self, cell: Cell, variant: ConfigVariant) -> tuple[dict[str, Any], _Sources]:
        """The variant's tree with the cell's values in it, and who set each: (where, key). A later layer wins."""
        group, at_group = self._spec.groups[cell.group], f"experiment.groups.{cell.group}.overrides"
        methods, scale = f"{self._composer.folder.name}/method", f"experiment.scales.{self._scale}"
        layers = [
            *((key, value, f"{methods}/{own}.yaml", key) for key, (value, own) in self._groups[cell.group][1].items()),
            *((key, value, self._where, f"{scale}.{key}") for key, value in self._scaled.items() if variant.has(key)),
        ]
        for key, value in group.values.items():
            if variant.has(key) and key != "seed":
                layers.append((key, value, self._where, f"{at_group}.{key}"))
            else:
                self._problems.add(self._where, f"{at_group}.{key}", brief(value), *self._hint(key, [cell.group]))
        for key, value in cell.values:
            command = key in self._arguments.value_factors
            layers.append((key, value, self._source(key), key if command else self._declared_at(key)))
        layers += [(key, value, COMMAND_LINE, key) for key, value in self._fixed.items() if variant.has(key)]
        tree = variant.tree
        for key, value, _, _ in layers:
            tree = hydra_compose.assign(tree, key, value)
        return tree, {key: (where, at) for key, _, where, at in layers}

    def _parts_fit(self, variant: ConfigVariant, group: str) -> bool:
        """Whether the chosen parts have what they need of each other."""
        for part, rule, fix in variant.unmet:
            where = self._chooser(variant, self._spec.groups[group], part)
            self._problems.add(where, f"method/{part}", variant.parts[part], rule, fix)
        return not variant.unmet

    def _chooser(self, variant: ConfigVariant, group: Group, part: str) -> str:
        """Who chose a part of a group's method: the command line, the experiment, or a method file."""
        key = f"method/{part}"
        if key in self._arguments.choices or key in self._arguments.choice_factors:
            return COMMAND_LINE
        if key in self._factors.choices or key in group.choices:
            return self._where
        choices = {method: method_parts.chosen_parts(self._composer, method)[part] for method in group.methods}
        likely = [method for method, choice in choices.items() if choice == variant.parts[part]] or group.methods
        return f"{self._composer.folder.name}/method/{likely[-1]}.yaml"

    def _is_sound(self, variant: ConfigVariant, config: Mapping[str, Any], sources: _Sources) -> bool:
        breaches = list(variant.breaches(config))
        for breach in breaches:
            if breach.key in self._parts_as_values:
                continue
            where, at = self._origin(breach.key, variant, sources)
            section, _, rest = breach.key.partition(".")
            readers = self._context.readers(rest) if breach.rule == NO_SUCH_KEY and section == "method" else ""
            if readers:
                rule = f"the method does not read this key; methods with {readers} do"
                self._problems.add(where, at, brief(breach.value), rule, "choose that part, or remove the key")
            else:
                report(self._problems, where, breach, at)
        return not breaches

    def _can_start(self, variant: ConfigVariant, config: Mapping[str, Any], base: Base, sources: _Sources) -> bool:
        """Whether the task works, and the files' requirements of each other are met."""
        task = self._context.task(config["task"])
        tree = verl_tree.merged(base.tree, config["verl"])
        objections = [*task.objections, *self._context.choices(variant, config["method"])]
        if not objections:
            section = {**config["task"], "functions": list(task.functions)}
            known = {**config, "task": section, "verl": tree, "cluster": self._context.cluster}
            for key, rule, fix in variant.promises.unmet(known):
                key = "task.name" if key == "task.functions" else key
                objections.append(Objection(key, hydra_compose.lookup(known, key)[1], rule, fix))
        if not objections:
            prompts = self._context.prompts(config, tree["data"]["max_prompt_length"])
            objections = [
                *([prompts] if prompts is not None else []),
                *self._context.sizes(config, base, variant.architecture),
            ]
        for objection in objections:
            where, at = self._origin(objection.key, variant, sources)
            if objection.file is not None:
                where, at = objection.file, objection.key
            value = None if objection.file is not None and objection.value is None else brief(objection.value)
            self._problems.add(where, at, value, objection.rule, objection.fix)
        return not objections

    def _origin(self, key: str, variant: ConfigVariant, sources: _Sources) -> tuple[str, str]:
        """Who set a key: the command line, the experiment's factors or overrides, or a configuration file."""
        for prefix in (key, *(known for known in sources if key.startswith(f"{known}."))):
            if prefix in sources:
                where, at = sources[prefix]
                return where, at + key.removeprefix(prefix)
        below = next((known for known in sources if known.startswith(f"{key}.")), None)
        if below is not None:  # verl.nosuch, of verl.nosuch.x=1
            where, at = sources[below]
            return where, at.removesuffix(below.removeprefix(key))
        return self._composer.source(variant.overrides, key) or self._where, key


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


def _resolved_factors(context: PlanningContext, spec: ExperimentSpec, where: str) -> Factors:
    """The factors of an experiment, whose file is `where`. Every breach is added to the context's problems."""
    arguments = context.arguments
    declared = [
        *(({key: levels}, f"experiment.factors.{key}") for key, levels in spec.factors.items()),
        *((keys, f"experiment.zip.{name}") for name, keys in spec.zip.items()),
    ]
    read = [factor for keys, at in declared if (factor := _factor(context, keys, where, at)) is not None]
    places = [key for factor in read for key in factor.keys]
    for key in dict.fromkeys(key for key in places if places.count(key) > 1):
        rule = "two factors, or zips, have this key"
        context.problems.add(where, f"experiment.zip: {key}", None, rule, "keep it in one of them")
    factors = [factor for whole in read if (factor := whole.without(arguments.keys)) is not None]
    factors += [Factor((key,), (), tuple((one,) for one in own)) for key, own in arguments.choice_factors.items()]
    factors += [Factor((), (key,), tuple((one,) for one in own)) for key, own in arguments.value_factors.items()]
    # A sweep of a declared factor stays in its place.
    factors.sort(key=lambda factor: min(places.index(key) if key in places else len(places) for key in factor.keys))
    choices, values = (
        {
            key: distinct([level[factor.keys.index(key)] for level in factor.levels])
            for factor in factors
            for key in getattr(factor, kind)
        }
        for kind in ("choices", "values")
    )
    return Factors(tuple(factors), choices, values, _exclusions(context, spec, {**choices, **values}, where))


def _factor(context: PlanningContext, keys: Mapping[str, Sequence[Any]], where: str, at: str) -> Factor | None:
    """One declared factor; None (and problems) when a key cannot be one."""
    choices: dict[str, list[Any]] = {}
    values: dict[str, list[Any]] = {}
    for key, levels in keys.items():
        at_key = at if len(keys) == 1 else f"{at}.{key}"
        rule = fix = None
        if key in ("method", "experiment", *command_line.WHOLE_GROUPS):
            fix = "declare one group for each method" if key == "method" else "remove it"
            rule = f"{key} is not a factor"
        elif context.composer.is_group(key):
            spelled = command_line.choice_levels(context.composer, key, levels, where, at_key, context.problems)
            if spelled is None:
                return None
            choices[key] = spelled
        elif key.partition(".")[0] in SECTIONS and key != "seed":
            values[key] = list(levels)
        else:
            fix = "declare seeds under experiment.seeds" if key == "seed" else f"use a key of {', '.join(SECTIONS)}"
            rule = "this key cannot be a factor"
        if rule is not None and fix is not None:
            context.problems.add(where, at_key, brief(list(levels)), rule, fix)
            return None
    columns = [*choices.values(), *values.values()]
    return Factor(tuple(choices), tuple(values), tuple(zip(*columns, strict=True)))


def _exclusions(
    context: PlanningContext, spec: ExperimentSpec, levels: Mapping[str, Any], where: str
) -> tuple[tuple[Exclusion, str | None], ...]:
    arguments = context.arguments
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
        read = {key: _alternatives(context, key, value) for key, value in declared.items()}
        unchanged = [key for key in read if key not in changed]
        if all([_known(context, key, read[key], levels, where, f"{at}.{key}") for key in unchanged]):
            exclusions.append((Exclusion(read), None if changed & set(declared) else at))
    return tuple(exclusions)


def _alternatives(context: PlanningContext, key: str, value: Any) -> tuple[Any, ...]:
    """The levels that an exclusion names for a key: a list of them, or one."""
    if method_parts.is_list_part(context.composer, key):
        several = isinstance(value, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in value)
        choices = list(value) if several else [value]
        return tuple(method_parts.spelled([one] if isinstance(one, str) else map(str, one)) for one in choices)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _known(
    context: PlanningContext, key: str, own: Sequence[Any], levels: Mapping[str, Any], where: str, at: str
) -> bool:
    """Whether an exclusion names a factor and its levels."""
    if key not in levels:
        rule = f"not a factor of this experiment; it has {', '.join(levels)}"
        fix = closest(key, list(levels), otherwise="name a factor, group or seed")
        context.problems.add(where, at, brief(list(own)), rule, fix)
        return False
    unknown = [one for one in own if not any(equal(one, level) for level in levels[key])]
    for one in unknown:
        names = list(map(str, levels[key]))
        fix = closest(str(one), names, otherwise="correct the level, or remove the exclusion")
        rule = f"not a level of {key}; its levels are {', '.join(names)}"
        context.problems.add(where, at, brief(one), rule, fix)
    return not unknown

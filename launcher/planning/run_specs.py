"""The cells of one experiment: composed, checked, identified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from launcher.config import hydra_compose, identity, schema
from launcher.config.hydra_compose import Composer
from launcher.errors import Problem
from launcher.planning import design, factors, method_parts
from launcher.planning import overrides as command_line
from launcher.planning.design import Cell, Choices
from launcher.planning.experiment_spec import Declared, Group
from launcher.planning.overrides import COMMAND_LINE
from launcher.planning.plan import Entry, PlannedRun
from launcher.planning.variants import SECTIONS, Shape, Workshop, does_not_compose
from launcher.text import nearest


class Cells:
    """The cells of one experiment, composed and checked."""

    def __init__(self, workshop: Workshop, experiment: str | None, wanted: Declared) -> None:
        self._workshop, self._experiment, self._wanted = workshop, experiment, wanted
        self.runs: dict[str, PlannedRun] = {}
        arguments, composer = workshop.arguments, workshop.composer
        self._fixed = {key: value for key, value in arguments.values.items() if key.partition(".")[0] in SECTIONS}
        self._scale, self._scaled = self._resolve_scale()
        self._factors = factors.resolve(workshop, wanted)
        self.levels = self._factors.levels
        self._choices, self._values = self._factors.choices, self._factors.values
        pinned = [key for group in wanted.groups.values() for key in group.overrides]
        self._refused: set[str] = set()
        for key in [*self._values, *self._fixed, *self._scaled, *pinned]:
            self._refuse_parts(key, composer)
        self._groups = self._resolve_groups()

    def _resolve_scale(self) -> tuple[str | None, Mapping[str, Any]]:
        """The chosen scale, and the values that the experiment gives at it."""
        composer, wanted = self._workshop.composer, self._wanted
        for name in wanted.scales:
            if name not in composer.options("scale"):
                at = f"experiment.scales.{name}"
                self._workshop.problems.append(command_line.unknown_option(composer, wanted.where, at, "scale", name))
        scale = composer.compose(self._workshop.selection(self._experiment)).choices.get("scale")
        return scale, wanted.scales.get(scale or "", {})

    def _refuse_parts(self, key: str, composer: Composer) -> None:
        path = key.split(".")
        if path[0] == "method" and len(path) in (2, 3) and path[1] in method_parts.parts(composer):
            part = path[1]
            self._refused.add(key)
            rule = "a part of a method is chosen as a group, not set as a value"
            self._workshop.problems.append(
                Problem(
                    self._source(key),
                    key,
                    None,
                    rule,
                    f"write method/{part}=NAME; available: {', '.join(composer.options(f'method/{part}'))}",
                )
            )

    def _source(self, key: str, group: Group | None = None) -> str:
        if key in self._fixed or key in self._workshop.arguments.value_factors:
            return COMMAND_LINE
        return self._wanted.where

    def _resolve_groups(self) -> dict[str, tuple[list[str], dict[str, tuple[Any, str]]]]:
        """Each sound group's overrides of configuration groups, and the values that its methods set beside them."""
        composer, problems = self._workshop.composer, self._workshop.problems
        options = composer.options("method")
        parts = [
            f"{key}={choice}" for key, choice in self._workshop.arguments.choices.items() if key.startswith("method/")
        ]
        found: dict[str, tuple[list[str], dict[str, tuple[Any, str]]]] = {}
        for group in self._wanted.groups.values():
            where, at = self._wanted.where, f"experiment.groups.{group.name}.method"
            if self._workshop.arguments.methods is not None:
                where, at = COMMAND_LINE, "method"
            unknown = [method for method in group.methods if method not in options]
            problems.extend(command_line.unknown_option(composer, where, at, "method", one) for one in unknown)
            if unknown:
                continue
            try:
                combined = method_parts.combine(composer, group.methods, where, at, problems)
            except hydra_compose.ERRORS as error:
                problems.append(does_not_compose(self._wanted.where, error))
                continue
            pinned = self._pinned(group)
            if combined is not None and pinned is not None:
                overrides, values = combined
                found[group.name] = ([*overrides, *pinned, *parts], values)
        return found

    def _pinned(self, group: Group) -> list[str] | None:
        """The choices of parts that a group's overrides make, for Hydra; None (and problems) if one is not sound."""
        composer, problems, where = self._workshop.composer, self._workshop.problems, self._wanted.where
        found: list[str] = []
        for key, choice in group.choices.items():
            at = f"experiment.groups.{group.name}.overrides.{key}"
            value = schema.brief(choice)
            known = [f"method/{part}" for part in method_parts.parts(composer)]
            if key not in known:
                close = nearest(key, known)
                fix = f"write {close}" if close else f"use one of {', '.join(known)}"
                problems.append(Problem(where, at, value, "this is no part of a method", fix))
            elif key in self._wanted.multiplied:
                rule = "a choice that is a factor of the experiment cannot be held fixed"
                problems.append(Problem(where, at, value, rule, "remove it, or the factor"))
            else:
                spelled = command_line.choice_levels(composer, key, [choice], where, at, problems)
                found.extend(f"{key}={one}" for one in spelled or [])
        return found if len(found) == len(group.choices) else None

    def _shape(self, group: str, choices: Choices) -> Shape | None:
        overrides = [*self._groups[group][0], *(f"{key}={choice}" for key, choice in choices)]
        return self._workshop.shape(self._experiment, overrides)

    def _reads(self, group: str, choices: Choices, key: str) -> bool:
        if key == "seed" or key in self._wanted.groups[group].overrides:
            return False  # experiment.seeds decides, or the group holds it fixed
        shape = self._shape(group, choices)
        return shape is not None and shape.has(key)

    def entries(self) -> list[Entry]:
        """Every entry of the experiment; its runs are added to `runs`, its problems to the planner's."""
        names = list(self._groups)
        labels = design.short_labels(list(self.levels))
        self._unread(names)
        found: list[Entry] = []
        matched: set[int] = set()
        for cell in design.cells(names, self._factors.factors, self._reads):
            levels = {labels[key]: level for key, level in cell.factors}
            for seed, run in self._runs_of(cell, self._kept(cell, matched)):
                self.runs.setdefault(run.id, run)
                found.append(Entry(run.id, cell.group, seed, levels))
        self._idle_exclusions(names, matched, bool(found))
        return found

    def _kept(self, cell: Cell, matched: set[int]) -> list[int]:
        """The cell's seeds that no exclusion leaves out; the numbers of the exclusions that did are added."""
        if not self._factors.excluded:
            return list(self._wanted.seeds)
        fixed = {key: level for key, level in self._fixed.items() if self._reads(cell.group, cell.choices, key)}
        fixed |= {**self._workshop.arguments.choices, **dict(cell.factors), "group": cell.group}
        kept = []
        for seed in self._wanted.seeds:
            rules = [rule for rule, _ in self._factors.excluded]
            out = {number for number, rule in enumerate(rules) if rule.matches({**fixed, "seed": seed})}
            matched |= out
            if not out:
                kept.append(seed)
        return kept

    def _idle_exclusions(self, names: list[str], matched: set[int], some: bool) -> None:
        if len(names) < len(self._wanted.groups):
            return  # a group that is not sound may be the one that an exclusion speaks of
        for number, (rule, at) in enumerate(self._factors.excluded):
            if number not in matched and at is not None:
                value = schema.brief({key: list(own) for key, own in rule.levels.items()})
                fix = "correct it, or remove it"
                why = "this exclusion leaves out nothing: no cell has these levels together"
                self._workshop.problems.append(Problem(self._wanted.where, at, value, why, fix))
        if matched and not some and not self._workshop.problems:
            fix = "remove some exclusions"
            rule_ = "the exclusions leave no run"
            self._workshop.problems.append(Problem(self._wanted.where, "experiment.exclude", None, rule_, fix))

    def _unread(self, names: list[str]) -> None:
        wanted = {key: [value] for key, value in self._scaled.items()}
        wanted |= {**self._values, **{key: [value] for key, value in self._fixed.items()}}
        sound = len(names) == len(self._wanted.groups)
        for key in design.unread(names, self._factors.factors, list(wanted), self._reads) if names else []:
            if key.startswith("method.") and not sound:
                continue  # a group that does not compose may be the one that reads it
            command = key in self._fixed or key in self._workshop.arguments.value_factors
            factor = key in self._values
            at = key if command else self._at(key) if factor else f"experiment.scales.{self._scale}.{key}"
            value = schema.brief(wanted[key] if factor else wanted[key][0])
            rule, fix = self._hint(key, names)
            self._workshop.problems.append(Problem(self._source(key), at, value, rule, fix))

    def _hint(self, key: str, names: list[str]) -> tuple[str, str]:
        section, _, rest = key.partition(".")
        if section == "method":
            owners = self._workshop.owners(rest)
            if owners:
                return f"no group's method reads it; it is read with {owners}", "add such a group, or remove it"
        above, _, last = key.rpartition(".")
        known: dict[str, None] = {}
        for name in names:
            shape = self._shape(name, tuple((one, levels[0]) for one, levels in self._choices.items()))
            found = hydra_compose.lookup(shape.tree, above)[1] if shape is not None else None
            known.update(dict.fromkeys(map(str, found)) if isinstance(found, Mapping) else {})
        near = nearest(last, list(known))
        reader = "method" if section == "method" else "configuration"
        return f"no group's {reader} reads it", f"write {above}.{near}" if near else "correct the key, or remove it"

    def _at(self, key: str) -> str:
        """Where the experiment's file declares a factor."""
        zips = [name for name, keys in self._wanted.zips.items() if key in keys]
        return f"experiment.zip.{zips[0]}.{key}" if zips else f"experiment.factors.{key}"

    def _runs_of(self, cell: Cell, seeds: Sequence[int]) -> list[tuple[int, PlannedRun]]:
        shape = self._shape(cell.group, cell.choices)
        if shape is None:
            return []
        group = self._wanted.groups[cell.group]
        base = self._workshop.base(shape, self._wanted.where)
        tree, sources = self._values_of(cell, shape, group)
        found: list[tuple[int, PlannedRun]] = []
        for seed in seeds:
            try:
                config = hydra_compose.resolved({**tree, "seed": seed})
            except OmegaConfBaseException as error:
                self._workshop.problems.append(does_not_compose(self._wanted.where, error))
                return []
            fitting, sound = self._fits(shape, group), self._check(shape, config, sources)
            if base is None or not isinstance(config["verl"], Mapping):
                continue
            pruned, refused = self._workshop.differences(base, config, shape.verl_keys)
            for bad in refused:
                where, at = self._blame(bad.key, shape, sources)
                self._workshop.problems.append(Problem(where, at, schema.brief(bad.value), bad.rule, bad.fix))
            if refused or not fitting or not sound:
                continue
            config["verl"] = pruned
            digest = identity.identity(base.hash, config)
            found.append((seed, PlannedRun(identity.run_id(digest), digest, base.hash, config)))
        return found

    def _values_of(self, cell: Cell, shape: Shape, group: Group) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
        """The shape's tree with the cell's values in it, and who set each: (where, key)."""
        tree = shape.tree
        sources: dict[str, tuple[str, str]] = {}
        for key, (value, method) in self._groups[cell.group][1].items():
            tree = hydra_compose.assign(tree, key, value)
            sources[key] = (f"{self._workshop.composer.folder.name}/method/{method}.yaml", key)
        for key, value in self._scaled.items():
            if shape.has(key):
                tree = hydra_compose.assign(tree, key, value)
                sources[key] = (self._wanted.where, f"experiment.scales.{self._scale}.{key}")
        for key, value in group.overrides.items():
            at = f"experiment.groups.{group.name}.overrides.{key}"
            if not shape.has(key) or key == "seed":
                rule, fix = self._hint(key, [cell.group])
                self._workshop.problems.append(Problem(self._wanted.where, at, schema.brief(value), rule, fix))
                continue
            tree = hydra_compose.assign(tree, key, value)
            sources[key] = (self._wanted.where, at)
        for key, value in cell.values:
            tree = hydra_compose.assign(tree, key, value)
            command = key in self._workshop.arguments.value_factors
            sources[key] = (COMMAND_LINE, key) if command else (self._wanted.where, self._at(key))
        for key, value in self._fixed.items():
            if shape.has(key):
                tree = hydra_compose.assign(tree, key, value)
                sources[key] = (COMMAND_LINE, key)
        return tree, sources

    def _fits(self, shape: Shape, group: Group) -> bool:
        """Whether the chosen parts have what they need of each other."""
        for one in shape.unmet:
            where = self._chooser(shape, group, one.part)
            key, choice = f"method/{one.part}", shape.parts[one.part]
            fix = one.fix(self._workshop.composer)
            self._workshop.problems.append(Problem(where, key, choice, one.rule(), fix))
        return not shape.unmet

    def _chooser(self, shape: Shape, group: Group, part: str) -> str:
        """Who chose a part of a group's method: the command line, the experiment, or a method file."""
        key, composer = f"method/{part}", self._workshop.composer
        if key in self._workshop.arguments.choices or key in self._workshop.arguments.choice_factors:
            return COMMAND_LINE
        if key in self._choices or key in group.choices:
            return self._wanted.where
        chosen = {method: method_parts.chosen_parts(composer, method)[part] for method in group.methods}
        likely = [method for method, choice in chosen.items() if choice == shape.parts[part]] or group.methods
        return f"{composer.folder.name}/method/{likely[-1]}.yaml"

    def _check(self, shape: Shape, config: Mapping[str, Any], sources: Mapping[str, tuple[str, str]]) -> bool:
        sound = True
        for breach in shape.breaches(config):
            sound = False
            if breach.key in self._refused:
                continue
            where, at = self._blame(breach.key, shape, sources)
            rule, fix = breach.rule, breach.fix
            if rule == schema.NO_SUCH_KEY and breach.key.startswith("method."):
                owners = self._workshop.owners(breach.key.removeprefix("method."))
                if owners:
                    rule, fix = f"the method does not read it; it is read with {owners}", "choose that, or remove it"
            self._workshop.problems.append(Problem(where, at, schema.brief(breach.value), rule, fix))
        return sound

    def _blame(self, key: str, shape: Shape, sources: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
        """Who set a key: the command line, the experiment's factors or overrides, or a configuration file."""
        for prefix in (key, *(known for known in sources if key.startswith(f"{known}."))):
            if prefix in sources:
                where, at = sources[prefix]
                return where, at + key.removeprefix(prefix)
        below = next((known for known in sources if known.startswith(f"{key}.")), None)
        if below is not None:  # verl.nosuch, of verl.nosuch.x=1
            where, at = sources[below]
            return where, at.removesuffix(below.removeprefix(key))
        return self._workshop.composer.source(shape.overrides, key) or self._wanted.where, key

"""The cells of one experiment: composed, checked, identified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from launcher import arguments as command_line
from launcher import compose, design, identity, methods, validate
from launcher.arguments import COMMAND_LINE
from launcher.compose import Composer
from launcher.declared import Declared, Group
from launcher.design import Cell
from launcher.problem import Problem, nearest
from launcher.workshop import SECTIONS, Shape, Workshop, does_not_compose

Choices = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PlannedRun:
    """One run: the first 16 hex digits of its identity, the whole hash, and its resolved configuration."""

    id: str
    hash: str
    base: str
    config: Mapping[str, Any]

    @property
    def device_hours(self) -> float:
        """What the model's file estimates for all its steps; a run without a device counts its processor as one."""
        seconds = self.config["model"].get("seconds_per_step") or 0
        devices = (self.config["model"].get("resources") or {}).get("devices") or 1
        return float(self.config["trainer"]["steps"] * seconds * devices / 3600)


@dataclass(frozen=True)
class Entry:
    """A run's place in an experiment; several entries may share one run. `factors` by label."""

    id: str
    group: str
    seed: int
    factors: Mapping[str, Any]


class Cells:
    """The cells of one experiment, composed and checked."""

    def __init__(self, workshop: Workshop, experiment: str | None, wanted: Declared) -> None:
        self._workshop, self._experiment, self._wanted = workshop, experiment, wanted
        self.runs: dict[str, PlannedRun] = {}
        arguments, composer = workshop.arguments, workshop.composer
        self._fixed = {key: value for key, value in arguments.values.items() if key.partition(".")[0] in SECTIONS}
        self._scale, self._scaled = self._resolve_scale()
        # The command line has the last word: its sweeps replace a factor's levels, its single values remove the factor.
        self._choices: dict[str, list[str]] = {}
        self._values: dict[str, list[Any]] = {}
        for key, levels in wanted.factors.items():
            self._add(key, list(levels), f"experiment.factors.{key}")
        self._choices.update(arguments.choice_factors)
        self._values.update(arguments.value_factors)
        for key in arguments.choices:
            self._choices.pop(key, None)
        for key in self._fixed:
            self._values.pop(key, None)
        pinned = [key for group in wanted.groups.values() for key in group.overrides]
        self._refused: set[str] = set()
        for key in [*self._values, *self._fixed, *self._scaled, *pinned]:
            self._refuse_parts(key, composer)
        self.levels: dict[str, list[Any]] = {**self._choices, **self._values}
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

    def _add(self, key: str, levels: list[Any], at: str) -> None:
        composer, problems = self._workshop.composer, self._workshop.problems
        if composer.is_group(key):
            if key in ("method", "experiment", *command_line.WHOLE_GROUPS):
                rule = f"{key} is not a factor"
                fix = "declare one group a method" if key == "method" else "remove it"
                problems.append(Problem(self._wanted.where, at, validate.brief(levels), rule, fix))
                return
            choices = command_line.choice_levels(composer, key, levels, self._wanted.where, at, problems)
            if choices is not None:
                self._choices[key] = choices
        elif key.partition(".")[0] in SECTIONS and key != "seed":
            self._values[key] = levels
        else:
            fix = "declare seeds under experiment.seeds" if key == "seed" else f"use a key of {', '.join(SECTIONS)}"
            problems.append(Problem(self._wanted.where, at, validate.brief(levels), "this key cannot be a factor", fix))

    def _refuse_parts(self, key: str, composer: Composer) -> None:
        path = key.split(".")
        if path[0] == "method" and len(path) in (2, 3) and path[1] in methods.parts(composer):
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
                combined = methods.combine(composer, group.methods, where, at, problems)
            except compose.ERRORS as error:
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
            value = validate.brief(choice)
            known = [f"method/{part}" for part in methods.parts(composer)]
            if key not in known:
                close = nearest(key, known)
                fix = f"write {close}" if close else f"use one of {', '.join(known)}"
                problems.append(Problem(where, at, value, "this is no part of a method", fix))
            elif key in self._wanted.factors:
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
        for cell in design.cells(names, self._choices, self._values, self._reads):
            levels = {labels[key]: level for key, level in cell.factors}
            for seed, run in self._runs_of(cell):
                self.runs.setdefault(run.id, run)
                found.append(Entry(run.id, cell.group, seed, levels))
        return found

    def _unread(self, names: list[str]) -> None:
        wanted = {key: [value] for key, value in self._scaled.items()}
        wanted |= {**self._values, **{key: [value] for key, value in self._fixed.items()}}
        sound = len(names) == len(self._wanted.groups)
        for key in design.unread(names, self._choices, wanted, self._reads) if names else []:
            if key.startswith("method.") and not sound:
                continue  # a group that does not compose may be the one that reads it
            command = key in self._fixed or key in self._workshop.arguments.value_factors
            factor = key in self._values
            at = key if command else f"experiment.{'factors' if factor else f'scales.{self._scale}'}.{key}"
            value = validate.brief(wanted[key] if factor else wanted[key][0])
            rule, fix = self._hint(key, names)
            self._workshop.problems.append(Problem(self._source(key), at, value, rule, fix))

    def _hint(self, key: str, names: list[str]) -> tuple[str, str]:
        section, _, rest = key.partition(".")
        if section == "method":
            owners = self._workshop.owners(rest)
            if owners:
                return f"no group's method reads it; it is read with {owners}", "add such a group, or remove it"
        shape = (
            self._shape(names[0], tuple((one, levels[0]) for one, levels in self._choices.items())) if names else None
        )
        above, _, last = key.rpartition(".")
        _, known = compose.lookup(shape.tree, above) if shape is not None else (False, None)
        near = nearest(last, [str(one) for one in known]) if isinstance(known, Mapping) else None
        reader = "method" if section == "method" else "configuration"
        return f"no group's {reader} reads it", f"write {above}.{near}" if near else "correct the key, or remove it"

    def _runs_of(self, cell: Cell) -> list[tuple[int, PlannedRun]]:
        shape = self._shape(cell.group, cell.choices)
        if shape is None:
            return []
        group = self._wanted.groups[cell.group]
        base = self._workshop.base(shape, self._wanted.where)
        tree, sources = self._values_of(cell, shape, group)
        found: list[tuple[int, PlannedRun]] = []
        for seed in self._wanted.seeds:
            try:
                config = compose.resolved({**tree, "seed": seed})
            except OmegaConfBaseException as error:
                self._workshop.problems.append(does_not_compose(self._wanted.where, error))
                return []
            fitting, sound = self._fits(shape, group), self._check(shape, config, sources)
            if base is None:
                continue
            pruned, refused = self._workshop.differences(base, config, shape.verl_keys)
            for bad in refused:
                where, at = self._blame(bad.key, shape, sources)
                self._workshop.problems.append(Problem(where, at, validate.brief(bad.value), bad.rule, bad.fix))
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
            tree = compose.assign(tree, key, value)
            sources[key] = (f"{self._workshop.composer.folder.name}/method/{method}.yaml", key)
        for key, value in self._scaled.items():
            if shape.has(key):
                tree = compose.assign(tree, key, value)
                sources[key] = (self._wanted.where, f"experiment.scales.{self._scale}.{key}")
        for key, value in group.overrides.items():
            at = f"experiment.groups.{group.name}.overrides.{key}"
            if not shape.has(key) or key == "seed":
                rule, fix = self._hint(key, [cell.group])
                self._workshop.problems.append(Problem(self._wanted.where, at, validate.brief(value), rule, fix))
                continue
            tree = compose.assign(tree, key, value)
            sources[key] = (self._wanted.where, at)
        for key, value in cell.values:
            tree = compose.assign(tree, key, value)
            command = key in self._workshop.arguments.value_factors
            sources[key] = (COMMAND_LINE, key) if command else (self._wanted.where, f"experiment.factors.{key}")
        for key, value in self._fixed.items():
            if shape.has(key):
                tree = compose.assign(tree, key, value)
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
        chosen = {method: methods.chosen_parts(composer, method)[part] for method in group.methods}
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
            if rule == validate.NO_SUCH_KEY and breach.key.startswith("method."):
                owners = self._workshop.owners(breach.key.removeprefix("method."))
                if owners:
                    rule, fix = f"the method does not read it; it is read with {owners}", "choose that, or remove it"
            self._workshop.problems.append(Problem(where, at, validate.brief(breach.value), rule, fix))
        return sound

    def _blame(self, key: str, shape: Shape, sources: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
        """Who set a key: the command line, the experiment's factors or overrides, or a configuration file."""
        for prefix in (key, *(known for known in sources if key.startswith(f"{known}."))):
            if prefix in sources:
                where, at = sources[prefix]
                return where, at + key.removeprefix(prefix)
        return self._workshop.composer.source(shape.overrides, key) or self._wanted.where, key

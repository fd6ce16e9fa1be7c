"""What one planning shares: shapes (distinct choices of groups, composed once), verl's trees, problems."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from hydra.errors import ConfigCompositionException

from launcher.config import hydra_compose, identity, schema, verl_tree
from launcher.config.hydra_compose import Composed, Composer
from launcher.config.verl_tree import Base
from launcher.errors import Problem
from launcher.planning import hypotheses, method_parts, overrides
from launcher.planning.hypotheses import HYPOTHESIS
from launcher.text import nearest, one_line

SECTIONS = identity.SECTIONS
# Where the files of a group are merged, if not below the group's own name; a part of a method: in `method`.
_PACKAGES = {
    **dict.fromkeys(("experiment", "model", "task", "trainer", "scale"), "_global_"),
    HYPOTHESIS: hypotheses.AT,
}


class Shape:
    """The composed configuration of one choice of groups, with what is needed to check and freeze its runs.

    Raises HydraException when the choice does not compose.
    """

    def __init__(self, composer: Composer, overrides: Sequence[str]) -> None:
        self.overrides = tuple(overrides)
        composed = composer.compose(self.overrides)
        whole = composed.tree
        self.tree = schema.strip({key: whole.get(key) for key in SECTIONS})
        self.verl_keys = (whole.get("trainer") or {}).get(schema.VERL_KEYS)
        self.base_request = whole.get("base") or {}
        # What the files of an experiment, a scale or a method set is checked against what holds without them.
        single = {
            group: choice
            for group, choice in composed.choices.items()
            if choice is not None and composer.is_group(group)
        }
        parts = {f"method/{part}": one for part, one in method_parts.chosen(composer, composed).items()}
        known = {**single, **parts, "method": method_parts.BASELINE}
        apart = sorted(f"{group}={choice}" for group, choice in known.items() if group not in ("experiment", "scale"))
        defaults = composer.compose(apart).tree
        #: The choice of each part; of a list part as Hydra's overrides spell it.
        self._file = f"{composer.folder.name}/method/{composed.choices.get('method')}.yaml"
        self._every_part = method_parts.parts(composer)
        self.parts = {part: known[f"method/{part}"] for part in self._every_part if f"method/{part}" in known}
        self._method = schema.strip(defaults["method"])
        # Each fragment is judged by itself below, not as one of what Hydra merged.
        own = defaults["method"].get(schema.ALLOWED) or {}
        fragments = {key: own[key] for key in own if key not in self.parts}
        self._defaults = {**defaults, "method": {**defaults["method"], schema.ALLOWED: fragments}}
        needed = [one for one in method_parts.requirements(composer, apart) if one.part in self.parts]
        #: What the chosen parts need of each other, and do not have.
        self.unmet = tuple(one for one in needed if not one.met(self._method.get(one.part)))

    @functools.cached_property
    def checker(self) -> schema.Checker:
        """Checks our own sections (verl's differences are checked against verl's tree)."""
        return schema.Checker({key: self._defaults.get(key) for key in SECTIONS if key != "verl"})

    def breaches(self, config: Mapping[str, Any]) -> Iterator[schema.Breach]:
        """What is wrong with a run's values; verl's differences are checked against verl's tree."""
        mappings = {key: own for key, own in self.tree.items() if isinstance(own, Mapping)}
        flat = [key for key in mappings if not isinstance(config[key], Mapping)]
        for key in flat:
            yield schema.not_a_mapping(key, config[key], mappings[key])
        if flat:
            return
        yield from self.checker.check({key: value for key, value in config.items() if key != "verl"})
        missing = [part for part in self._every_part if part not in config["method"]]
        if missing:
            rule = f"a method has every part, and {', '.join(missing)} are missing"
            yield schema.Breach(
                "method", config["method"], rule, f"begin {self._file} with `defaults: [c0_grpo, _self_]`"
            )
        for part, choice in self.parts.items():
            value, own = config["method"].get(part), self._method.get(part)
            if value != own and not isinstance(own, Mapping):
                rule = f"a part of a method is chosen as a group, not set as a value (the group's choice is {choice})"
                yield schema.Breach(f"method.{part}", value, rule, f"choose method/{part}={value}")

    def has(self, key: str) -> bool:
        """Whether a run of this shape reads a key; verl's keys are judged against verl's tree."""
        return key.startswith("verl.") or hydra_compose.lookup(self.tree, key)[0]


class Workshop:
    """The life of one planning: what it composed so far, and the problems it met."""

    def __init__(self, composer: Composer, arguments: Sequence[str]) -> None:
        self.composer = composer
        self.problems: list[Problem] = []
        self.arguments = overrides.parse(composer, arguments, self.problems)
        self.used_bases: dict[str, Base] = {}
        self._shapes: dict[tuple[str, ...], Shape | None] = {}
        self._bases: dict[str, Base | None] = {}
        self._judged: dict[tuple[str, str], tuple[dict[str, Any], list[verl_tree.BadDifference]]] = {}

    def where(self, experiment: str | None) -> str:
        """The file that declares an experiment."""
        name = f"experiment/{experiment}" if experiment else self.composer.config
        return f"{self.composer.folder.name}/{name}.yaml"

    def selection(self, experiment: str | None) -> list[str]:
        """The choices of groups that hold for the whole experiment, as Hydra's overrides."""
        chosen = [f"{group}={choice}" for group, choice in self.arguments.choices.items()]
        whole = [one for one in chosen if not one.startswith("method/")]
        found = [f"experiment={experiment}", *whole] if experiment else whole
        if not self.arguments.more_hypotheses:
            return found
        own = self.composer.compose(found).chosen(HYPOTHESIS)
        every = method_parts.spelled([*own, *self.arguments.more_hypotheses])
        return [*(one for one in found if not one.startswith(f"{HYPOTHESIS}=")), f"{HYPOTHESIS}={every}"]

    def shape(self, experiment: str | None, overrides: Sequence[str]) -> Shape | None:
        """The shape of a choice of groups (the last for each counts); None (and a problem) if it does not compose."""
        chosen = {one.partition("=")[0]: one for one in (*self.selection(experiment), *overrides)}
        key = tuple(chosen.values())
        if key not in self._shapes:
            try:
                self._shapes[key] = Shape(self.composer, key)
                self.refuse_sections(self.composer.compose(key))
            except hydra_compose.ERRORS as error:
                self._shapes[key] = None
                self.problems.append(does_not_compose(self.where(experiment), error))
        return self._shapes[key]

    def refuse_sections(self, composed: Composed) -> bool:
        """Add a problem for each section of a file that would have no effect, or not the one that was meant.

        A missing header, a mistyped name, a group's choice outside `defaults`, a value where a mapping stands. Returns
        whether the rest of the composition can be judged all the same.
        """
        sound = True
        root, groups = self.composer.content(self.composer.config), self.composer.subgroups("")
        # Hydra's own are read where it starts, and it starts without the experiment.
        sections = list(dict.fromkeys([*(key for key in root if key != "hydra"), *groups]))
        for file in composed.files:
            if file.path == self.composer.config:
                continue
            path = f"{self.composer.folder.name}/{file.path}.yaml"
            group = file.path.rpartition("/")[0]
            package = _PACKAGES.get(group, "method" if group.startswith("method/") else None)
            if package is not None and file.package == group.replace("/", "."):
                self.problems.append(no_header(path, package))
                sound = False
                continue
            for key, value in file.tree.items():
                if key not in sections:
                    close = nearest(str(key), sections)
                    fix = f"write {close}" if close else f"remove it, or use one of {', '.join(sections)}"
                    self.problems.append(Problem(path, str(key), None, schema.NO_SUCH_KEY, fix))
                elif key in groups and (key == HYPOTHESIS or isinstance(value, (str, list))):
                    rule, fix = "a group's files are chosen among the defaults", f"write - override /{key}: NAME there"
                    self.problems.append(Problem(path, key, schema.brief(value), rule, fix))
                    sound = False
                elif not isinstance(value, Mapping) and (key in groups or isinstance(root.get(key), Mapping)):
                    rule, fix = "a value where a mapping stands", "write a mapping, or remove it"
                    self.problems.append(Problem(path, key, schema.brief(value), rule, fix))
                    sound = False
        return sound

    def base(self, shape: Shape, where: str) -> Base | None:
        """verl's tree for a shape, with the command line's `base.*`; None (and a problem) when it does not compose."""
        request: Mapping[str, Any] = {"base": shape.base_request}
        for key, value in self.arguments.values.items():
            if key.startswith("base."):
                request = hydra_compose.assign(request, key, value)
        wanted = request["base"]
        memo = identity.canonical_json(wanted)
        if memo not in self._bases:
            overrides = wanted.get("overrides") or []
            try:
                if not isinstance(overrides, list):
                    raise ConfigCompositionException("base.overrides is a list: [KEY=VALUE]")
                self._bases[memo] = verl_tree.compose(str(wanted.get("config")), list(map(str, overrides)))
            except hydra_compose.ERRORS as error:
                self._bases[memo] = None
                rule = one_line(f"verl's configuration does not compose: {error}")
                self.problems.append(Problem(where, "base", memo, rule, "correct base.config or base.overrides"))
        found = self._bases[memo]
        if found is not None:
            self.used_bases[found.hash] = found
        return found

    def owners(self, key: str) -> str:
        """The choices of parts whose files have a dotted key of `method`: method/control=dual."""
        return " or ".join(choice for choice, content in self._parts.items() if hydra_compose.lookup(content, key)[0])

    @functools.cached_property
    def _parts(self) -> dict[str, Mapping[str, Any]]:
        return {
            f"method/{part}={choice}": self.composer.content(f"method/{part}/{choice}")
            for part in method_parts.parts(self.composer)
            for choice in self.composer.options(f"method/{part}")
        }

    def differences(
        self, base: Base, tree: Mapping[str, Any], keys: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], list[verl_tree.BadDifference]]:
        """A tree's differences to verl's that do differ, and those that verl's tree or the trainer refuses.

        keys: the trainer's `verl_keys`, or None for a trainer that reads them all.
        """
        wanted = tree.get("verl") or {}
        memo = (base.hash, repr([wanted, keys]))
        if memo not in self._judged:
            differing = verl_tree.prune(base.tree, wanted)
            refused = {bad.key: bad for bad in verl_tree.check(base.tree, wanted)}
            for bad in verl_tree.unread(differing, keys["read"], keys["elsewhere"]) if keys is not None else ():
                if not any(f"{bad.key}.".startswith(f"{known}.") for known in refused):
                    refused[bad.key] = bad
            self._judged[memo] = (differing, list(refused.values()))
        return self._judged[memo]


def no_header(where: str, package: str) -> Problem:
    """The problem of a file that is merged elsewhere than its group's files are."""
    rule = "the file does not begin with its header"
    return Problem(where, f"# @package {package}", None, rule, "make this the file's first line")


def does_not_compose(where: str, error: Exception) -> Problem:
    """The problem of a configuration that Hydra refuses."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        _, folder, rest = str(mark.name).rpartition("conf/")
        at = f"line {mark.line + 1}, column {mark.column + 1}"
        return Problem(f"{folder}{rest}", at, None, f"not YAML: {error.problem}", "correct the line")
    if isinstance(error, UnicodeDecodeError):
        return Problem(where, f"byte {error.start}", None, "not UTF-8", "save the file as UTF-8")
    if isinstance(error, hydra_compose.Clash):
        fix = "write a list" if error.rule.endswith("list stands") else "write a mapping"
        return Problem(f"conf/{error.file}.yaml", error.key, schema.brief(error.value), error.rule, fix)
    cause = str(error.__cause__ or "")
    text = one_line(str(error) if cause in str(error) else f"{error} {cause}")
    if "@experiment." in text:  # without its header Hydra takes the file for a part of `experiment`
        return no_header(where, _PACKAGES["experiment"])
    text = text.partition(" Config search path")[0]
    rule = f"the configuration does not compose: {text}"
    return Problem(where, "defaults", None, rule, "correct the name or the value")

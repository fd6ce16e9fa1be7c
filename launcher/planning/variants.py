"""What the parts of one planning share: variants (distinct choices of groups, composed once), and problems."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from analysis.spec.validation import NO_SUCH_KEY, Objection, closest
from launcher.application import KEY, Base, Composed, File, application
from launcher.config import hydra_compose, identity
from launcher.config.hydra_compose import Composer, spelled
from launcher.errors import Diagnostics
from launcher.planning import overrides, schema
from launcher.planning.experiment_spec import ExperimentSpec
from launcher.planning.overrides import HYPOTHESIS
from launcher.text import one_line

SECTIONS = identity.SECTIONS
_OPEN = application().identity.open
# Where the files of a group are merged, if not below the group's own name; a part of a method: in `method`.
_PACKAGES = {
    **dict.fromkeys(("experiment", "model", "task", "trainer", "scale"), "_global_"),
    HYPOTHESIS: "analysis.hypotheses",
}


class ConfigVariant:
    """The composed configuration of one choice of groups, with what is needed to check and freeze its runs.

    Raises HydraException when the choice does not compose.
    """

    def __init__(self, composer: Composer, overrides: Sequence[str], values: Mapping[str, Any]) -> None:
        """values: the command line's, of sections that are no part of a run."""
        self.overrides = tuple(overrides)
        composed = composer.compose(self.overrides)
        tree, method_parts = composed.tree, application().parts()
        for key, value in values.items():
            tree = hydra_compose.assign(tree, key, value)
        #: What the application reads.
        self.composed = replace(composed, tree=tree)
        self.tree = schema.strip({key: composed.tree.get(key) for key in SECTIONS})
        self._file = f"{composer.folder.name}/method/{composed.choices.get('method')}.yaml"
        self._every_part = method_parts.parts(composer)
        # What the files of an experiment, a scale or a method set is checked against what holds without them.
        choices = {
            **{group: one for group, one in composed.choices.items() if one is not None and composer.is_group(group)},
            **{f"method/{part}": one for part, one in method_parts.chosen(composer, composed).items()},
            "method": method_parts.BASELINE,
        }
        without = sorted(f"{group}={one}" for group, one in choices.items() if group not in ("experiment", "scale"))
        defaults = composer.compose(without).tree
        #: The choice of each part; of a list part as Hydra's overrides spell it.
        self.parts = {part: choices[f"method/{part}"] for part in self._every_part if f"method/{part}" in choices}
        self._method = schema.strip(defaults["method"])
        # What parts need of each other is judged file by file, below, not as Hydra merges it.
        fragments = defaults["method"].get(schema.ALLOWED) or {}
        own = {key: fragment for key, fragment in fragments.items() if key not in self.parts}
        self._defaults = {**defaults, "method": {**defaults["method"], schema.ALLOWED: own}}
        #: (part, rule, fix) of what the chosen parts need of each other, and do not have.
        self.unmet = [one for one in method_parts.unmet(composer, without, self._method) if one[0] in self.parts]

    @functools.cached_property
    def checker(self) -> schema.Checker:
        """Checks the sections that files declare; the application checks the differences to its own tree."""
        return schema.Checker({key: self._defaults.get(key) for key in SECTIONS if key not in _OPEN})

    def breaches(self, config: Mapping[str, Any]) -> Iterator[Objection]:
        """What is wrong with a run's values, by what its files declare."""
        flat = [
            schema.not_a_mapping(key, config[key], own)
            for key, own in self.tree.items()
            if isinstance(own, Mapping) and not isinstance(config[key], Mapping)
        ]
        if flat:
            yield from flat
            return
        yield from self.checker.check({key: value for key, value in config.items() if key not in _OPEN})
        missing = [part for part in self._every_part if part not in config["method"]]
        if missing:
            rule = f"a method needs every part; missing: {', '.join(missing)}"
            fix = f"begin {self._file} with `defaults: [{application().parts().BASELINE}, _self_]`"
            yield Objection("method", config["method"], rule, fix)
        for part, choice in self.parts.items():
            value, own = config["method"].get(part), self._method.get(part)
            if value != own and not isinstance(own, Mapping):
                rule = f"a part of a method is chosen as a group, not set as a value (the group's choice is {choice})"
                yield Objection(f"method.{part}", value, rule, f"choose method/{part}={value}")

    def has(self, key: str) -> bool:
        """Whether a run of this variant reads a key, so far as its files say."""
        if key.partition(".")[0] in _OPEN or hydra_compose.lookup(self.tree, key)[0]:
            return True
        above = key.rpartition(".")[0]
        return self.checker.describes(above) and isinstance(hydra_compose.lookup(self.tree, above)[1], Mapping)


class PlanningContext:
    """What the parts of one planning share: the command line, what was composed, and the problems found."""

    def __init__(self, composer: Composer, arguments: Sequence[str]) -> None:
        self.composer = composer
        self.problems = Diagnostics()
        self.arguments = overrides.parse(composer, arguments, self.problems)
        self.used_bases: dict[str, Base] = {}
        self.cluster: Mapping[str, Any] = {}  # the section, so far as it is known
        self.parts = application().parts()
        self.checks = application().checks()
        self._own_values = {key: one for key, one in self.arguments.values.items() if key.startswith("base.")}
        self._variants: dict[tuple[str, ...], ConfigVariant | None] = {}

    def file_of(self, experiment: str | None) -> str:
        """The file that declares an experiment."""
        name = f"experiment/{experiment}" if experiment else self.composer.config
        return f"{self.composer.folder.name}/{name}.yaml"

    def selection(self, experiment: str | None) -> list[str]:
        """The choices of groups that hold for the whole experiment, as Hydra's overrides."""
        chosen = {group: one for group, one in self.arguments.choices.items() if not group.startswith("method/")}
        if experiment:
            chosen = {"experiment": experiment, **chosen}
        if self.arguments.more_hypotheses:
            own = self.composer.compose([f"{group}={one}" for group, one in chosen.items()]).chosen(HYPOTHESIS)
            chosen.pop(HYPOTHESIS, None)
            chosen[HYPOTHESIS] = spelled([*own, *self.arguments.more_hypotheses])
        return [f"{group}={one}" for group, one in chosen.items()]

    def variant(self, experiment: str | None, overrides: Sequence[str]) -> ConfigVariant | None:
        """The variant for a choice of groups (the last for each counts); None (and a problem) if it does not
        compose."""
        chosen = {one.partition("=")[0]: one for one in (*self.selection(experiment), *overrides)}
        key = tuple(chosen.values())
        if key not in self._variants:
            try:
                self._variants[key] = ConfigVariant(self.composer, key, self._own_values)
                self.check_files(self.composer.compose(key))
            except hydra_compose.ERRORS as error:
                self._variants[key] = None
                self.does_not_compose(self.file_of(experiment), error)
        return self._variants[key]

    def check_files(self, composed: Composed) -> bool:
        """Add a problem for each section of a file that would have no effect, or another effect than intended.

        A missing header, a mistyped name, a group's choice outside `defaults`, a value in place of a mapping. Returns
        whether the rest of the composition can be judged nevertheless.
        """
        files = [file for file in composed.files if file.path != self.composer.config]
        return all([self._check_file(file) for file in files])

    def _check_file(self, file: File) -> bool:
        root, groups = self.composer.content(self.composer.config), self.composer.subgroups("")
        # Hydra reads its own section where it starts, which is without the experiment.
        sections = list(dict.fromkeys([*(key for key in root if key not in ("hydra", KEY)), *groups]))
        path, group = f"{self.composer.folder.name}/{file.path}.yaml", file.path.rpartition("/")[0]
        package = _PACKAGES.get(group, "method" if group.startswith("method/") else None)
        if package is not None and file.package == group.replace("/", "."):
            self._no_header(path, package)
            return False
        sound = True
        for key, value in file.tree.items():
            if key == "hydra":
                first = next(iter(value), "...") if isinstance(value, Mapping) else "..."
                self._hydras_own(path, key, schema.brief(value), f"hydra.{first}=...")
            elif key not in sections:
                fix = closest(str(key), sections, otherwise=f"remove it, or use one of {', '.join(sections)}")
                fix = self.suggested(str(key), value) or fix
                if group == "experiment" and key in ExperimentSpec.model_fields:
                    fix = f"indent it below experiment:, two spaces deeper than it is (experiment.{key})"
                self.problems.add(path, str(key), None, NO_SUCH_KEY, fix)
            elif key in groups and (key == HYPOTHESIS or isinstance(value, (str, list))):
                rule, fix = (
                    "a file of this group must be chosen in the defaults list",
                    f"write - override /{key}: NAME there",
                )
                self.problems.add(path, key, schema.brief(value), rule, fix)
                sound = False
            elif not isinstance(value, Mapping) and (key in groups or isinstance(root.get(key), Mapping)):
                rule, fix = "must be a mapping", "write a mapping, or remove it"
                self.problems.add(path, key, schema.brief(value), rule, fix)
                sound = False
        return sound

    def suggested(self, key: str, value: Any) -> str | None:
        """The fix for a key that is known under another name; None: it is not."""
        section, _, rest = key.partition(".")
        files = [(one, self.composer.content(f"{section}/{one}")) for one in self.composer.options(section)]
        having = [one for one, file in files if any(hydra_compose.lookup(file, at)[0] for at in (key, rest))]
        if rest and having and section in ("cluster", "trainer"):
            return f"add {' or '.join(f'{section}={one}' for one in having)}"
        return application().key(key, value)

    def readers(self, key: str) -> str:
        """The choices of parts whose files have a dotted key of `method`: method/control=dual."""
        return " or ".join(choice for choice, content in self._parts.items() if hydra_compose.lookup(content, key)[0])

    def meant_metric(self, name: str) -> str | None:
        """The fix for a metric's name that is not complete; None: no metric is meant."""
        return self.checks.meant_metric(name, self._compositions)

    def unwritten(self, metric: str) -> tuple[str, str]:
        """The rule and the fix for a metric that none of these runs writes."""
        return self.checks.unwritten(metric, self._compositions, self._parts)

    @property
    def _compositions(self) -> list[Composed]:
        return [variant.composed for variant in self._variants.values() if variant is not None]

    @functools.cached_property
    def _parts(self) -> dict[str, Mapping[str, Any]]:
        return {
            f"method/{part}={choice}": self.composer.content(f"method/{part}/{choice}")
            for part in self.parts.parts(self.composer)
            for choice in self.composer.options(f"method/{part}")
        }

    def _no_header(self, where: str, package: str) -> None:
        rule = "the file does not begin with its header"
        self.problems.add(where, f"# @package {package}", None, rule, "make this the file's first line")

    def _hydras_own(self, file: str, key: str, value: str | None, word: str) -> None:
        rule = "Hydra reads its own settings when it starts, before it reads this file"
        self.problems.add(file, key, value, rule, f"write it on the command line, {word}, or in conf/config.yaml")

    def does_not_compose(self, where: str, error: Exception) -> None:
        """Add the problem of a configuration that Hydra refuses."""
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            _, folder, rest = str(mark.name).rpartition("conf/")
            at = f"line {mark.line + 1}, column {mark.column + 1}"
            fix = "indent with spaces instead of tabs" if "\\t" in str(error.problem) else "correct the line"
            if "mapping values" in str(error.problem) or "expected <block end>" in str(error.problem):
                fix = "indent the keys of one mapping equally, two spaces deeper than its name"
            self.problems.add(f"{folder}{rest}", at, None, f"not YAML: {error.problem}", fix)
            return
        if isinstance(error, UnicodeDecodeError):
            self.problems.add(where, f"byte {error.start}", None, "not UTF-8", "save the file as UTF-8")
            return
        if isinstance(error, hydra_compose.Clash):
            fix = f"write a {error.expected}"
            self.problems.add(f"conf/{error.file}.yaml", error.key, schema.brief(error.value), error.rule, fix)
            return
        if isinstance(error, hydra_compose.HydrasOwn):
            self._hydras_own(f"conf/{error.file}.yaml", "defaults", error.entry, error.word)
            return
        cause = str(error.__cause__ or "")
        text = one_line(str(error) if cause in str(error) else f"{error} {cause}").partition(" Config search path")[0]
        if "@experiment." in text:  # without its header Hydra takes the file for a part of `experiment`
            self._no_header(where, _PACKAGES["experiment"])
            return
        missing = re.search(r"Could not find 'experiment/(\w+)/(\w+)'|Multiple values for (\w+)\.", text)
        group = missing and (missing[1] or missing[3])
        if missing and group in self.composer.subgroups(""):
            fix = f"write - override /{group}: {missing[2] or 'NAME'}"
            rule = "an experiment overrides what conf/config.yaml chose"
            self.problems.add(where, "defaults", f"- {group}: {missing[2] or '...'}", rule, fix)
            return
        option = re.search(r"Could not (?:find|load) '([\w/]+)/([\w.-]+)'", text)
        if option and self.composer.is_group(option[1]):
            overrides.unknown_option(self.composer, where, "defaults", option[1], option[2], self.problems)
            return
        if option := re.search(r"Could not override '([\w/]+)'", text):
            groups = [*self.composer.subgroups(""), *(f"method/{part}" for part in self.parts.parts(self.composer))]
            fix = closest(option[1], groups, "- override /", f"use one of {', '.join(groups)}")
            self.problems.add(where, "defaults", option[1], "there is no such configuration group", fix)
            return
        rule = f"the configuration does not compose: {text.rstrip('.')}"
        self.problems.add(where, "defaults", None, rule, "correct the name or the value")

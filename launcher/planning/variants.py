"""What the parts of one planning share, and its variants: distinct choices of groups, each composed once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from analysis.spec.validation import NO_SUCH_KEY, closest
from launcher.application import KEY, Base, Checks, Composed, File, application
from launcher.config import hydra_compose, identity
from launcher.config.hydra_compose import Composer
from launcher.errors import Diagnostics, Objection
from launcher.planning import overrides, schema
from launcher.planning.overrides import HYPOTHESIS, Arguments
from launcher.text import one_line

SECTIONS = identity.SECTIONS
_OPEN = application().identity.open
# Where the files of a group are merged, if not below the group's own name; a part of a method: in `method`.
_PACKAGES = {
    **dict.fromkeys(("experiment", "model", "task", "trainer", "scale"), "_global_"),
    HYPOTHESIS: "analysis.hypotheses",
}
_HYDRAS_OWN = "Hydra reads its own settings when it starts, before it reads this file"
#: The rules that a file may break, and the rest of its composition can be judged.
HARMLESS = (NO_SUCH_KEY, _HYDRAS_OWN)


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
            **{key: name for key, name in composed.choices.items() if name is not None and composer.is_group(key)},
            **{f"method/{part}": choice for part, choice in method_parts.chosen(composer, composed).items()},
            "method": method_parts.BASELINE,
        }
        without = sorted(f"{group}={name}" for group, name in choices.items() if group not in ("experiment", "scale"))
        defaults = composer.compose(without).tree
        #: The choice of each part; of a list part as Hydra's overrides spell it.
        self.parts = {part: choices[f"method/{part}"] for part in self._every_part if f"method/{part}" in choices}
        self._method = schema.strip(defaults["method"])
        # What parts need of each other is judged file by file, below, not as Hydra merges it.
        fragments = defaults["method"].get(schema.ALLOWED) or {}
        others = {key: fragment for key, fragment in fragments.items() if key not in self.parts}
        self._defaults = {**defaults, "method": {**defaults["method"], schema.ALLOWED: others}}
        #: (part, rule, fix) of what the chosen parts need of each other, and do not have.
        self.unmet = [need for need in method_parts.unmet(composer, without, self._method) if need[0] in self.parts]

    @functools.cached_property
    def checker(self) -> schema.Checker:
        """Checks the sections that files declare; the application checks the differences to its own tree."""
        return schema.Checker({key: self._defaults.get(key) for key in SECTIONS if key not in _OPEN})

    def breaches(self, config: Mapping[str, Any]) -> Iterator[Objection]:
        """What is wrong with a run's values, by what its files declare."""
        flat = [
            schema.not_a_mapping(key, config[key], section)
            for key, section in self.tree.items()
            if isinstance(section, Mapping) and not isinstance(config[key], Mapping)
        ]
        if flat:
            yield from flat
            return
        yield from self.checker.check({key: value for key, value in config.items() if key not in _OPEN})
        if missing := [part for part in self._every_part if part not in config["method"]]:
            rule = f"a method needs every part; missing: {', '.join(missing)}"
            fix = f"begin {self._file} with `defaults: [{application().parts().BASELINE}, _self_]`"
            yield Objection("method", config["method"], rule, fix)
        for part, choice in self.parts.items():
            default = self._method.get(part)
            value = config["method"].get(part, default)
            if value != default and not (isinstance(default, Mapping) and isinstance(value, Mapping)):
                rule = f"a part of a method is chosen as a group, not set as a value (the group's choice is {choice})"
                yield Objection(f"method.{part}", value, rule, f"choose method/{part}={value}")

    def has(self, key: str) -> bool:
        """Whether a run of this variant reads a key, so far as its files say."""
        if key.partition(".")[0] in _OPEN or hydra_compose.lookup(self.tree, key)[0]:
            return True
        above = key.rpartition(".")[0]
        return self.checker.describes(above) and isinstance(hydra_compose.lookup(self.tree, above)[1], Mapping)


# ---------------------------------------------------------------- one planning


@dataclass
class Planning:
    """What one planning knows: the command line, what was composed until now, and the problems.

    cluster: the section, so far as it is known; variants: by their choices, None if these do not compose; bases: those
    of its runs, by hash.
    """

    composer: Composer
    arguments: Arguments
    problems: Diagnostics
    checks: Checks
    cluster: Mapping[str, Any] = field(default_factory=dict)
    variants: dict[tuple[str, ...], ConfigVariant | None] = field(default_factory=dict)
    bases: dict[str, Base] = field(default_factory=dict)

    @property
    def compositions(self) -> list[Composed]:
        return [variant.composed for variant in self.variants.values() if variant is not None]


@dataclass(frozen=True)
class Root:
    """The root configuration of an experiment: as composed, and resolved with what the command line sets of what holds
    for a whole experiment. where: the experiment's file;
    selection: the choices of groups that hold for all of it, as Hydra's overrides."""

    experiment: str | None
    where: str
    selection: Sequence[str]
    composed: Composed
    tree: Mapping[str, Any]


def variant(planning: Planning, root: Root, overrides: Sequence[str]) -> ConfigVariant | None:
    """The variant for a choice of groups (the last for each counts); None (and a problem) if it does not compose."""
    composer, known = planning.composer, planning.variants
    key = tuple({word.partition("=")[0]: word for word in (*root.selection, *overrides)}.values())
    if key not in known:
        values = {key: value for key, value in planning.arguments.values.items() if key.startswith("base.")}
        known[key] = None
        try:
            known[key] = ConfigVariant(composer, key, values)
            planning.problems += file_problems(composer, composer.compose(key))
        except hydra_compose.ERRORS as error:
            planning.problems.append(not_composed(composer, root.where, error))
    return known[key]


def readers(composer: Composer, key: str) -> str:
    """The choices of parts whose files have a dotted key of `method`: method/control=dual."""
    return " or ".join(choice for choice, content in parts(composer).items() if hydra_compose.lookup(content, key)[0])


def parts(composer: Composer) -> dict[str, Mapping[str, Any]]:
    """The content of the file of each choice of each part of a method."""
    return {
        f"method/{part}={choice}": composer.content(f"method/{part}/{choice}")
        for part in application().parts().parts(composer)
        for choice in composer.options(f"method/{part}")
    }


def suggested(composer: Composer, key: str, value: Any, chosen: str | None = None) -> str | None:
    """The fix for a key that is known under another name; None: it is not. chosen: the file in use."""
    section, _, rest = key.partition(".")
    files = [(file, composer.content(f"{section}/{file}")) for file in composer.options(section) if file != chosen]
    having = [choice for choice, file in files if any(hydra_compose.lookup(file, at)[0] for at in (key, rest))]
    if rest and having and section in ("cluster", "trainer"):
        return f"add {' or '.join(f'{section}={choice}' for choice in having)}"
    return application().key(key, value)


# ---------------------------------------------------------------- files that have no effect, or do not compose


def file_problems(composer: Composer, composed: Composed) -> list[Objection]:
    """A problem for each section of a file that would have no effect, or another effect than intended.

    A missing header, a mistyped name, a group's choice outside `defaults`, a value in place of a mapping.
    """
    files = [file for file in composed.files if file.path != composer.config]
    return [problem for file in files for problem in _file_problems(composer, file)]


def _file_problems(composer: Composer, file: File) -> Iterator[Objection]:
    root, groups = composer.content(composer.config), composer.subgroups("")
    # Hydra reads its own section where it starts, which is without the experiment.
    sections = list(dict.fromkeys([*(key for key in root if key not in ("hydra", KEY)), *groups]))
    path, group = f"{composer.folder.name}/{file.path}.yaml", file.path.rpartition("/")[0]
    package = _PACKAGES.get(group, "method" if group.startswith("method/") else None)
    if package is not None and file.package == group.replace("/", "."):
        yield _no_header(path, package)
        return
    for key, value in file.tree.items():
        if key == "hydra":
            first = next(iter(value), "...") if isinstance(value, Mapping) else "..."
            yield _hydras_own(path, key, schema.brief(value), f"hydra.{first}=...")
        elif key not in sections:
            fix = closest(str(key), sections, otherwise=f"remove it, or use one of {', '.join(sections)}")
            fix = suggested(composer, str(key), value) or fix
            yield Objection(str(key), None, NO_SUCH_KEY, fix, path)
        elif key in groups and (key == HYPOTHESIS or isinstance(value, (str, list))):
            rule = "a file of this group must be chosen in the defaults list"
            yield Objection(key, schema.brief(value), rule, f"write - override /{key}: NAME there", path)
        elif not isinstance(value, Mapping) and (key in groups or isinstance(root.get(key), Mapping)):
            fix = "write a mapping, or remove it"
            yield Objection(key, schema.brief(value), "must be a mapping", fix, path)


def _no_header(file: str, package: str) -> Objection:
    rule = "the file does not begin with its header"
    return Objection(f"# @package {package}", None, rule, "make this the file's first line", file)


def _hydras_own(file: str, key: str, value: str, word: str) -> Objection:
    return Objection(key, value, _HYDRAS_OWN, f"write it on the command line, {word}, or in conf/config.yaml", file)


def not_composed(composer: Composer, where: str, error: Exception) -> Objection:
    """The problem of a configuration that Hydra refuses; where: the file that is composed."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        _, folder, rest = str(mark.name).rpartition("conf/")
        at = f"line {mark.line + 1}, column {mark.column + 1}"
        fix = "indent with spaces instead of tabs" if "\\t" in str(error.problem) else "correct the line"
        return Objection(at, None, f"not YAML: {error.problem}", fix, f"{folder}{rest}")
    if isinstance(error, UnicodeDecodeError):
        return Objection(f"byte {error.start}", None, "not UTF-8", "save the file as UTF-8", where)
    if isinstance(error, hydra_compose.Clash):
        fix, file = f"write a {error.expected}", f"conf/{error.file}.yaml"
        return Objection(error.key, schema.brief(error.value), error.rule, fix, file)
    if isinstance(error, hydra_compose.HydrasOwn):
        return _hydras_own(f"conf/{error.file}.yaml", "defaults", error.entry, error.word)
    if isinstance(error, hydra_compose.AnotherPrograms):
        rule = "this file is of another program of Hydra, and hides the one that comes with rlsweep"
        fix = "sweep it by `-m hydra/sweeper=rlsweep`, or put experiments into their own folder (rlsweep init FOLDER)"
        return Objection("application", None, rule, fix, "conf/config.yaml")
    cause = str(error.__cause__ or "")
    text = one_line(str(error) if cause in str(error) else f"{error} {cause}").partition(" Config search path")[0]
    if "@experiment." in text:  # without its header Hydra takes the file for a part of `experiment`
        return _no_header(where, _PACKAGES["experiment"])
    missing = re.search(r"Could not find 'experiment/(\w+)/(\w+)'|Multiple values for (\w+)\.", text)
    group = missing and (missing[1] or missing[3])
    if missing and group in composer.subgroups(""):
        rule, fix = "an experiment overrides what conf/config.yaml chose", f"write - override /{group}: "
        return Objection("defaults", f"- {group}: {missing[2] or '...'}", rule, f"{fix}{missing[2] or 'NAME'}", where)
    option = re.search(r"Could not (?:find|load) '([\w/]+)/([\w.-]+)'", text)
    if option and composer.is_group(option[1]):
        return overrides.unknown_option(composer, where, "defaults", option[1], option[2])
    if option := re.search(r"Could not override '([\w/]+)'", text):
        fix = overrides.closest_group(composer, option[1], "- override /")
        return Objection("defaults", option[1], "there is no such configuration group", fix, where)
    rule = f"the configuration does not compose: {text.rstrip('.')}"
    return Objection("defaults", None, rule, "correct the name or the value", where)

"""The jobs of a sweep over any program of @hydra.main, as a plan.

Hydra composes; this module multiplies. The words of the command line become axes as in Hydra's BasicSweeper, groups and
factors of the sweeper's own section come before them. Jobs that differ in plain values alone share one composition, in
which the values are replaced: Hydra takes 20 ms for a composition, and a value takes 0.1 ms.
"""

from __future__ import annotations

import base64
import copy
import functools
import itertools
import json
import math
import os
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import cloudpickle
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import env_override
from hydra.errors import HydraException
from omegaconf import Container, DictConfig, OmegaConf, open_dict, read_write
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, UnsupportedValueType
from pydantic import Field, Strict, model_validator

from analysis.spec.settings import Settings
from analysis.spec.validation import Context, Listed, Section, closest, objections, some
from launcher.application import KEY, Base
from launcher.config import content, identity
from launcher.config.hydra_compose import MISSING, as_override, assign, interpolates, leaves, lookup
from launcher.errors import Diagnostics, InvalidPlan, Objection
from launcher.planning.clusters import Budget
from launcher.planning.design import distinct, excludes, short_labels
from launcher.planning.experiment_spec import Levels, Zip, check_factors
from launcher.planning.overrides import COMMAND_LINE, is_within
from launcher.planning.plan import CodeChoice, Entry, FactorLevels, Plan, PlannedRun
from launcher.planning.schema import brief, report
from launcher.run.folder import NAME as FOLDER_NAME
from launcher.text import one_line

#: The file that problems of the sweeper's section are about: whichever of the program's has it.
PROGRAM = "the configuration of the program"
#: Values that a launch sets: its folder and its time. A run's identity has no value that refers to one of them.
_LAUNCH_KEY = re.compile(r"(runtime(?!\.(choices|version|cwd)\b)|run|sweep)\b")
_OF_THE_LAUNCH = re.compile(rf"\$\{{(now:|hydra:{_LAUNCH_KEY.pattern})")
_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_Model = TypeVar("_Model", bound=Section)
#: An interpolation, with its place.
_Leaf = tuple[tuple[str | int, ...], str]
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


class _Defaulted(Section):
    """A section in which null is the default of a key that has one."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        return {key: own for key, own in given.items() if own is not None} if isinstance(given, Mapping) else given


class Declared(_Defaulted):
    """The question of a sweep: groups of overrides, factors that multiply them, seeds, and the baseline."""

    name: Annotated[str, Field(pattern=f"^{FOLDER_NAME}$")] | None = None
    groups: dict[str, dict[str, Any]] = Field({}, description="a mapping of groups to mappings of keys to values")
    baseline: str | None = None
    seeds: Listed[int] = Field((), description="a list of seeds, such as [0, 1, 2]")
    factors: dict[str, Levels] = Field({}, description="a mapping of keys to lists of levels")
    zip: dict[str, Zip] = Field({})
    exclude: Listed[dict[str, Any]] = ()


class Resources(Section):
    """What each job requests of a cluster; memory_gb in 10^9 bytes, time as HH:MM:SS or D-HH:MM:SS."""

    nodes: int = Field(ge=1)
    gpus: int = Field(ge=0)
    cpus: int = Field(ge=1)
    memory_gb: float = Field(ge=0)
    time: str = Field(pattern=r"^(\d+-)?\d+:\d\d:\d\d$", description="a time limit such as 24:00:00")


class Sweep(_Defaulted):
    """The section hydra.sweeper of a program, whose defaults stand in hydra_plugins/rlsweep.

    seed_key: where the seed stands in its configuration; ignore: keys that change no number; resumes: whether a job
    that was interrupted gets the files of its last attempt back although it does not ask for them.
    """

    experiment: Declared
    analysis: dict[str, Any] = Field(description="the section analysis, a mapping")
    seed_key: str
    ignore: Listed[str] = ()
    resources: dict[str, Any] = Field(description="a mapping of nodes, gpus, cpus, memory_gb and time")
    resumes: bool
    cluster: str | dict[str, Any]
    tracking: dict[str, Any] = Field(description="the section tracking, a mapping")
    budget: Budget
    code: Annotated[CodeChoice, Strict(False)]


@dataclass(frozen=True)
class Job:
    """One job of the sweep: the words that it overrides, as Hydra's BasicSweeper has them, and its run."""

    overrides: tuple[str, ...]
    run: str


@dataclass
class Jobs:
    """The jobs of a sweep in Hydra's order, with the runs, entries and compositions that a plan takes."""

    jobs: list[Job] = field(default_factory=list)
    runs: dict[str, PlannedRun] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    bases: dict[str, Base] = field(default_factory=dict)
    levels: dict[str, list[Any]] = field(default_factory=dict)


def axes(parser: OverridesParser, words: Sequence[str]) -> dict[str, list[str]]:
    """The words of each key, as BasicSweeper splits a command line; of a key that is named twice the last counts.

    Raises HydraException.
    """
    words_of: dict[str, list[str]] = {}
    for override in parser.parse_overrides(list(words)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            words_of[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            words_of[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            kind = override.value_type.name.lower() if override.value_type is not None else "this"
            raise HydraException(f"{override.input_line}: rlsweep takes lists, ranges and choices, no {kind}")
    return words_of


class Compositions:
    """The configuration of each job, as Hydra composes it from the master configuration of the sweep."""

    def __init__(self, loader: ConfigLoader, master: DictConfig, ignore: Sequence[str]) -> None:
        """ignore: dotted keys that are no part of a run."""
        self._loader, self._master, self._ignore = loader, master, ignore
        self.parser = OverridesParser.create(config_loader=loader)
        self._cache: dict[tuple[tuple[str, ...], frozenset[str]], Composition] = {}
        # The same words come again in thousands of jobs.
        self.parsed: Callable[[str], Override] = functools.cache(self.parser.parse_override)
        for name in ("replaceable", "chooses", "options"):
            setattr(self, name, functools.cache(getattr(self, name)))

    def replaceable(self, word: str) -> bool:
        """Whether a word sets a plain value, which can be replaced in a composition."""
        override = self.parsed(word)
        return bool(
            override.type == OverrideType.CHANGE
            and override.package is None
            and _PLAIN_KEY.fullmatch(override.key_or_group)
            and not override.key_or_group.startswith("hydra.")
            and not isinstance(override.value(), (dict, list))
            and override.value() != MISSING
            and not interpolates(override.value())  # the word escapes it: wd=$\{lr\}
            and not self.chooses(word)
        )

    def chooses(self, word: str) -> bool:
        """Whether a word chooses from a configuration group, which Hydra does before it sets any value."""
        override = self.parsed(word)
        return not isinstance(override.value(), dict) and bool(self.options(override.key_or_group))

    def options(self, key: str) -> list[str]:
        """The options and folders of a configuration group; empty if the key names none."""
        given = OmegaConf.to_container(self._master.hydra.overrides.hydra)  # which may set hydra.searchpath
        return list(self._loader.get_group_options(key, None, self._master.hydra.job.config_name, given))

    def whole(self, overrides: Sequence[str]) -> DictConfig:
        """The whole configuration of one job, with Hydra's own section."""
        try:
            return self._loader.load_sweep_config(self._master, list(overrides))
        except (HydraException, OmegaConfBaseException):
            raise
        except Exception as error:  # as for a group that is null
            raise HydraException(f"{type(error).__name__}: {error}") from error

    def composed(self) -> list[Composition]:
        """The compositions that jobs share."""
        return [made for made in self._cache.values() if not made.nested]

    def unstable(self) -> list[str]:
        """The keys of the jobs whose resolvers give another value each time."""
        return sorted(set().union(*(composition.unstable for composition in self.composed())))

    def compose(self, words: Level, varied: Sequence[str]) -> tuple[Composition, list[str]]:
        """The composition of a job's words, and the keys of `varied` whose plain values are filled in for each job:
        not of those that a later word changes, because Hydra sets values in the order of the words."""
        later, replaced = list[str](), list[str]()
        for key, word in reversed(list(words.items())):
            name = self.parsed(word).key_or_group
            related = key in varied and (is_within(name, later) or any(is_within(other, [name]) for other in later))
            if key in varied and not related and self.replaceable(word):
                replaced.insert(0, key)
            elif not self.chooses(word):
                later.append(name)
        shared = tuple(word for key, word in words.items() if key not in replaced)
        at = (shared, frozenset(replaced))
        if at not in self._cache:
            self._cache[at] = Composition(self.whole(shared), at[1], self._ignore)
        made = self._cache[at]
        if made.nested:
            return self.compose(words, [key for key in varied if key not in made.nested])
        return made, replaced


class Composition:
    """One composed configuration whose values are replaced for one job after the other."""

    def __init__(self, config: DictConfig, replaced: frozenset[str], ignore: Sequence[str]) -> None:
        self.config = config
        self._ignore = ignore
        #: The replaced values, by dotted key.
        self.values: dict[str, Any] = {}
        self._now: dict[str, str] = {}
        kept = [key for key in config if key != "hydra"]
        tree = OmegaConf.to_container(OmegaConf.masked_copy(config, kept), resolve=False, enum_to_str=True)
        assert isinstance(tree, dict)
        #: The keys of `replaced` that hold a mapping or are in a list: Hydra sets them in its own way.
        self.nested = {key for key in replaced if _is_nested(tree, key)}
        #: The ignored keys that a job has.
        self.ignored = set[str]()
        given = [tuple(key.split(".")) for key in replaced]
        leaves = [
            (path, text)
            for path, text in _leaves(tree)
            if not _OF_THE_LAUNCH.search(text) and not any(tuple(map(str, path[: len(key)])) == key for key in given)
        ]
        dynamic = _dynamic(leaves, given)
        self._tree = tree
        #: The variables of the job's environment, as they are written.
        self._environment = dict(OmegaConf.to_container(config.hydra.job.env_set))
        again = copy.deepcopy(config)
        OmegaConf.clear_cache(again)
        with _no_launch(), env_override(self._variables()):
            differing = [leaf for leaf in dynamic if repr(_resolved(config, *leaf)) != repr(_resolved(again, *leaf))]
        #: Keys whose resolvers give another value each time: they are no part of a run, as those of the launch.
        self.unstable = {key for path, _ in differing if not is_within(key := ".".join(map(str, path)), ignore)}
        self._dynamic = [leaf for leaf in dynamic if leaf not in differing]
        self._read([leaf for leaf in leaves if leaf not in dynamic])
        self._of_hydra = any("${hydra:" in text for _, text in (*self._dynamic, *_leaves(self._environment)))

    @functools.cached_property
    def base(self) -> Base:
        """The composition as the run's process reads it back, types and interpolations included."""
        try:
            data = pickle.dumps(self.config)
        except (pickle.PicklingError, AttributeError):  # classes that were made at run time go as they are
            data = cloudpickle.dumps(self.config)
        text = json.dumps({"composition": base64.b64encode(data).decode("ascii")})
        return Base(identity.content_hash(text), text, {})

    def replace(self, overrides: Mapping[str, Override]) -> list[Objection]:
        """Set the values of a job; what the configuration has against them."""
        refused = []
        for key, override in overrides.items():
            word = str(override.input_line)
            given = word.partition("=")[2]
            if self._now.get(key) == word:
                continue
            try:
                OmegaConf.update(self.config, key, override.value(), merge=True)
            except (ConfigAttributeError, ConfigKeyError):
                rule, fix = "the configuration has no such key", f"correct the key, or add it with +{word}"
                refused.append(Objection(key, given, rule, fix, COMMAND_LINE))
            except OmegaConfBaseException as error:
                rule = str(error).splitlines()[0]
                refused.append(Objection(key, given, rule, "correct the value", COMMAND_LINE))
            else:
                self._now[key] = word
                self.values[key] = _plain(OmegaConf.select(self.config, key))
        return refused

    def resolved(self, number: int) -> dict[str, Any]:
        """The job's configuration in plain values, without `hydra` and the ignored keys. number: the job's."""
        for key, value in self.values.items():
            self._tree = assign(self._tree, key, value)
        if self._of_hydra:
            with read_write(self.config.hydra), open_dict(self.config.hydra):
                self.config.hydra.job.num = number
            HydraConfig.instance().set_config(self.config)
        self._read(self._dynamic)
        tree = self._tree
        for key in self._ignore:
            if lookup(tree, key)[0]:
                self.ignored.add(key)
                tree = _without(tree, key)
        return tree

    def _read(self, leaves: Iterable[_Leaf]) -> None:
        """Put the resolved values of these nodes into the tree; one that cannot be resolved stays as it is written."""
        with _no_launch(), env_override(self._variables()):
            for path, text in leaves:
                self._tree = _set(self._tree, path, _resolved(self.config, path, text))

    def _variables(self) -> dict[str, str]:
        """What hydra.job.env_set sets."""
        place = "hydra", "job", "env_set"
        return {name: _resolved(self.config, (*place, name), text) for name, text in self._environment.items()}


def checked(model: type[_Model], given: Any, at: str, context: Context | None = None) -> _Model:
    """A part of the sweeper's section; at: its key. Raises InvalidPlan with everything that is wrong."""
    problems = Diagnostics()
    for objection in objections(model, given, at, context):
        report(problems, PROGRAM, objection)
    problems.raise_any()
    return model.model_validate(given, context=context)


def check_analysis(asked: Any, groups: Collection[str], baseline: str | None) -> None:
    """Refuse a wrong section `analysis` of the sweeper's. Raises InvalidPlan."""
    checked(Settings, asked, "hydra.sweeper.analysis", Context(groups, baseline))


def check_seed_key(key: str, runs: Mapping[str, PlannedRun]) -> None:
    """Refuse a key of the seed that no job has, unless it is the default: programs without a seed need not say so."""
    configs = [run.settled["config"] for run in runs.values()]
    if key == Plan.seed_key or not configs or any(lookup(config, key)[0] for config in configs):
        return
    known = [name for name, _ in leaves(configs[0])]
    near = [name for name in known if "seed" in name] or known
    fix = closest(key, known, "hydra.sweeper.seed_key=", f"name the key of the seed, such as {some(near, 8)}")
    raise InvalidPlan([Objection("hydra.sweeper.seed_key", key, "no job's configuration has this key", fix, PROGRAM)])


@contextmanager
def _no_launch() -> Iterator[None]:
    """Inside, the folders and the time of a launch have no value: what refers to them cannot be resolved. But relative
    paths begin in the folder of its command, so that files in it count by their content."""
    before = dict(BaseContainer._resolvers)

    def hydra(*given: Any) -> Any:
        if (key := str(given[3][0])) == "runtime.cwd":
            return "."
        return refused() if _LAUNCH_KEY.match(key) else before["hydra"](*given)

    def refused(*_: Any) -> Any:
        raise ValueError("this differs in each launch")

    BaseContainer._resolvers |= {"now": refused, "hydra": hydra}
    try:
        yield
    finally:
        BaseContainer._resolvers |= before


def _finite(value: Any) -> Any:
    """A plain value; as text where JSON has no number for it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _resolved(config: DictConfig, path: Sequence[str | int], text: str) -> Any:
    """The plain value of a node; its text if it cannot be resolved."""
    node: Any = config
    try:
        for step in path:
            node = node[step]
        return _plain(node)
    except OmegaConfBaseException:
        return text


def _plain(value: Any) -> Any:
    """A value of OmegaConf as YAML has it."""
    if isinstance(value, Container):
        return OmegaConf.to_container(value, resolve=True, enum_to_str=True)
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if _ADDRESS.search(str(value)):
        raise UnsupportedValueType(f"{value} is another text in each process")
    return str(value)


def _is_nested(tree: Any, key: str) -> bool:
    """Whether a dotted key holds a mapping or a list, or is in a list."""
    for step in key.split("."):
        tree = tree.get(step) if isinstance(tree, Mapping) else tree
    return isinstance(tree, (Mapping, list))


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[_Leaf]:
    """The interpolations of a tree, with their places."""
    if isinstance(value, str):
        if "${" in value:
            yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, (*path, number))


def _dynamic(leaves: Sequence[_Leaf], replaced: Iterable[tuple[str, ...]]) -> list[_Leaf]:
    """The interpolations whose value may change with a job: those that call a resolver or are relative,
    and those that refer to a replaced value or to another of them."""
    changing = set(replaced)
    dynamic: list[_Leaf] = []
    left = list(leaves)
    while moved := [leaf for leaf in left if _changes(leaf[1], changing)]:
        dynamic += moved
        changing |= {tuple(map(str, path)) for path, _ in moved}
        left = [leaf for leaf in left if leaf not in moved]
    return dynamic


def _changes(text: str, changing: Iterable[tuple[str, ...]]) -> bool:
    if "${" in _REFERENCE.sub("", text):
        return True  # a resolver, or an interpolation within another
    for reference in _REFERENCE.findall(text):
        steps = tuple(step.rstrip("]") for step in re.split(r"[.\[]", reference))
        if not steps[0] or any(a[: len(steps)] == steps or steps[: len(a)] == a for a in changing):
            return True
    return False


def _set(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """A copy of a tree with another value at a place; only what is on the way is copied."""
    if not path:
        return new
    copied = dict(value) if isinstance(value, Mapping) else list(value)
    copied[path[0]] = _set(value[path[0]], path[1:], new)  # type: ignore[index]
    return copied


def _without(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A copy of the tree without a dotted key."""
    first, _, rest = key.partition(".")
    if rest and isinstance(tree.get(first), Mapping):
        return {**tree, first: _without(tree[first], rest)}
    return {name: value for name, value in tree.items() if rest or name != first}


# ---------------------------------------------------------------- jobs

#: The words of one level of an axis, by key: several for keys whose levels go together.
Level = Mapping[str, str]


def jobs(
    compositions: Compositions,
    words: Sequence[str],
    section: Sweep,
    program: Mapping[str, Any],
    outputs: Mapping[str, str] = MappingProxyType({}),
) -> Jobs:
    """Every job of the sweep, composed and identified. Raises InvalidPlan with everything that Hydra refuses.

    words: of the command line, after those of the sweeper's `params`; section: the sweeper's settings; program: what
    starts it, with its `name` and `task`; outputs: as content.outputs.
    """
    problems, result = Diagnostics(), Jobs()
    try:
        swept = axes(compositions.parser, words)
    except HydraException as error:
        problems.add(COMMAND_LINE, " ".join(words), None, one_line(str(error)), "correct the word")
        problems.raise_any()
    for word in words:
        override = compositions.parsed(word)
        key, _, value = word.partition("=")
        if not swept[override.get_key_element()]:
            rule = "it has no level, so the sweep has no job"
            if options := compositions.options(override.key_or_group):
                rule += f"; the options of {override.key_or_group} are {some(options, 8)}"
            problems.add(COMMAND_LINE, key, value, rule, "write a word that has levels")
        if key.lstrip("+") == section.seed_key and value.startswith("+"):
            rule = "to Hydra, the sign is part of a number, and adds no seeds to those of earlier launches"
            problems.add(COMMAND_LINE, key, value, rule, f"write all seeds, such as {key}=0,1,{value[1:]}")
    groups, baseline = section.experiment.groups or {program["name"]: {}}, section.experiment.baseline
    if baseline is not None and baseline not in groups:
        rule, fix = f"must be one of the groups: {', '.join(groups)}", "name one of them, or add it to groups"
        problems.add(PROGRAM, "hydra.sweeper.experiment.baseline", baseline, rule, fix)
    _check_keys(section.experiment, groups, swept, problems)
    problems.raise_any()
    factors = _factors(section, swept)
    varied = [key for axis in factors if len(axis) > 1 for key in axis[0]]
    labels = short_labels([key for key in varied if key.lstrip("+") != section.seed_key])
    frozen = _Frozen(section, program, outputs)
    refused: dict[Objection, None] = {}
    for group, fixed in groups.items():
        held: Level = {key: as_override(key, value) for key, value in fixed.items()}
        for combination in itertools.product(*factors):
            chosen = dict(held)
            for level in combination:
                chosen |= level
            try:
                _add(result, compositions, group, chosen, varied, labels, frozen)
            except InvalidPlan as invalid:
                refused |= dict.fromkeys(invalid.problems)
            except (HydraException, OmegaConfBaseException) as error:
                rule = one_line(str(error)).partition(" Config search path")[0]
                words_of = " ".join(chosen.values())
                refused[Objection(words_of, None, rule, "correct the key or the value", COMMAND_LINE)] = None
    problems.extend(refused)
    if not problems:
        known = {key.lstrip("+") for axis in (*groups.values(), *(axis[0] for axis in factors)) for key in axis}
        _check_exclusions(section.experiment, sorted(known), frozen.used, swept, problems)
        _check_ignored(section.ignore, compositions, words, result, problems)
    if not result.jobs and not problems:
        rule = "the sweep has no job, because this leaves out each"
        problems.add(PROGRAM, "hydra.sweeper.experiment.exclude", None, rule, "remove some of it")
    problems.raise_any()
    for key, label in labels.items():
        result.levels[key] = distinct([entry.factors[label] for entry in result.entries])
    places = {key: (PROGRAM, f"hydra.sweeper.experiment.factors.{key}") for key in labels}
    places |= {key: (COMMAND_LINE, key) for key in swept}
    planned: dict[str, FactorLevels] = {key: {"label": labels[key], "levels": of} for key, of in result.levels.items()}
    check_factors(planned, result.entries, places, problems)
    problems.raise_any()
    return result


def _check_keys(
    declared: Declared, groups: Mapping[str, Mapping[str, Any]], swept: Iterable[str], problems: Diagnostics
) -> None:
    """Add a problem for each key that two factors or zips vary, or that a group holds fixed and something varies. The
    command line replaces a factor; lr, +lr and ++lr are one key."""
    places = {key.lstrip("+"): (COMMAND_LINE, key) for key in swept}
    varied = set[str]()
    axes = [("factors", declared.factors), *((f"zip.{name}", keys) for name, keys in declared.zip.items())]
    for section, keys in axes:
        for key in keys:
            place = PROGRAM, f"hydra.sweeper.experiment.{section}.{key}"
            if (plain := key.lstrip("+")) in varied:
                problems.add(*place, None, "two factors, or zips, have this key", "keep it in one of them")
            varied.add(plain)
            places.setdefault(plain, place)
    for group, fixed in groups.items():
        for key in sorted({each.lstrip("+") for each in fixed} & places.keys()):
            rule = f"group {group} holds this key fixed"
            problems.add(*places[key], None, rule, "remove it here, or from the groups")


def _check_exclusions(
    declared: Declared, known: Sequence[str], used: Collection[int], swept: Iterable[str], problems: Diagnostics
) -> None:
    """Add a problem for each exclusion that leaves out no job, unless the command line sets one of its keys. known: the
    keys that the sweep sets; used: the numbers of the exclusions that have left out a job."""
    given = {key.lstrip("+") for key in swept}
    for number, exclusion in enumerate(declared.exclude):
        at, keys = f"hydra.sweeper.experiment.exclude[{number}]", [key.lstrip("+") for key in exclusion]
        if unknown := next((key for key in keys if key not in (*known, "group")), None):
            rule = f"the sweep sets no such key; it sets {some(known, 8)}"
            problems.add(PROGRAM, f"{at}.{unknown}", None, rule, closest(unknown, known, otherwise="remove it"))
        elif number not in used and given.isdisjoint(keys):
            rule = "this exclusion leaves out no job: none has these levels together"
            problems.add(PROGRAM, at, brief(exclusion), rule, "correct its levels, or remove it")


def _check_ignored(
    ignore: Sequence[str], compositions: Compositions, words: Sequence[str], made: Jobs, problems: Diagnostics
) -> None:
    """Add a problem for each ignored key that no job has. A word may delete it, and a group may be off."""
    had = {compositions.parsed(word).key_or_group for word in words}
    had = had.union(*(composition.ignored for composition in compositions.composed()))
    known = [name for run in [*made.runs.values()][:1] for name, _ in leaves(run.settled["config"])]
    for key in ignore:
        if known and key not in had and not compositions.options(key.partition(".")[0]):
            rule = "no job's configuration has this key"
            problems.add(PROGRAM, "hydra.sweeper.ignore", key, rule, closest(key, known))


def _factors(section: Sweep, swept: Mapping[str, Sequence[str]]) -> list[list[Level]]:
    """The axes of a sweep: those declared, without the keys that the command line sets, then the command line's."""
    experiment = section.experiment
    axes: list[Mapping[str, Sequence[Any]]] = [{key: levels} for key, levels in experiment.factors.items()]
    axes += experiment.zip.values()
    if experiment.seeds:
        axes.append({section.seed_key: experiment.seeds})
    factors: list[list[Level]] = []
    given = {key.lstrip("+") for key in swept}
    for axis in axes:
        words = {key: [as_override(key, level) for level in levels] for key, levels in axis.items()
                 if key.lstrip("+") not in given}  # fmt: skip
        if words:
            levels = dict.fromkeys(zip(*words.values(), strict=True))  # without a key, some may be equal
            factors.append([dict(zip(words, level, strict=True)) for level in levels])
    return factors + [[{key: word} for word in words] for key, words in swept.items()]


def _add(
    result: Jobs,
    compositions: Compositions,
    group: str,
    chosen: Level,
    varied: Sequence[str],
    labels: Mapping[str, str],
    frozen: _Frozen,
) -> None:
    """Compose one job and add it with its run, unless an exclusion leaves it out."""
    composition, replaced = compositions.compose(chosen, varied)
    if refused := composition.replace({key: compositions.parsed(chosen[key]) for key in replaced}):
        raise InvalidPlan(refused)
    number, values = len(result.jobs), composition.values
    levels = {key: _finite(values[key]) if key in values else chosen[key].partition("=")[2] for key in varied}
    cell = {key: values[key] if key in values else compositions.parsed(word).value() for key, word in chosen.items()}
    if frozen.leaves_out(cell, group):
        return
    run, seed = frozen.run(composition, number, list(chosen.values()))
    factors = {label: levels[key] for key, label in labels.items()}
    result.jobs.append(Job(tuple(chosen.values()), run.id))
    result.entries.append(Entry.model_construct(id=run.id, group=group, seed=seed, factors=factors))
    if result.runs.setdefault(run.id, run) is run:
        result.bases.setdefault(composition.base.hash, composition.base)


class _Frozen:
    """Freezes jobs: their settled configuration, identity, seed and resources.

    Jobs share most of their configuration, and a part that is the same object is settled and spelled once.
    """

    def __init__(self, section: Sweep, program: Mapping[str, Any], outputs: Mapping[str, str]) -> None:
        self._section, self._program, self._outputs = section, program, outputs
        self._excluded = [
            {key.lstrip("+"): tuple(level) if isinstance(level, (list, tuple)) else (level,)
             for key, level in each.items()}
            for each in section.experiment.exclude
        ]  # fmt: skip
        #: The exclusions that have left out a job, by number.
        self.used = set[int]()
        self._parts: dict[int, tuple[Any, _Part]] = {}
        self._start = {key: value for key, value in program.items() if key not in ("task", KEY)}

    def leaves_out(self, levels: Mapping[str, Any], group: str) -> bool:
        """Whether an exclusion leaves out a job of the group with these values of the keys that the sweep sets."""
        if not self._excluded:
            return False
        cell = {**{key.lstrip("+"): level for key, level in levels.items()}, "group": group}
        matched = [number for number, exclusion in enumerate(self._excluded) if excludes(exclusion, cell)]
        self.used.update(matched)
        return bool(matched)

    def run(self, composition: Composition, number: int, overrides: list[str]) -> tuple[PlannedRun, int]:
        """A job's run, and its seed (0 without one)."""
        part = self._settled(composition.resolved(number), "config")
        application, task = json.dumps(self._program[KEY]), json.dumps(self._program["task"])
        text = f'{{"{KEY}":{application},"config":{part.text},"program":{task}}}'  # as identity.science orders it
        digest = identity.digest("", text)
        seed = lookup(part.value, self._section.seed_key)[1]
        seed = seed if type(seed) is int else 0
        asked: Any = self._section.resources
        if interpolates(asked):
            asked = OmegaConf.to_container(composition.config.hydra.sweeper.resources, resolve=True)
        start = {
            **self._start,
            "composition": composition.base.hash,
            "values": dict(composition.values),
            "overrides": overrides,
            "number": number,
        }
        config = {
            KEY: self._program[KEY],
            "program": self._program["task"],
            "config": part.value,
            "seed": seed,
            "start": start,
            "resources": checked(Resources, asked, "hydra.sweeper.resources").model_dump(),
        }
        if part.inputs:
            config[identity.INPUTS] = dict(sorted(part.inputs.items()))
        return PlannedRun(identity.run_id(digest), digest, "", config, seed, None, None), seed

    def _settled(self, value: Any, key: str) -> _Part:
        if not isinstance(value, (Mapping, list)):
            return self._leaf(value, key)
        if id(value) in self._parts:
            return self._parts[id(value)][1]
        if isinstance(value, Mapping):
            named = {str(name): self._settled(item, f"{key}.{name}") for name, item in value.items()}
            parts = [named[name] for name in sorted(named)]
            settled: Any = {name: part.value for name, part in named.items()}
            text = "{" + ",".join(f"{json.dumps(name)}:{named[name].text}" for name in sorted(named)) + "}"
        else:
            parts = [self._settled(item, key) for item in value]
            text, settled = "[" + ",".join(part.text for part in parts) + "]", [part.value for part in parts]
        part = _Part(settled, text, {path: digest for part in parts for path, digest in part.inputs.items()})
        self._parts[id(value)] = value, part
        return part

    def _leaf(self, value: Any, key: str) -> _Part:
        try:
            value = _plain(value)
        except UnsupportedValueType as error:
            key = key.removeprefix("config.")
            fix = f"set it to a plain value, or leave it out of the runs with hydra.sweeper.ignore=[{key}]"
            raise InvalidPlan([Objection(key, None, str(error), fix, PROGRAM)]) from None
        value = _finite(value)
        path = content.place_of(key, value) if isinstance(value, str) else None
        digest = self._outputs.get(path) if path is not None else None
        if digest is None and path is not None and os.path.isfile(path):
            digest = content.digest(Path(path))
        if not path or not digest:
            return _Part(value, identity.canonical_json(value), {})
        return _Part(path, json.dumps(f"sha256:{digest}"), {path: digest})


@dataclass(frozen=True)
class _Part:
    """A part of a configuration: with absolute paths, as its identity spells it, and the files that it names."""

    value: Any
    text: str
    inputs: dict[str, str]

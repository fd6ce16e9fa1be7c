"""Hydra's composition without Hydra's application: one folder of configurations, many compositions.

A plan composes once per distinct choice of configuration groups and applies value overrides to copies. Hydra decides
which files make up a composition, and in which order (its defaults lists); this module merges them as plain values,
which is about ten times faster than on OmegaConf's nodes. A merge that plain values cannot express is left to Hydra.
This is the only module that uses Hydra's internals (hence the pin `hydra-core<1.4`); tests compare its results with
Hydra's.

Each file is read and parsed once. The `hydra` section of a composition is left out: Hydra composes it when it starts,
and it would be most of the work.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal import defaults_list as hydras_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra._internal.utils import create_config_search_path
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString, ValueType
from hydra.core.utils import setup_globals
from hydra.errors import ConfigCompositionException, HydraException
from hydra.plugins.completion_plugin import DefaultCompletionPlugin
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml._yaml import CParser

from launcher.application import KEY, Composed, File, configurations, merged
from launcher.config import installed_parts

try:
    from omegaconf._utils import get_yaml_loader
except ImportError:  # OmegaConf 2.4
    from omegaconf._yaml import get_yaml_loader

#: What composing a folder of hand-written files can raise.
ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError)
MISSING = "???"
_UNQUOTED = re.compile(r"(?!(null|true|false|inf|nan)$)[A-Za-z_][\w./-]*", re.IGNORECASE)
#: The root of every configuration.
ROOT_CONFIG = "config"


def spelled(choices: Iterable[str]) -> str:
    """A choice of a group that takes a list, in the form of Hydra's overrides; equal subsets give one text."""
    return f"[{','.join(sorted(set(choices)))}]"


def as_override(key: str, value: Any) -> str:
    """KEY=VALUE in the grammar of Hydra's overrides, which reads the value back as it is."""
    return f"{key}={_in_grammar(value)}"


def _in_grammar(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_in_grammar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_in_grammar, value)) + "]"
    if isinstance(value, str) and not _UNQUOTED.fullmatch(value):
        return str(QuotedString(value, Quote.single).with_quotes())
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class NotPlain(Exception):
    """A merge that plain values cannot express."""


class Clash(ConfigCompositionException):  # type: ignore[misc]
    """A mapping over a list, or a list over a mapping, which OmegaConf refuses. file: its path without .yaml."""

    def __init__(self, key: str, value: Any) -> None:
        self.key, self.value, self.file = key, value, ""
        given, self.expected = ("list", "mapping") if isinstance(value, list) else ("mapping", "list")
        self.rule = f"must be a {self.expected}, not a {given}"
        super().__init__(f"{key} = {value}: {self.rule}")


class HydrasOwn(ConfigCompositionException):  # type: ignore[misc]
    """A file of a group chooses for Hydra itself, which has started by then. word: the choice on the command line."""

    def __init__(self, file: str, default: Any) -> None:
        (key, value), *_ = default.items() if isinstance(default, dict) else [(default, "...")]
        self.file, self.entry, self.word = file, f"- {key}: {value}", f"{str(key).split(' ')[-1].lstrip('/')}={value}"
        super().__init__(f"{file}: {self.entry}")


class AnotherPrograms(ConfigCompositionException):  # type: ignore[misc]
    """The project's config.yaml is the root of another program of Hydra, and hides the one of this program."""


class Composer(ConfigRepository):  # type: ignore[misc]
    """Composes configurations from one folder, equal requests once. Files that change later are not seen.

    more: further folders, for files that this one does not have; before: folders whose files hide those of this one.
    Hydra's defaults lists ask it for the files.
    """

    def __init__(self, folder: Path, config: str, more: Sequence[Path] = (), before: Sequence[Path] = ()) -> None:
        setup_globals()
        self.folder = folder.resolve()
        self.config = config
        self._more, self._before = more, before
        self._cache: dict[tuple[str, ...], Composed] = {}
        places = (*before, self.folder, *more)
        self.sources = [FileConfigSource(provider="main", path=f"file://{place}") for place in places]
        # A composition asks for each of these many times.
        for name in ("load_config", "group_exists", "config_exists", "get_group_options", "parse"):
            setattr(self, name, functools.cache(getattr(self, name)))

    def compose(self, overrides: Sequence[str]) -> Composed:
        """The composed configuration. Raises hydra.errors.HydraException and others of ERRORS."""
        key = tuple(overrides)
        if key not in self._cache:
            if self._before and KEY not in self.content(self.config):
                raise AnotherPrograms(f"{self._before[0]}/{self.config}.yaml names no {KEY}")
            defaults = self._defaults(key)
            files = tuple(
                File(default.config_path, default.package or "", self.content(default.config_path))
                for default in defaults.defaults
            )
            try:
                tree = self._merged(files, defaults)
            except NotPlain:
                tree = self.hydras_own(key)
            self._cache[key] = Composed(tree, dict(defaults.overrides.known_choices), files)
        return self._cache[key]

    def hydras_own(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Compose the configuration with Hydra itself, which is slower: it merges OmegaConf nodes file by file."""
        whole = self._loader().load_configuration(self.config, list(overrides), RunMode.RUN, from_shell=False)
        return {key: value for key, value in plain(whole).items() if key not in ("hydra", KEY)}

    def completions(self, words: Iterable[str], begun: str) -> list[str]:
        """What Hydra's completion offers after these words for the one that is begun. Sweeps of values, and what
        cannot be composed, offer no keys."""
        plugin, line = DefaultCompletionPlugin(self._loader()), " ".join(word for word in words if "," not in word)
        while True:
            try:
                found: list[str] = plugin._query(self.config, f"{line} {begun}")
            except ERRORS:
                return []
            if len(found) != 1 or found[0] == begun or not found[0].endswith("."):
                return found
            begun = found[0]  # the shell would put a space after the only one

    def _loader(self) -> ConfigLoaderImpl:
        path = create_config_search_path(str(self.folder))
        for folder in reversed(self._more):
            path.append("rlsweep", str(folder), anchor="main")
        for folder in self._before:
            path.prepend("project", str(folder), anchor="main")
        return ConfigLoaderImpl(path)

    def _defaults(self, overrides: Sequence[str]) -> DefaultsList:
        parsed = list(map(self.parse, overrides))
        try:
            return create_defaults_list(self, self.config, parsed, prepend_hydra=False, skip_missing=False)
        except RecursionError:
            chosen = ", ".join(overrides) or self.config
            raise ConfigCompositionException(f"the defaults of {chosen} name each other in a circle") from None

    def _merged(self, files: Sequence[File], defaults: DefaultsList) -> dict[str, Any]:
        """The files merged. NotPlain: plain values cannot express a value override or one of the merges."""
        tree: dict[str, Any] = {}
        if defaults.config_overrides:
            raise NotPlain
        for file in files:
            try:
                tree = merge(tree, file.tree)
            except Clash as clash:
                clash.file = file.path
                raise
        if "searchpath" in (tree.pop("hydra", None) or {}):
            raise NotPlain
        tree.pop(KEY, None)
        return tree

    def parse(self, argument: str) -> Override:
        """One override in Hydra's grammar. Raises hydra.errors.HydraException."""
        group, _, choice = argument.partition("=")
        if _GROUP.fullmatch(group) and _CHOICE.fullmatch(choice):  # needs no grammar, which takes 5 ms
            return Override(OverrideType.CHANGE, group, ValueType.ELEMENT, choice, input_line=argument)
        # Hydra asks the loader for a group's files only: method=glob(q_*)
        (override,) = OverridesParser.create(config_loader=self).parse_overrides([argument])
        return override

    def load_config(self, config_path: str) -> ConfigResult | None:
        """One file, path without .yaml; None when it does not exist. Raises HydraException and yaml.YAMLError."""
        if (source := self._find_object_source(config_path, ObjectType.CONFIG)) is None:
            return None
        path = Path(source.path) / f"{config_path}.yaml"
        text = path.read_text(encoding="utf-8")
        try:
            return _result(text, config_path)
        except yaml.YAMLError:
            with path.open(encoding="utf-8") as stream:  # for a message that names the file and the place
                OmegaConf.load(stream)
            raise
        except ValueError as error:
            raise ConfigCompositionException(f"In '{config_path}': {error}") from error

    def content(self, path: str) -> Mapping[str, Any]:
        """The content of one file without its defaults list, path without .yaml, shared; {} if it does not exist."""
        loaded = self.load_config(path)
        return loaded.config if loaded is not None else {}

    def options(self, group: str, kind: ObjectType = ObjectType.CONFIG) -> list[str]:
        """The files of a group, sorted; kind: or its groups."""
        return list(self.get_group_options(group, kind)) if self.group_exists(group) else []

    def subgroups(self, group: str) -> list[str]:
        """The groups below a group: method -> advantage, control, ..."""
        return self.options(group, ObjectType.GROUP)

    def is_group(self, key: str) -> bool:
        """Whether a key names a configuration group."""
        return key != "" and bool(self.group_exists(key))

    def source(self, overrides: Sequence[str], key: str) -> str | None:
        """The file that set a key of this composition last, relative to the folder's parent; None when no file did."""
        for file in reversed(self.compose(overrides).files):
            if key != file.package and lookup(file.tree, key)[0]:
                return f"{self.folder.name}/{file.path}.yaml"
        return None


def of_project(conf: Path | None = None, more: Sequence[Path] | None = None) -> Composer:
    """The composer of the present project: its own conf/ first, then rlsweep's, then those of installed packages."""
    included, own = configurations()
    further = installed_parts.folders() if more is None else more
    return Composer(conf or included, ROOT_CONFIG, further, () if own is None else (own,))


def hidden() -> list[str]:
    """A line for each file of a configuration group that no composition sees, and the one that hides it."""
    included, own = configurations()
    first: dict[Path, Path] = {}
    places = filter(None, (own, included, *installed_parts.folders()))
    files = [(file.relative_to(place), file) for place in places for file in sorted(place.rglob("*.yaml"))]
    return [f"{first[name]} hides {file}" for name, file in files if first.setdefault(name, file) != file]


def merge(tree: Mapping[str, Any], content: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """A file's content over a tree, as OmegaConf merges untyped nodes: mappings key by key, anything else whole.

    A missing value (`???`) replaces nothing. Clash: a mapping over a list, or a list over a mapping. NotPlain: a
    mapping, a list or a missing value over an interpolation, which OmegaConf resolves first.
    """
    result = dict(tree)
    for key, value in content.items():
        if key not in result:
            result[key] = value
            continue
        present = result[key]
        nested = isinstance(value, (Mapping, list))
        if isinstance(present, str) and "${" in present and (nested or value == MISSING):
            raise NotPlain
        other = nested and isinstance(present, (Mapping, list)) and isinstance(present, list) != isinstance(value, list)
        if other and not f"{at}{key}".endswith("experiment.seeds"):  # its schema allows both; also in experiment.scales
            raise Clash(f"{at}{key}", value)
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            result[key] = merge(present, value, f"{at}{key}.")
        elif value != MISSING:
            result[key] = value
    return result


def plain(config: DictConfig, resolve: bool = False) -> dict[str, Any]:
    """Plain values, interpolations as they are, or replaced."""
    value = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(value, dict)
    return {str(key): item for key, item in value.items()}


def interpolates(value: Any) -> bool:
    """Whether any string inside holds an interpolation."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, Mapping):
        return any(interpolates(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(interpolates(item) for item in value)


def leaves(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted key that holds no mapping, or an empty one, with its value."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def lookup(tree: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Whether a dotted key exists in a tree, and its value."""
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def assign(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the tree with one key set, as Hydra's overrides do it; only the mappings on the way are copied."""
    first, _, rest = key.partition(".")
    result = dict(tree)
    present = result.get(first)
    if rest:
        result[first] = assign(present if isinstance(present, Mapping) else {}, rest, value)
    elif isinstance(value, Mapping) and isinstance(present, Mapping):
        result[first] = merged(present, copy.deepcopy(value))
    else:
        result[first] = copy.deepcopy(value)
    return result


def resolved(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with every interpolation replaced. Raises omegaconf.errors.OmegaConfBaseException."""
    if not interpolates(tree):
        return dict(tree)
    return plain(OmegaConf.create(dict(tree)), resolve=True)


# ---------------------------------------------------------------- Hydra's internals

_GROUP, _CHOICE = re.compile("[a-z_]+(/[a-z_]+)*"), re.compile("(?!(null|true|false|inf|nan)$)[a-z_][a-z0-9_]*")
version._get_version = functools.cache(version._get_version)  # Hydra parses "1.2" a thousand times for one plan
_hydras_map: Any = getattr(hydras_defaults, "_create_interpolation_map", None)  # only 1.3


def _interpolation_map(overrides: Any, defaults: Sequence[Any], self_added: bool) -> Any:
    """The choices that a defaults list may interpolate. Hydra builds them for every file, which is half of the time of
    a composition, and reads them only where an entry is an interpolation."""
    return _hydras_map(overrides, defaults, self_added) if any(entry.is_interpolation() for entry in defaults) else {}


if _hydras_map is not None:
    hydras_defaults._create_interpolation_map = _interpolation_map

_HYDRA = "hydra/"
_READER = ConfigRepository(ConfigSearchPathImpl())  # without a folder: it only reads defaults lists


def _fast_loader(loader: Any) -> Any:
    """OmegaConf's rules for YAML on libyaml's parser, which is several times faster; OmegaConf 2.4 has it itself."""
    if issubclass(loader, CParser):
        return loader

    def begin(loader: Any, stream: Any) -> None:
        CParser.__init__(loader, stream)
        yaml.constructor.SafeConstructor.__init__(loader)
        yaml.resolver.Resolver.__init__(loader)

    return type("_Loader", (CParser, loader), {"__init__": begin})


_LOADER = _fast_loader(get_yaml_loader())


@functools.lru_cache(maxsize=4096)
def _result(text: str, config_path: str) -> ConfigResult:
    """A file's plain content and its defaults list, parsed from its text. Raises yaml.YAMLError, ValueError."""
    content = yaml.load(text, Loader=_LOADER)
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ValueError(f"a file must hold a mapping, not {type(content).__name__}")
    defaults = content.pop("defaults", None)
    if not isinstance(defaults, (list, type(None))):
        raise ValueError(f"defaults must be a list, not {type(defaults).__name__}")
    ours = [default for default in defaults or [] if not _is_hydras(default)]
    if "/" in config_path and len(ours) < len(defaults or []):
        raise HydrasOwn(config_path, next(default for default in defaults or [] if _is_hydras(default)))
    listed = _READER._create_defaults_list(config_path, OmegaConf.create(ours))
    return ConfigResult("main", config_path, content, ConfigSource._get_header_dict(text[:512]), listed)


def _is_hydras(default: Any) -> bool:
    """Whether an entry of a defaults list chooses a group of Hydra itself: `override hydra/sweeper: ...`."""
    names = default if isinstance(default, dict) else [default]
    return any(str(name).split(" ")[-1].lstrip("/").startswith(_HYDRA) for name in names)

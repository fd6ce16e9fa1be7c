"""Hydra's composition without Hydra's application: one folder of configurations, many compositions.

Composing costs 30 to 100 ms, so the plan composes once per distinct choice of configuration groups and applies value
overrides to copies. This module is the only one that touches Hydra's internals (hence the pin `hydra-core<1.4`); a test
compares the fast path with Hydra's own result.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

#: What composing a folder of hand-written files can raise.
ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError)


@dataclass(frozen=True)
class Composed:
    """A composed configuration without its `hydra` section, unresolved, and the choice made in every group."""

    config: DictConfig
    choices: Mapping[str, str | None]


class Composer:
    """Composes configurations from one folder; equal requests are composed once."""

    def __init__(self, folder: Path, config: str) -> None:
        setup_globals()
        self.folder = folder.resolve()
        self.config = config
        self._loader = ConfigLoaderImpl(create_config_search_path(str(self.folder)))
        self._repository = CachingConfigRepository(self._loader.repository)
        self._loader.repository = self._repository
        self._cache: dict[tuple[str, ...], Composed] = {}

    def compose(self, overrides: Sequence[str]) -> Composed:
        """The composed configuration, shared: copy before changing. Raises hydra.errors.HydraException."""
        key = tuple(overrides)
        if key not in self._cache:
            whole = self._loader.load_configuration(self.config, list(overrides), RunMode.RUN, from_shell=False)
            choices = dict(whole.hydra.runtime.choices)
            with flag_override(whole, ["struct", "readonly"], [False, False]):
                del whole["hydra"]
            self._cache[key] = Composed(whole, choices)
        return self._cache[key]

    def parse(self, argument: str) -> Override:
        """One override in Hydra's grammar. Raises hydra.errors.HydraException."""
        (override,) = OverridesParser.create(config_loader=self._loader).parse_overrides([argument])
        return override

    def options(self, group: str) -> list[str]:
        """The files of a group, sorted."""
        if not self._repository.group_exists(group):
            return []
        return sorted(self._repository.get_group_options(group, ObjectType.CONFIG))

    def is_group(self, key: str) -> bool:
        """Whether a key names a configuration group."""
        return bool(self._repository.group_exists(key))

    def subgroups(self, group: str) -> list[str]:
        """The groups below a group: method -> advantage, control, ..."""
        if not self._repository.group_exists(group):
            return []
        return sorted(self._repository.get_group_options(group, ObjectType.GROUP))

    def files(self, overrides: Sequence[str]) -> list[tuple[str, str, dict[str, Any]]]:
        """The files of a composition in the order of merging: path without .yaml, package, content."""
        defaults = self._loader.compute_defaults_list(self.config, list(overrides), RunMode.RUN)
        paths = [(default.config_path, default.package or "") for default in defaults.defaults]
        return [(path, package, self.content(path)) for path, package in paths if path and not path.startswith("hydra")]

    def content(self, path: str) -> dict[str, Any]:
        """What one file says, path without .yaml; {} when it is no mapping."""
        loaded = self._repository.load_config(path)
        return plain(loaded.config) if loaded is not None and isinstance(loaded.config, DictConfig) else {}

    def source(self, overrides: Sequence[str], key: str) -> str | None:
        """The file that set a key of this composition last, relative to the folder's parent; None when no file did."""
        for path, package, content in reversed(self.files(overrides)):
            if package and not key.startswith(f"{package}."):
                continue
            if lookup(content, key.removeprefix(f"{package}.") if package else key)[0]:
                return f"{self.folder.name}/{path}.yaml"
        return None


def plain(config: DictConfig) -> dict[str, Any]:
    """Plain values, interpolations as they are."""
    value = OmegaConf.to_container(config, resolve=False)
    assert isinstance(value, dict)
    return {str(key): item for key, item in value.items()}


def interpolates(value: Any) -> bool:
    """Whether any string inside holds an interpolation."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, Mapping):
        return any(interpolates(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(interpolates(item) for item in value)


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
        result[first] = _overlay(present, value)
    else:
        result[first] = copy.deepcopy(value)
    return result


def _overlay(tree: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(tree)
    for key, item in value.items():
        present = result.get(key)
        if isinstance(item, Mapping) and isinstance(present, Mapping):
            result[key] = _overlay(present, item)
        else:
            result[key] = copy.deepcopy(item)
    return result


def resolved(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with every interpolation replaced. Raises omegaconf.errors.OmegaConfBaseException."""
    if not interpolates(tree):
        return dict(tree)
    config = OmegaConf.create(dict(tree))
    value = OmegaConf.to_container(config, resolve=True)
    assert isinstance(value, dict)
    return {str(key): item for key, item in value.items()}

"""verl's own configuration tree: composed by itself, frozen by content, merged with a run's differences.

Mounted below a key of ours its absolute interpolations would fail, so it stays apart until a run starts. Nothing here
imports verl (that takes seconds): its configuration folder is found through its import specification.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.config import identity
from launcher.config.schema import Validator, words
from launcher.files import BadRunFolder, load_yaml, mark_used, write_atomic
from launcher.run.folder import base_path
from launcher.text import nearest, shown

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class Base:
    """A composed, unresolved tree: its hash, its text as frozen, and the same as plain values."""

    hash: str
    text: str
    tree: dict[str, Any]


class BadDifference(ValueError):
    """A difference that verl's tree has no place for."""

    def __init__(self, key: str, value: Any, rule: str, fix: str) -> None:
        self.key, self.value, self.rule, self.fix = key, value, rule, fix
        super().__init__(f"{key} = {shown(value)}: {rule}. Fix: {fix}")


def config_folder() -> Path:
    """verl's folder of configurations. ModuleNotFoundError: verl is not installed."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed; its configuration is the base of every run")
    return Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"


def compose(config: str, overrides: Sequence[str]) -> Base:
    """Compose verl's tree from one of its root configurations and overrides of its groups or values.

    The installed package does not change under a process, so equal requests share one result: do not change it. Raises
    hydra.errors.HydraException for an unknown configuration or override.
    """
    return _compose(config, tuple(overrides))


@functools.cache
def _compose(config: str, overrides: tuple[str, ...]) -> Base:
    from launcher.config.hydra_compose import Composer

    return frozen(Composer(config_folder(), config).compose(overrides).tree)


def frozen(tree: Mapping[str, Any]) -> Base:
    """The frozen form of a composed tree, as OmegaConf.to_yaml writes it; interpolations stay as they are."""
    import yaml

    text = yaml.dump(dict(tree), Dumper=_dumper(), default_flow_style=False, allow_unicode=True, sort_keys=False)
    return Base(identity.content_hash(text), text, dict(tree))


@functools.cache
def _dumper() -> Any:
    """OmegaConf's rules for YAML on plain values, which makes no nodes of them first; what stands twice is written
    twice."""
    from omegaconf._utils import get_omega_conf_dumper

    return type("Dumper", (get_omega_conf_dumper(),), {"ignore_aliases": lambda self, value: True})


def freeze(multirun: Path, base: Base) -> Path:
    """Write the tree below multirun/bases unless it is there already."""
    path = base_path(multirun, base.hash)
    if not mark_used(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, base.text)
    return path


# ---------------------------------------------------------------- differences


def _is_free(leaf: Any) -> bool:
    """A leaf that says nothing about its type: null, missing, or an interpolation."""
    return leaf is None or (isinstance(leaf, str) and (leaf == "???" or "${" in leaf))


def _no_value(value: Any) -> str | None:
    """Why a value has no place in a run's identity, if so."""
    try:
        identity.canonical(value)
    except ValueError as error:
        return str(error)
    return None


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else type(value).__name__


def check(tree: Mapping[str, Any], differences: Mapping[str, Any], at: str = "verl") -> Iterator[BadDifference]:
    """Every difference that verl's tree refuses: an unknown key, or a value of another type than verl's default.

    A mapping that verl leaves empty (override_config, engine_kwargs) takes any key; null, missing and interpolated
    leaves take any type.
    """
    for key, value in differences.items():
        path = f"{at}.{key}"
        if key not in tree:
            close = nearest(str(key), [str(name) for name in tree])
            hint = f"write {at}.{close}" if close else f"use one of {', '.join(sorted(map(str, tree)))}"
            yield BadDifference(path, value, "verl's configuration has no such key", hint)
            continue
        default = tree[key]
        if not (isinstance(default, Mapping) and default) and (rule := _no_value(value)):
            yield BadDifference(path, value, rule, "give plain values: finite numbers, text as keys")
        elif isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                if value is not None and not _is_free(value):
                    yield BadDifference(path, value, "verl has a mapping here", f"set keys below {path}")
            elif default:
                yield from check(default, value, path)
        elif _is_free(default) or value is None or _is_free(value):
            continue
        elif _kind(default) != _kind(value):
            rule = f"verl's default is {_kind(default)} ({shown(default)}), this is {_kind(value)}"
            yield BadDifference(path, value, rule, f"give {_kind(default)}")
        elif isinstance(default, int) and abs(default) > 1 and isinstance(value, float):
            # 0 and 1 are how verl writes 0.0 and 1.0 too: entropy_coeff, top_p
            yield BadDifference(path, value, f"verl's default is a whole number ({default})", "give a whole number")


def unread(
    differences: Mapping[str, Any], read: Mapping[str, Any], elsewhere: Mapping[str, str], at: str = ""
) -> Iterator[BadDifference]:
    """Every difference that the trainer does not read, and that so would be without effect, or that it cannot use.

    read: the keys that it reads, a mapping's with all below it, each with a JSON-Schema fragment; elsewhere: what to
    set instead of some others.
    """
    for key, value in differences.items():
        path = f"{at}{key}"
        if isinstance(value, Mapping) and value:
            yield from unread(value, read, elsewhere, f"{path}.")
            continue
        if path not in elsewhere and any(f"{path}.".startswith(f"{known}.") for known in read):
            schema = read.get(path) or {}
            if schema and not {"type", "enum", "const"} & set(schema):
                schema = {"type": "integer", **schema}
            if not Validator(schema).is_valid(value):
                needed = words(schema)
                yield BadDifference(f"verl.{path}", value, f"must be {needed}", f"give {needed}")
            continue
        instead = next((fix for known, fix in elsewhere.items() if f"{path}.".startswith(f"{known}.")), None)
        rule = "the chosen trainer does not read this key (trainer.verl_keys lists those that it reads)"
        yield BadDifference(f"verl.{path}", value, rule, instead or "remove it")


def prune(tree: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """The differences that differ: those equal to the base, and mappings left empty by that, are dropped."""
    kept: dict[str, Any] = {}
    for key, value in differences.items():
        default = tree.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            inner = prune(default, value)
            if inner:
                kept[key] = inner
        elif key not in tree or type(value) is not type(default) or value != default:
            kept[key] = value
    return kept


def merged(tree: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the differences in it; lists are replaced whole. Both arguments stay as they are."""
    result: dict[str, Any] = dict(tree)
    for key, value in differences.items():
        default = result.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            result[key] = merged(default, value)
        else:
            result[key] = value
    return result


def merge(path: Path, differences: Mapping[str, Any]) -> DictConfig:
    """The whole configuration that verl gets: the frozen tree with a run's differences, in struct mode, unresolved.

    BadDifference: the first difference that the tree refuses; ValueError: the tree was changed after it was frozen.
    What verl leaves missing (`???`) stays missing.
    """
    from omegaconf import OmegaConf

    found = identity.content_hash(path.read_text(encoding="utf-8"))
    if found != path.stem:
        raise BadRunFolder(
            path,
            f"verl's tree was changed after it was frozen: its content is {found}",
            "remove it; the same command makes it anew",
        )
    tree = load_yaml(path)
    for bad in check(tree, differences):
        raise bad
    config = OmegaConf.create(merged(tree, differences))
    OmegaConf.set_struct(config, True)
    return config

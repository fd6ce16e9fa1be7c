"""verl's own configuration tree: composed by itself, frozen by content, merged with a run's differences.

Below a key of our configuration its absolute interpolations would fail, so it stays apart until a run starts. This
module does not import verl, which takes seconds: it finds verl's configuration folder through the import specification.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.application import Base, merged
from launcher.config import identity
from launcher.files import BadRunFolder, load_yaml
from launcher.run.folder import base_path, multirun_of
from launcher.text import nearest, shown
from trainer_ext.objection import Objection

if TYPE_CHECKING:
    from omegaconf import DictConfig


def config_folder() -> Path:
    """verl's folder of configurations. ModuleNotFoundError: verl is not installed."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed, but its configuration is the base of every run", name="verl")
    return Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"


@functools.cache
def compose(config: str, overrides: tuple[str, ...] = ()) -> Base:
    """Compose verl's tree from one of its root configurations and overrides of its groups or values.

    Equal requests share one result, which must not be changed. Raises hydra.errors.HydraException for an unknown
    configuration or override.
    """
    from launcher.config.hydra_compose import Composer

    return frozen(Composer(config_folder(), config).compose(overrides).tree)


def frozen(tree: Mapping[str, Any]) -> Base:
    """The frozen form of a composed tree, as OmegaConf.to_yaml writes it; interpolations stay as they are."""
    import yaml

    text = yaml.dump(dict(tree), Dumper=_dumper(), default_flow_style=False, allow_unicode=True, sort_keys=False)
    return Base(identity.content_hash(text), text, dict(tree))


@functools.cache
def _dumper() -> Any:
    """OmegaConf's rules for YAML on plain values and on libyaml, which is several times faster; what stands twice is
    written twice."""
    from omegaconf._utils import get_omega_conf_dumper
    from yaml.cyaml import CDumper

    rules = {"yaml_representers": get_omega_conf_dumper().yaml_representers, "ignore_aliases": lambda self, value: True}
    return type("Dumper", (CDumper,), rules)


# ---------------------------------------------------------------- differences


def _is_free(leaf: Any) -> bool:
    """Whether a leaf leaves its type open: null, missing, or an interpolation."""
    return leaf is None or (isinstance(leaf, str) and (leaf == "???" or "${" in leaf))


def _not_plain(value: Any) -> str | None:
    """Why a value cannot be part of a run's identity; None: it can."""
    try:
        identity.canonical(value)
    except ValueError as error:
        return str(error)
    return None


_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", tuple: "a list"}


def _kind(value: Any) -> str:
    return "a mapping" if isinstance(value, Mapping) else _KINDS.get(type(value), type(value).__name__)


def check(tree: Mapping[str, Any], differences: Mapping[str, Any], at: str = "verl") -> Iterator[Objection]:
    """Every difference that verl's tree refuses: an unknown key, or a value of another type than verl's default.

    A mapping that verl leaves empty (override_config, engine_kwargs) takes any key; null, missing and interpolated
    leaves take any type.
    """
    for key, value in differences.items():
        path = f"{at}.{key}"
        if key not in tree:
            close = nearest(str(key), [str(name) for name in tree])
            hint = f"write {at}.{close}" if close else f"use one of {', '.join(sorted(map(str, tree)))}"
            yield Objection(path, value, "verl's configuration has no such key", hint)
            continue
        default = tree[key]
        if not (isinstance(default, Mapping) and default) and (rule := _not_plain(value)):
            yield Objection(path, value, rule, "give plain values: finite numbers, text as keys")
        elif isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                if value is not None and not _is_free(value):
                    yield Objection(path, value, "verl has a mapping here", f"set keys below {path}")
            elif default:
                yield from check(default, value, path)
        elif _is_free(default) or value is None or _is_free(value):
            continue
        elif _kind(default) != _kind(value):
            rule = f"verl's default is {_kind(default)} ({shown(default)}), this is {_kind(value)}"
            yield Objection(path, value, rule, f"give {_kind(default)}")
        elif isinstance(default, int) and abs(default) > 1 and isinstance(value, float):
            # 0 and 1 are how verl writes 0.0 and 1.0 too: entropy_coeff, top_p
            yield Objection(path, value, f"verl's default is a whole number ({default})", "give a whole number")


def prune(tree: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """The differences without those equal to the base, and without the mappings that this leaves empty."""
    kept: dict[str, Any] = {}
    for key, value in differences.items():
        default = tree.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            if inner := prune(default, value):
                kept[key] = inner
        elif key not in tree or type(value) is not type(default) or value != default:
            kept[key] = value
    return kept


def merge(path: Path, differences: Mapping[str, Any]) -> DictConfig:
    """The whole configuration for verl: the frozen tree with a run's differences, in struct mode, unresolved.

    Objection: the first difference that the tree refuses; ValueError: the tree was changed after it was frozen.
    Values that verl leaves missing (`???`) stay missing.
    """
    from omegaconf import OmegaConf

    content = identity.content_hash(path.read_text(encoding="utf-8"))
    if content != path.stem:
        why = f"verl's tree was changed after it was frozen: its content is {content}"
        raise BadRunFolder(path, why, "remove it; the same command writes it again")
    tree = load_yaml(path)
    for bad in check(tree, differences):
        raise bad
    config = OmegaConf.create(merged(tree, differences))
    OmegaConf.set_struct(config, True)
    return config


def completed(folder: Path, config: Mapping[str, Any]) -> DictConfig:
    """A run's frozen configuration with verl's complete tree under `verl`, resolved, in struct mode."""
    from omegaconf import OmegaConf

    if config.get("base") is None or not isinstance(config.get("verl"), Mapping):
        raise BadRunFolder(folder / "config.yaml", "must have the keys `base` and `verl`")
    verl = merge(base_path(multirun_of(folder), config["base"]), config["verl"])
    OmegaConf.resolve(verl)
    whole = OmegaConf.create({key: value for key, value in config.items() if key != "verl"})
    whole["verl"] = verl
    OmegaConf.set_struct(whole, True)
    return whole

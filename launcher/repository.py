"""A folder of configuration files, each read and parsed once, as Hydra's defaults lists ask for them.

Hydra's own part of every composition, the `hydra` section, is left out: Hydra composes that itself when it starts, and
it would be most of the work.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from yaml._yaml import CParser

_OMEGACONFS: Any = get_yaml_loader()
_HYDRA = "hydra/"
_READER = ConfigRepository(ConfigSearchPathImpl())  # of no folder: it only reads defaults lists


class _Loader(CParser, _OMEGACONFS):  # type: ignore[misc]
    """OmegaConf's rules for YAML on libyaml's parser, which is several times faster."""

    def __init__(self, stream: Any) -> None:
        CParser.__init__(self, stream)
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)


class Repository(ConfigRepository):  # type: ignore[misc]
    """What Hydra's defaults lists ask of a folder. Files that change later are not seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = [FileConfigSource(provider="main", path=f"file://{folder}")]
        # A composition asks for each of these many times.
        for name in ("load_config", "group_exists", "config_exists", "get_group_options"):
            setattr(self, name, functools.cache(getattr(self, name)))

    def load_config(self, config_path: str) -> ConfigResult | None:
        """One file, path without .yaml; None when it does not exist. Raises HydraException and yaml.YAMLError."""
        if not self.config_exists(config_path):
            return None
        path = self.folder / f"{config_path}.yaml"
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
        """What one file says less its defaults list, path without .yaml, shared; {} when it does not exist."""
        loaded = self.load_config(path)
        return loaded.config if loaded is not None else {}

    def options(self, group: str, kind: ObjectType = ObjectType.CONFIG) -> list[str]:
        """The files, or the groups, below a group, sorted."""
        return list(self.get_group_options(group, kind)) if self.group_exists(group) else []


@functools.lru_cache(maxsize=4096)
def _result(text: str, config_path: str) -> ConfigResult:
    """A file's plain content and its defaults list, by what it says. Raises yaml.YAMLError, ValueError."""
    content = yaml.load(text, Loader=_Loader)
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ValueError(f"a file holds a mapping, not {type(content).__name__}")
    defaults = content.pop("defaults", None)
    if not isinstance(defaults, (list, type(None))):
        raise ValueError(f"defaults must be a list, not {type(defaults).__name__}")
    ours = [one for one in defaults or [] if not _is_hydras(one)]
    listed = _READER._create_defaults_list(config_path, OmegaConf.create(ours))
    header = ConfigSource._get_header_dict(text[:512])
    return ConfigResult("main", config_path, content, header, listed)


def _is_hydras(default: Any) -> bool:
    """Whether an entry of a defaults list chooses a part of Hydra's own: `override hydra/sweeper: ...`."""
    names = default if isinstance(default, dict) else [default]
    return any(str(name).split(" ")[-1].lstrip("/").startswith(_HYDRA) for name in names)

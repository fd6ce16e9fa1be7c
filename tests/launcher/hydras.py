"""Hydra itself, the oracle of compositions, without reading the same files a hundred times."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hydra._internal.config_repository import ConfigRepository

from tests.launcher.conftest import ROOT
from trainer_ext.application import verl_tree

# Nobody edits these while the tests run, as they do the copies of conf/.
UNCHANGING = {f"{folder}" for folder in (ROOT / "conf", verl_tree.config_folder())}
_READ: dict[tuple[Any, ...], Any] = {}


@contextmanager
def files_read_once() -> Iterator[None]:
    """Hydra reads each shipped file once in this process, and is given a copy of what it read."""
    read = ConfigRepository.load_config

    def load_config(self: ConfigRepository, config_path: str) -> Any:
        folders = [source.path for source in self.sources if source.scheme() == "file"]
        if not UNCHANGING.issuperset(folders):
            return read(self, config_path)
        key = (*folders, config_path)
        if key not in _READ:
            _READ[key] = read(self, config_path)
        return copy.deepcopy(_READ[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", load_config)
        yield

"""What Hydra finds of rlsweep. Hydra looks for plugins in this folder only, so it holds thin subclasses."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper

from launcher.commands.sweeper import ReconcilingSweeper
from launcher.config import installed_parts


class RlsweepSweeper(ReconcilingSweeper, Sweeper):
    """`hydra/sweeper: rlsweep`; the work is in launcher/commands/sweeper.py."""


class InstalledParts(SearchPathPlugin):
    """The configurations of installed packages that bring methods or tasks."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in installed_parts.folders():
            search_path.append("rlsweep", str(folder))


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="rlsweep",
    node={"_target_": "hydra_plugins.rlsweep.RlsweepSweeper", "arguments": []},
    provider="rlsweep",
)

"""What Hydra finds of rlsweep. Hydra looks for plugins in this folder only, so it holds thin subclasses."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper

from launcher.commands.sweeper import ReconcilingSweeper
from launcher.config import installed_parts
from launcher.project import CONF


class RlsweepSweeper(ReconcilingSweeper, Sweeper):
    """`hydra/sweeper: rlsweep`; the work is in launcher/commands/sweeper.py."""


class InstalledParts(SearchPathPlugin):
    """The configurations of installed packages that extend rlsweep."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # The search path of another program stays as it is.
        if any(str(element.path).removeprefix("file://") == str(CONF) for element in search_path.get_path()):
            for folder in installed_parts.folders():
                search_path.append("rlsweep", str(folder))


# Every key and default of the section, which launcher.planning.hydra_jobs.Sweep checks; null is an empty list or
# mapping: Hydra would refuse a value of the other kind before that check, and not name its key.
SETTINGS = {
    "experiment": {
        "name": None,
        "groups": None,
        "baseline": None,
        "seeds": None,
        "factors": None,
        "zip": None,
        "exclude": None,
    },
    "analysis": {"primary": {"metric": None, "summary": "final", "direction": None}},
    "seed_key": "seed",
    "ignore": None,
    "resources": {"nodes": 1, "gpus": 0, "cpus": 1, "memory_gb": 0.0, "time": "1:00:00"},
    "resumes": False,
    "cluster": "local",
    "tracking": {"wandb": "none", "project": "rlsweep", "entity": None, "tensorboard": False},
    "budget": {"device_hours": None},
    "code": "refuse",
    "params": None,
    "max_batch_size": None,
}

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="rlsweep",
    # Groups may hold _target_ keys of the program's own, which Hydra 1.3 would call.
    node={"_target_": "hydra_plugins.rlsweep.RlsweepSweeper", "_recursive_": False, "arguments": None, **SETTINGS},
    provider="rlsweep",
)

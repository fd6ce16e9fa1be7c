"""What Hydra finds of rlsweep: it insists on this place, so here stand only thin subclasses."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper

from launcher.execution.sweeper import ReconcilingSweeper


class RlsweepSweeper(ReconcilingSweeper, Sweeper):
    """`hydra/sweeper: rlsweep`; the work is in launcher/execution/sweeper.py."""


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="rlsweep",
    node={"_target_": "hydra_plugins.rlsweep.RlsweepSweeper", "arguments": []},
    provider="rlsweep",
)

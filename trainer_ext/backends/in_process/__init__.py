"""verl's losses and optimizer in one process, with one model and no servers.

The other backend's processes use some of these modules: importing this package imports none of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext.backends.protocol import Backend, Nodes


def create(config: Mapping[str, Any], cache: Path, nodes: Nodes) -> Backend:
    """`trainer_ext.backends.protocol.create` for this backend, which is one process."""
    from trainer_ext.backends.in_process.trainer import InProcess

    return InProcess(config, cache)


def export(config: Mapping[str, Any], checkpoint: Path, cache: Path, folder: Path, dtype: str) -> None:
    """`trainer_ext.backends.protocol.export` for this backend."""
    from trainer_ext.backends.in_process import checkpoint as checkpoints

    weights = checkpoints.load_file(checkpoint / checkpoints.WEIGHTS)
    checkpoints.export(config, checkpoint, weights, folder, dtype)

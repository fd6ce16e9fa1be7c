"""verl's V1 trainer under Ray: servers that sample, workers that train, and this project's methods between them.

The run's own process stays as it is (claim, signals, logs, checkpoints). It starts one child process, which is Ray's
driver, and asks it for one step at a time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext.backends.in_process.export import write
from trainer_ext.backends.verl_ray.process import VerlRay

__all__ = ["create", "export"]

create = VerlRay


def export(config: Mapping[str, Any], checkpoint: Path, folder: Path, dtype: str) -> None:
    """`trainer_ext.backends.export` for this backend."""
    from trainer_ext.backends.verl_ray import shards

    write(config, checkpoint, shards.whole_weights(checkpoint / "actor"), folder, dtype)

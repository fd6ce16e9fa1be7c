"""verl's V1 trainer under Ray: servers that sample, workers that train, and this project's methods between them.

The run's own process stays as it is (claim, signals, logs, checkpoints). It starts one child process, which is Ray's
driver, and asks it for one step at a time. Ray's processes import the modules that they need: importing this package
imports none of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_ext.backends.protocol import Backend, Nodes


def create(config: Mapping[str, Any], cache: Path, nodes: Nodes) -> Backend:
    """`trainer_ext.backends.protocol.create` for this backend."""
    from trainer_ext.backends.verl_ray.process import VerlRay

    return VerlRay(config, cache, nodes)


def export(config: Mapping[str, Any], checkpoint: Path, cache: Path, folder: Path, dtype: str) -> None:
    """`trainer_ext.backends.protocol.export` for this backend."""
    from trainer_ext.backends.in_process import checkpoint as checkpoints
    from trainer_ext.backends.in_process import initial_model
    from trainer_ext.backends.verl_ray import adapters, shards

    weights, settings = shards.whole_weights(checkpoint / "actor"), config["verl"].actor_rollout_ref.model
    if settings.lora_rank:
        weights = adapters.whole_weights(initial_model.start(config, cache), settings, checkpoint, weights)
    checkpoints.export(config, checkpoint, weights, folder, dtype)

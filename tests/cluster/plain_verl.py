"""Imported by verl (VERL_USE_EXTERNAL_MODULES) so that `python -m verl.trainer.main_ppo` runs without a GPU.

It brings workers, resource pool and rollout server of the backend verl_ray. Where the environment names the folder
PLAIN_VERL_STEPS, it writes the tensors of each step there, before the policy's update. Where it says PLAIN_VERL_BATCH,
that many responses are drawn as one batch; the server else waits until no more requests come.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer_ext.backends.verl_ray import plugin, rollout, workers  # isort: skip  (before verl reads the device)

import ray
import torch
import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.replica import RolloutReplicaRegistry

from trainer_ext.sampling import draws

assert plugin
ROLLOUT = "plain_hf"
_FIELDS = ["old_log_probs", "advantages", "rm_scores", "response_mask"]
_pools, _update = PPOTrainer._init_resource_pool_mgr, PPOTrainer._update_actor


class Server(rollout.HfServer):
    """Draws for verl's own requests, which have no keys."""

    _requests = itertools.count()

    def __init__(self, path: str, trust_remote_code: bool, config: Any):
        method = {"sampler": "policy", "alpha": "none"}
        super().__init__(path, trust_remote_code, replace(config, custom={"method": method, "target": None}))

    async def generate(self, *given: Any, sampling_params: dict[str, Any], **named: Any) -> Any:
        self._announced = int(os.environ.get("PLAIN_VERL_BATCH", "0"))
        key = draws.key(1, "sample", 0, next(self._requests))
        own = {**sampling_params, "seed": key, "purpose": "sample"}
        return await super().generate(*given, sampling_params=own, **named)


class Replica(rollout.HfReplica):
    """Starts such a server."""

    server_class = Server


def _on_cpus(self: PPOTrainer) -> None:
    _pools(self)
    for role in self.role_worker_mapping:
        self.role_worker_mapping[role] = ray.remote(workers.PolicyWorker)
    given = self.resource_pool_manager
    self.resource_pool_manager = workers.Pools(resource_pool_spec=given.resource_pool_spec, mapping=given.mapping)


def _kept(self: PPOTrainer, batch: Any, metrics: dict[str, Any]) -> Any:
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=_FIELDS)
    rows = {name: [row.clone() for row in data[name].unbind()] for name in _FIELDS}
    rows["uid"] = [key.rsplit("_", 2)[0] for key in batch.keys]
    torch.save(rows, Path(os.environ["PLAIN_VERL_STEPS"]) / f"{self.global_steps}.pt")
    return _update(self, batch, metrics)


PPOTrainer._init_resource_pool_mgr = _on_cpus
if "PLAIN_VERL_STEPS" in os.environ:
    PPOTrainer._update_actor = _kept
RolloutReplicaRegistry.register(ROLLOUT, lambda: Replica)
rollout_base._ROLLOUT_REGISTRY[(ROLLOUT, "async")] = f"{rollout.__name__}.{rollout.HfAdapter.__name__}"

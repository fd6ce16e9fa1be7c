"""Beside the engine of a rank: hands its weights to the vLLM of its replica."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from trainer_ext.backends.verl_ray import servers

_LOOK_S = 1.0


class VllmAdapter(ServerAdapter):
    """verl's adapter, with a socket of the run's own, which notices that its server is dead."""

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        rank = self.rollout_rank % int(os.environ["RAY_LOCAL_WORLD_SIZE"])
        context = ray.get_runtime_context()
        run = servers.run_of(context.get_job_id(), context.gcs_address)
        self.zmq_handle = servers.weights_socket(run, self.replica_rank, rank)

    def _get_server_name_prefix(self) -> str:
        return servers.PREFIX

    async def update_weights(self, *given: Any, **more: Any) -> None:
        """Send all parameters to the server, or end this process if the server is dead."""
        server, done = ray.get_actor(servers.server_name(self.replica_rank)), threading.Event()

        def watch() -> None:
            while not done.wait(_LOOK_S):
                try:
                    ray.get(server.__ray_ready__.remote())
                except ray.exceptions.RayActorError:
                    if not done.is_set():
                        print("the vLLM of this rank has died while it got the weights", file=sys.stderr, flush=True)
                        os._exit(1)

        # verl waits for ever until the server has read a part of the weights
        threading.Thread(target=watch, daemon=True).start()
        try:
            await super().update_weights(*given, **more)
        finally:
            done.set()

"""The rollout server on vLLM: verl's server, with a generator for each response, and with q* if the method uses it."""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any

import ray
import torch
from torch import Tensor

from trainer_ext.backends.in_process import platform

platform.use()  # before verl reads the device's name

from verl.utils.device import get_device_name  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402
from verl.workers.rollout.utils import get_vision_placeholder_token_ids  # noqa: E402
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.usage.usage_lib import UsageContext  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402

from trainer_ext.backends.verl_ray import plugin, servers, shared, vllm_worker  # noqa: E402, F401  (plugin registers)

_WATCH_S = 1.0  # seconds between two checks that the engine lives
_WORKER = f"{vllm_worker.__name__}.{vllm_worker.RolloutWorker.__name__}"


class VllmServer(servers.Failures, vLLMHttpServer):
    """A vLLM engine that answers only calls of Ray; verl's own server also listens for HTTP, without authentication."""

    def __init__(self, *given: Any, **more: Any):
        servers.Failures.__init__(self)
        context = ray.get_runtime_context()
        os.environ[vllm_worker.RUN] = servers.run_of(context.get_job_id(), context.gcs_address)
        os.environ[vllm_worker.SERVER] = str(os.getpid())
        vLLMHttpServer.__init__(self, *given, **more)
        self._sleep_level = servers.sleep_level(dict(self.config.engine_kwargs)["vllm"])
        self._purpose: str | None = None
        self._choosing = asyncio.Lock()

    async def run_server(self, args: Any) -> None:
        arguments, context = AsyncEngineArgs.from_cli_args(args), UsageContext.ENGINE_CONTEXT
        config = arguments.create_engine_config(usage_context=context)
        config.parallel_config.data_parallel_master_port = self._dp_master_port
        log = {"disable_log_stats": arguments.disable_log_stats}
        self.engine = AsyncLLM.from_vllm_config(vllm_config=config, usage_context=context, **log)
        model = self.model_config
        # tokens that the tokenizer does not have are never drawn
        masked = {
            "vocab_size": len(model.tokenizer),
            "banned_token_ids": get_vision_placeholder_token_ids(model.processor),
        }
        await self.engine.collective_rpc("monkey_patch_model", kwargs=masked)
        self._server_port = 0  # verl wants a number
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """End this process when its engine is dead, so that callers get an error in place of waiting."""
        while not self.engine.errored:
            await asyncio.sleep(_WATCH_S)
        os._exit(1)

    async def failures(self) -> list[tuple[str, bool]]:
        """The failures so far. If the engine is dead, the process ends, and the caller sees a dead server."""
        if self.engine.errored:
            os._exit(1)
        return await super().failures()

    async def announce(self, requests: int) -> None:
        """Forget what was recorded of earlier requests, because new ones follow. vLLM forms its batches itself."""
        self._failures, self._purpose = [], None

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **more: Any
    ) -> TokenOutput:
        """Draw one response with its own generator. Raises FloatingPointError if the model's outputs are not finite."""
        params = {key: value for key, value in sampling_params.items() if key not in ("row", "purpose", "greedy")}
        if sampling_params["greedy"]:
            params["temperature"] = 0.0
        await self._draw_for(sampling_params["purpose"])
        output = await super().generate(prompt_ids, params, request_id, **more)
        if not all(map(math.isfinite, output.log_probs or ())):
            raise FloatingPointError("logits")
        return output

    async def _draw_for(self, purpose: str) -> None:
        """Draw from q for training, and from the policy in evaluations."""
        async with self._choosing:
            if self._sleep_level is not None and purpose != self._purpose:
                await self.engine.collective_rpc("qstar_draw", args=(purpose != "sample",))
            self._purpose = purpose

    async def seen(self) -> list[Tensor]:
        """The rows that the proposal recorded since the last `announce`, in the order that vLLM gave them."""
        columns, numbers = (await self.engine.collective_rpc("qstar_seen"))[0]
        return [torch.frombuffer(bytearray(numbers), dtype=torch.float64).reshape(-1, columns)] if numbers else []

    def _get_worker_extension_cls(self) -> str:
        return _WORKER

    def _resolve_sleep_level(self) -> int:
        return self._sleep_level or int(super()._resolve_sleep_level())


class VllmReplica(vLLMReplica):
    """verl's replica of vLLM, with VllmServer as its server."""

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.server_class = ray.remote(VllmServer)

    def _get_server_name_prefix(self) -> str:
        return servers.PREFIX

    async def launch_servers(self) -> None:
        """Start this replica's server beside its ranks, and wait until it has its models."""
        if get_device_name() != "cpu":
            await super().launch_servers()
            return
        # verl's method asks Ray for accelerators, and these ranks have none
        node = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        server = self.server_class.options(
            name=servers.server_name(self.replica_rank),
            num_cpus=0,
            max_concurrency=self.max_concurrency,
            scheduling_strategy=shared.on_node(node),
            runtime_env={"env_vars": servers.CPU_ENVIRONMENT},
        ).remote(
            config=self.config,
            model_config=self.model_config,
            rollout_mode=self.rollout_mode,
            workers=self.workers,
            replica_rank=self.replica_rank,
            node_rank=0,
            gpus_per_node=self.gpus_per_replica_node,
            nnodes=1,
            cuda_visible_devices="",
        )
        await server.launch_server.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, servers.server_name(self.replica_rank)

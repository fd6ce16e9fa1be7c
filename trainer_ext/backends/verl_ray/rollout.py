"""A rollout server for verl without vLLM or SGLang: the project's sampler in a Ray actor, of one or more models."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any

import ray
import torch
from torch import Tensor
from verl.utils import hf_tokenizer
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from trainer_ext.backends.in_process.batch import Request, pad
from trainer_ext.backends.in_process.sampler import load_module, sample
from trainer_ext.backends.verl_ray import plugin, servers, shared  # noqa: F401  (before verl reads the device's name)
from trainer_ext.fits import devices
from trainer_ext.registry import models_read
from trainer_ext.sampling.proposal import Weighted, greedy_where, proposal_of

_QUIET_S = 0.1  # without a new request: those that wait are drawn
_PATIENCE_S = 5.0  # the same while some that were announced have not come


class HfServer(servers.Failures):
    """Answers concurrent requests in batches, with the methods that verl calls of a server."""

    def __init__(self, path: str, trust_remote_code: bool, config: Any):
        """path: of the starting model; trust_remote_code: whether code that comes with models may run; config: verl's
        of the rollout, whose `custom` has the method and the target policy's folder."""
        super().__init__()
        torch.set_num_threads(1)
        self._method = dict(config.custom["method"])
        load = partial(load_module, dtype=getattr(torch, config.dtype), trust_remote_code=trust_remote_code)
        folders = {"target": config.custom["target"]}
        self._modules = {name: load(folders.get(name, path)) for name in models_read(self._method)}
        self._policy: dict[str, Tensor] = self._modules["policy"].state_dict()
        self._received: set[str] = set()
        tokenizer = hf_tokenizer(path, trust_remote_code=trust_remote_code)  # with a token for padding in any case
        self._pad, self._eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self._length, self._most = config.response_length, config.max_num_seqs
        self._waiting: list[Any] = []
        self._worker: asyncio.Task[None] | None = None
        self._announced = 0
        self._step: int | None = None
        self._seen: list[Tensor] = []

    async def sleep(self, *_: Any, **__: Any) -> None:
        """Give the memory that the drawing has used on the device to the training beside it."""
        torch.cuda.empty_cache()

    async def device_peak(self) -> int:
        """The most bytes that this process has held on its device; 0 on a CPU."""
        return torch.cuda.max_memory_allocated()

    async def load_weights(self, part: dict[str, Any]) -> None:
        """Some of the policy's parameters, after an update (servers.sent)."""
        for name, tensor in servers.received(part):
            self._policy[name].copy_(tensor)
            self._received.add(name)
        if devices.kind() == devices.CUDA:
            torch.cuda.synchronize()  # the sender may write its copies again

    async def loaded(self, step: int | None) -> None:
        """All parameters have come. RuntimeError: some have not."""
        missing, self._received = self._policy.keys() - self._received, set()
        if missing:
            raise RuntimeError(f"the server has not got the weights of {', '.join(sorted(missing))}")
        self._step = step

    async def announce(self, requests: int) -> None:
        """How many requests this server gets now, to draw as one batch; forget what was seen of those before."""
        self._announced, self._seen, self._failures = requests, [], []

    async def seen(self) -> list[Tensor]:
        """What the proposal saw since the last announcement, in the order of the batches."""
        return self._seen

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """One response, drawn in a batch with the other requests that wait."""
        answer: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(prompt_ids), dict(sampling_params), answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            size, quiet = 0, 0.0
            while quiet < (_PATIENCE_S if len(self._waiting) < self._announced else _QUIET_S):
                quiet = quiet + 0.02 if size == len(self._waiting) else 0.0
                size = len(self._waiting)
                if size == self._announced:
                    break
                await asyncio.sleep(0.02)
            batch, self._waiting = self._waiting, []
            batch.sort(key=lambda entry: entry[1]["seed"])  # whatever order they came in
            try:
                outputs = []
                for first in range(0, len(batch), self._most):
                    outputs += await asyncio.to_thread(self._draw, batch[first : first + self._most])
                for (_, _, answer), output in zip(batch, outputs, strict=True):
                    answer.set_result(output)
            except Exception as error:
                for _, _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)

    def _draw(self, batch: list[Any]) -> list[TokenOutput]:
        (purpose,) = {parameters["purpose"] for _, parameters, _ in batch}
        prompts, mask = pad([prompt for prompt, _, _ in batch], self._pad, left=True)
        temperature = float(batch[0][1]["temperature"])
        where = devices.kind()
        request = Request(prompts.to(where), mask.to(where), 1, self._length, temperature, self._eos, self._pad)
        keys = [parameters["seed"] for _, parameters, _ in batch]
        if purpose == "sample":
            proposal, names = proposal_of(self._method), models_read(self._method)
        else:
            greedy = torch.tensor([parameters["greedy"] for _, parameters, _ in batch], device=where)
            proposal, names = greedy_where(greedy), ["policy"]
        sampled = sample([self._modules[name] for name in names], request, keys, proposal)
        if isinstance(proposal, Weighted):
            self._seen.append(torch.cat(proposal.seen).cpu())
        outputs = []
        for row, keep in enumerate(sampled.batch.mask):
            tokens = sampled.batch.responses[row][keep].tolist()
            outputs.append(
                TokenOutput(
                    token_ids=tokens,
                    log_probs=sampled.behaviour[row][keep].tolist(),
                    stop_reason="completed" if tokens[-1] == self._eos else "length",
                    extra_fields={"global_steps": self._step},
                )
            )
        return outputs


def _place(_: Any) -> tuple[str, dict[str, str]]:
    """Ray's id of the node of a rank, and the environment with its devices there: asked in its process."""
    return ray.get_runtime_context().get_node_id(), devices.visible()


class HfReplica(RolloutReplica):
    """One server for each rank of the training."""

    server_class = HfServer

    async def launch_servers(self) -> None:
        """Start this replica's server beside its rank, and wait until it has its models."""
        name = servers.server_name(self.replica_rank)
        node, variables = await self.workers[0].__ray_call__.remote(_place)
        placed = ray.remote(self.server_class).options(
            name=name,
            num_cpus=0,
            max_concurrency=4096,
            scheduling_strategy=shared.on_node(node),
            runtime_env={"env_vars": variables},
        )
        server = placed.remote(self.model_config.path, self.model_config.trust_remote_code, self.config)
        await server.sleep.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, name


class HfAdapter(BaseRollout):
    """Beside the engine: hands its weights to the server of its rank."""

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Nothing to release."""

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        """Send all parameters, in the type of the server's."""
        server = ray.get_actor(servers.server_name(int(os.environ["RANK"])))
        for part in servers.parts(weights, getattr(torch, self.config.dtype)):
            await server.load_weights.remote(servers.sent(part))
        await server.loaded.remote(global_steps)

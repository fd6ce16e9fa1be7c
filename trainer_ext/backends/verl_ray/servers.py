"""The servers that draw the responses: their classes, their actors' names, vLLM's settings, and how they get weights.

On a CPU weights pass through Ray's store of objects, in shared memory. On a GPU, which both processes use, the server
gets handles of the rank's memory (CUDA IPC) and copies from there. Nothing here imports verl or vLLM.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from trainer_ext import registry
from trainer_ext.backends.vllm_qstar.settings import KEY, engine_arguments

_PACKAGE = "trainer_ext.backends.verl_ray"
#: Value of trainer.rollout -> the class that starts a server, and the one that gives it the weights of a rank.
CLASSES = {
    "hf": (f"{_PACKAGE}.rollout.HfReplica", f"{_PACKAGE}.rollout.HfAdapter"),
    "vllm": (f"{_PACKAGE}.vllm_server.VllmReplica", f"{_PACKAGE}.vllm_adapter.VllmAdapter"),
}
#: Before the names of the servers' actors.
PREFIX = "rlsweep_"
#: The environment of a server on a CPU. A server has one thread, as every process of a run, and vLLM would bind the
#: threads of all servers to the same cores.
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
#: Bytes that are handed over at a time; a larger tensor alone.
PART = 2**26


def name_in_verl(rollout: str) -> str:
    """The name of the servers of a trainer.rollout in verl's registries; verl has servers named `hf` and `vllm`."""
    return f"{PREFIX}{rollout}"


def server_name(replica: int) -> str:
    """The name of the actor that draws for a replica, as verl makes such names: a replica has one node."""
    return f"{PREFIX}server_{replica}_0"


def weights_socket(run: str, replica: int, rank: int) -> str:
    """Where a rank gives its weights to the vLLM of a replica; run: of `run_of`; rank: on its node, in the replica."""
    return f"ipc:///tmp/rlsweep-{run}-{replica}-{rank}.sock"


def run_of(job: str, address: str) -> str:
    """A word that no other run on this machine has; job: Ray's number of the job; address: of its Ray.

    verl's names have Ray's number of the job alone, which is the same in each Ray that starts: two runs on one machine
    would read each other's weights.
    """
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    return hashlib.sha256(f"{job}/{address}/{token}".encode()).hexdigest()[:16]


class Failures:
    """What a server remembers of responses that failed since it was last told of new requests."""

    def __init__(self) -> None:
        self._failures: list[tuple[str, bool]] = []

    async def failed(self, text: str, not_numbers: bool) -> None:
        """Remember why a response failed; not_numbers: because a model's outputs are not numbers."""
        self._failures.append((text, not_numbers))

    async def failures(self) -> list[tuple[str, bool]]:
        """What `failed` remembered since the last announcement."""
        return self._failures


def vllm_section(config: Mapping[str, Any], model: str, target: str | None) -> dict[str, Any]:
    """Values of verl's section `rollout` for vLLM's servers. model, target: folders.

    ValueError: tokens would not be drawn from q.
    """
    verl, method = config["verl"], config["method"]
    with_target = method["sampler"] in registry.WITH_TARGET
    rollout = verl.actor_rollout_ref.rollout
    on_gpu = int((config["model"].get("resources") or {}).get("devices") or 0) > 0
    length = int(verl.data.max_prompt_length) + int(verl.data.max_response_length)
    # other backends end a response at the tokenizer's token alone, and so does vLLM without the model's own file
    options: dict[str, Any] = {"generation_config": "vllm"}
    if with_target:
        # a server that sleeps gives its memory to the training; at level 1 it keeps the weights, also the target's
        arguments = engine_arguments(
            model, target, float(rollout.temperature), method, sleep_level=int(on_gpu), max_model_len=length
        )
        options |= {name: arguments[name] for name in ("hf_overrides", "logits_processors")}
        options["async_scheduling"] = False  # it computes q once more after the last token of a response
    return {
        "max_model_len": length,
        "max_num_batched_tokens": max(int(rollout.max_num_batched_tokens), int(rollout.max_num_seqs), length),
        "load_format": "auto" if with_target else "dummy",  # the policy's weights come before the first step
        "enforce_eager": not on_gpu,
        "enable_sleep_mode": on_gpu,
        "free_cache_engine": on_gpu,
        "logprobs_mode": "processed_logprobs",
        "engine_kwargs": {"vllm": options},
    }


def sleep_level(engine: Mapping[str, Any]) -> int | None:
    """The only level at which an engine with these settings (`engine_kwargs.vllm`) may sleep; None: any."""
    level = engine.get("hf_overrides", {}).get(KEY, {}).get("sleep_level")
    return None if level is None else int(level)


def parts(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Copies of the weights in this type, in parts of about PART bytes. The copies of one part exist at a time."""
    part: dict[str, Tensor] = {}
    held = 0
    for name, tensor in weights:
        size = tensor.numel() * dtype.itemsize
        if part and held + size > PART:
            yield part
            part, held = {}, 0
        part[name] = tensor.detach().to(dtype, copy=True).contiguous()
        held += size
    yield part


def sent(part: Mapping[str, Tensor]) -> dict[str, Any]:
    """What another process gets of a part. The part must exist until `received` there has been read."""
    if any(tensor.is_cuda for tensor in part.values()):
        torch.cuda.synchronize()  # what computes the copies
        return {name: reduce_tensor(tensor) for name, tensor in part.items()}
    return dict(part)


def received(part: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a part that another process has sent; those of a GPU are in its memory."""
    for name, one in part.items():
        if isinstance(one, Tensor):
            yield name, one
        else:
            rebuild, given = one
            yield name, rebuild(*given)

"""verl on a CPU through its public hooks: a platform, an engine, and a process group of one.

verl falls back to CUDA when it finds no accelerator, so `use()` must run before verl's engines are imported: they read
the device's name once, at import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import set_platform

from trainer_ext.fits import devices


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


# The torch.cuda functions that verl calls on its device module, for a device without memory of its own.
_MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
_DEVICE_MODULE = SimpleNamespace(
    **dict.fromkeys(_MEMORY, _answering(0)),
    **dict.fromkeys(("reset_peak_memory_stats", "empty_cache", "synchronize", "set_device"), _answering(None)),
    mem_get_info=_answering((0, 0)),
    current_device=_answering("cpu"),
    get_device_name=_answering("CPU"),
    device_count=_answering(1),
    is_available=_answering(True),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
)
#: What a machine without an accelerator answers to the methods of verl's PlatformBase; those not named do nothing.
_ANSWERS = {
    "is_available": True,
    "current_device": "cpu",  # verl gives it to Tensor.to; an index would mean an accelerator
    "device_count": 1,
    "get_device_capability": (None, None),
    "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES",
    "nvtx_range": nullcontext(),
    "ray_resource_name": "CPU",
    "ray_noset_envvars": [],
    "is_ipc_supported": False,
}
_METHODS = {name: _answering(_ANSWERS.get(name)) for name in PlatformBase.__abstractmethods__}


class CpuPlatform(type("Inert", (PlatformBase,), _METHODS)):  # type: ignore[misc]
    """verl's view of a machine without an accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE_MODULE
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)


@cache
def use() -> None:
    """Choose verl's platform for the kind of device of this process."""
    if devices.kind() == devices.CPU:
        set_platform(CpuPlatform())
    elif not torch.cuda.is_available():
        set_platform(PlatformCUDA())  # of a run's process that only places others on devices


def start_process_group() -> None:
    """A process group of one rank. Its store is in this process, so that parallel runs need no ports."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    # verl's Worker requires these variables. Nothing connects to them, because the store is given below.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if torch.distributed.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)

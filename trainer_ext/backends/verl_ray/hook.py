"""What each of Ray's processes does first."""

import gc
from typing import Any

#: What each of Ray's processes needs in its environment, whoever has started its Ray.
ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TQ_LOGGING_LEVEL": "ERROR",  # it warns of the number of threads with each of thousands of tensors
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFER_QUEUE_ENABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",  # otherwise it sends them to its makers
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def collect_rarely() -> None:
    """Make garbage collections rare.

    By Python's default, a process that imports verl's thousands of modules spends an eighth of that time on them.
    """
    gc.set_threshold(50_000, 10, 10)


def in_shared_ray() -> None:
    """The same for a process in a Ray that the run shares with others."""
    collect_rarely()
    use_own_queue()


def use_own_queue() -> None:
    """Make TransferQueue find the controller of the run.

    It looks in one namespace for all programs of a Ray. The run's controller is in the run's namespace.
    """
    import ray

    get_actor = ray.get_actor

    def own(name: str, namespace: str | None = None) -> Any:
        return get_actor(name, None if namespace == "transfer_queue" else namespace)

    ray.get_actor = own

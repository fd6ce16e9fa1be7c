"""What each of Ray's processes does first."""

import gc
from typing import Any


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

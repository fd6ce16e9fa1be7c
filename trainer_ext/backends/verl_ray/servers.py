"""The servers that draw the responses: which modules have those of each `trainer.rollout`, and their actors' names.

Nothing here imports verl or vLLM.
"""

from __future__ import annotations

import hashlib
import os

_PACKAGE = "trainer_ext.backends.verl_ray"
#: Value of trainer.rollout -> the modules of the class `Replica`, which starts a server, and of the class `Adapter`,
#: which gives it the weights of a rank.
MODULES = {
    "hf": (f"{_PACKAGE}.rollout", f"{_PACKAGE}.rollout"),
    "vllm": (f"{_PACKAGE}.vllm_server", f"{_PACKAGE}.vllm_adapter"),
}
#: Before the names of the servers' actors.
PREFIX = "rlsweep_"


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

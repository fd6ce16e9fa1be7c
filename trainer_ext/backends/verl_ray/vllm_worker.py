"""What vLLM's workers also do: they take the policy's weights from a rank, and end with their server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil

from trainer_ext.backends.in_process import platform

platform.use()  # before verl reads the device's name

from torch import Tensor  # noqa: E402
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver  # noqa: E402
from verl.workers.rollout.vllm_rollout.utils import (  # noqa: E402
    monkey_patch_compute_logits,
    vLLMColocateWorkerExtension,
)

from trainer_ext.backends.verl_ray import servers  # noqa: E402
from trainer_ext.backends.vllm_qstar import worker as qstar  # noqa: E402
from trainer_ext.backends.vllm_qstar.model import QStarForCausalLM  # noqa: E402

#: Variables that a server sets for its child, vLLM's engine, and for the engine's children, its workers: its process
#: id, and the word of `servers.run_of`.
SERVER, RUN = "RLSWEEP_SERVER_PID", "RLSWEEP_RUN"
_LOOK_S = 1.0


def _end_with_server() -> None:
    """End the engine, and so its workers, once the server is dead: vLLM's engine would wait for requests for ever."""
    engine, server = psutil.Process(os.getppid()), int(os.environ[SERVER])
    while engine.ppid() == server:
        time.sleep(_LOOK_S)
    engine.kill()


class RolloutWorker(qstar.Worker, vLLMColocateWorkerExtension):
    """vLLM adds these methods to its worker (`worker_extension_cls`)."""

    def __new__(cls, **given: Any) -> Any:
        threading.Thread(target=_end_with_server, daemon=True).start()
        return super().__new__(cls, **given)

    def _iter_all_models(self) -> Iterator[Any]:
        """The models that get weights: of q's two, the policy."""
        for model in super()._iter_all_models():
            yield model.policy if isinstance(model, QStarForCausalLM) else model

    def monkey_patch_model(self, vocab_size: int, banned_token_ids: list[int] | None = None) -> None:
        """Never draw these tokens; where the server draws from q, neither the policy nor the target has them."""
        super().monkey_patch_model(vocab_size, banned_token_ids)
        model = self.model_runner.model
        if isinstance(model, QStarForCausalLM):
            monkey_patch_compute_logits(model.target, vocab_size, banned_token_ids)

    def _get_zmq_handle(self) -> str:
        return servers.weights_socket(os.environ[RUN], int(os.environ["VERL_REPLICA_RANK"]), self.local_rank)

    def update_weights_from_ipc(self, peft_config: Any = None, base_sync_done: bool = False, **given: Any) -> None:
        """Take the policy's weights; the target keeps its own.

        verl writes them in place, as they come. vLLM packs weights for CPUs, so there it has to load all of them anew.
        """
        if self.device.type != "cpu" or (peft_config and base_sync_done):
            super().update_weights_from_ipc(peft_config, base_sync_done, **given)
            return
        weights: list[tuple[str, Tensor]] = []

        def keep(some: list[tuple[str, Tensor]], is_last: bool) -> None:
            weights.extend((name, tensor.clone()) for name, tensor in some)

        BucketedWeightReceiver(self._get_zmq_handle(), self.device, **given).receive_weights(keep)
        qstar.load(self.model_runner, weights)

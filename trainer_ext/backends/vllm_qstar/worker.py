"""What vLLM's workers can be asked beyond what they know (`LLM.collective_rpc` calls these methods by name), and the
refusal of requests whose tokens would not be drawn from q*.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor

from trainer_ext.backends.vllm_qstar.model import QStarForCausalLM
from trainer_ext.backends.vllm_qstar.settings import QStarSettings, check_request


class Requests(LogitsProcessor):
    """Changes no logits."""

    policy_alone: bool

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """ValueError, to the one who asks."""
        check_request(sampling_params)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        #: Set by `Worker.qstar_draw`: of the policy alone, tokens may also be drawn greedily.
        Requests.policy_alone = False
        self._temperature = QStarSettings.of_engine(vllm_config).temperature

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        """ValueError, which ends the engine: `validate_params` does not know the engine's temperature."""
        for _, parameters, *_ in batch_update.added if batch_update else ():
            if not (self.policy_alone and parameters.temperature == 0) and parameters.temperature != self._temperature:
                raise ValueError(
                    f"temperature={parameters.temperature}: must be {self._temperature}, the engine's; at another "
                    "one policy and target, and so q, are others"
                )

    def apply(self, logits: Tensor) -> Tensor:
        return logits


def load(runner: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Give the policy new weights, under the names that transformers gives them, and let vLLM prepare them anew.

    runner: vLLM's model runner. ValueError: weights are missing.
    """
    model = runner.get_model()
    prefix, policy = ("policy.", model.policy) if isinstance(model, QStarForCausalLM) else ("", model)
    initialize_layerwise_reload(policy)
    loaded = model.load_weights(weights)
    finalize_layerwise_reload(policy, runner.model_config)
    if missing := {f"{prefix}{name}" for name, _ in policy.named_parameters()} - loaded:
        names = ", ".join(sorted(missing))
        raise ValueError(f"there are no weights for {names}; an engine cannot go on with a part of them")


class Worker:
    """vLLM adds these methods to its worker (`worker_extension_cls`)."""

    model_runner: Any

    def qstar_load_policy(self, folder: str) -> None:
        """Read the policy's weights from a folder's safetensors; the target keeps its own.

        Afterwards call `reset_prefix_cache`: what is cached of old requests comes from the old weights. vLLM packs
        weights for CPUs, so there they cannot be written in place.
        FileNotFoundError: the folder has no safetensors. ValueError: they are not all of the policy's.
        """
        files = sorted(str(path) for path in Path(folder).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{folder}: it has no .safetensors file")
        try:
            load(self.model_runner, safetensors_weights_iterator(files, use_tqdm_on_load=False))
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error

    def qstar_draw(self, from_policy: bool) -> None:
        """Draw from the policy alone, or from q; forget the tokens that were recorded, and record those of q.

        Of the policy alone, a request with temperature 0 takes the most likely token. No request may be running.
        """
        self.model_runner.get_model().draw(from_policy)
        Requests.policy_alone = from_policy

    def qstar_seen(self) -> tuple[int, bytes]:
        """What q was at the tokens since `qstar_draw`, or the last call: the columns of what the proposal has
        seen, and the numbers of all rows as float64."""
        seen = self.model_runner.get_model().seen().double().cpu()
        return seen.shape[1], seen.numpy().tobytes()

    def qstar_metrics(self) -> dict[str, float]:
        """The qstar/* values (docs/metrics.md) of the tokens since the last call; none if there were none.

        The first call begins to record: an engine that is never asked keeps nothing. A prompt that vLLM reads in
        several parts counts as one more token for each further part.
        """
        return dict(self.model_runner.get_model().metrics())

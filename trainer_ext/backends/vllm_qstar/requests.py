"""Refuses requests whose tokens would not be drawn from q*: vLLM asks its logits processors whether one is valid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor

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

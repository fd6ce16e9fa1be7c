"""The model of two towers, as vLLM 0.24 loads it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.utils import init_vllm_registered_model, maybe_prefix

from trainer_ext.backends.vllm_qstar.settings import QStarSettings, check_engine

#: Before the names of the target's weights.
_TARGET = "target."


class QStarForCausalLM(nn.Module):
    """Policy and target read the same tokens; the logits are log q, times the temperature by which vLLM divides them.

    policy, target: the towers, which are models of vLLM's own.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        check_engine(vllm_config)
        self._settings = QStarSettings.of_engine(vllm_config)
        config, path = vllm_config.model_config.hf_config, self._settings.target
        self.policy = init_vllm_registered_model(
            vllm_config,
            prefix=maybe_prefix(prefix, "policy"),
            hf_config=config,
            architectures=list(self._settings.architectures),
        )
        self.target = init_vllm_registered_model(
            vllm_config, prefix=maybe_prefix(prefix, "target"), hf_config=AutoConfig.from_pretrained(path)
        )
        #: vLLM's loader gives these to `load_weights`, after the policy's.
        self.secondary_weights = [DefaultModelLoader.Source(path, revision=None, prefix=_TARGET)]
        self._width = config.hidden_size
        self._seen: list[Tensor] | None = None  # nothing is recorded yet
        self._policy_alone = False

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """The embeddings of the policy; the target embeds the tokens itself."""
        return self.policy.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The hidden states of both towers beside each other, (tokens, width of the policy + width of the target)."""
        towers = (self.policy, self.target)
        return torch.cat([tower(input_ids, positions, intermediate_tensors, None) for tower in towers], dim=-1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """(rows, V); None on ranks of tensor parallelism that do not get the logits."""
        own = self.policy.compute_logits(hidden_states[..., : self._width].contiguous())
        if self._policy_alone:
            return own
        other = self.target.compute_logits(hidden_states[..., self._width :].contiguous())
        if own is None or other is None:
            return None
        temperature, proposal = self._settings.temperature, self._settings.proposal()
        log_p = [torch.log_softmax(logits.float() / temperature, dim=-1) for logits in (own, other)]
        log_q = proposal(log_p, torch.ones(len(own), dtype=torch.bool, device=own.device))
        if self._seen is not None:
            self._seen += proposal.seen
        return log_q * temperature

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the policy's weights, under its own names, and those of the target where vLLM's loader gives them."""
        loaded = set()
        for of_target, group in groupby(weights, key=lambda item: item[0].startswith(_TARGET)):
            name, tower = ("target", self.target) if of_target else ("policy", self.policy)
            items = ((key.removeprefix(_TARGET) if of_target else key, tensor) for key, tensor in group)
            loaded |= {f"{name}.{key}" for key in tower.load_weights(items)}
        return loaded

    def draw(self, from_policy: bool) -> None:
        """See `Worker.qstar_draw`."""
        self._policy_alone, self._seen = from_policy, []

    def seen(self) -> Tensor:
        """What q was at each position since the last call: a row each, as the proposal has them."""
        seen, self._seen = self._seen, []
        return torch.cat(seen) if seen else torch.zeros(0, 1)

    def metrics(self) -> dict[str, float]:
        """See `Worker.qstar_metrics`."""
        proposal = self._settings.proposal()
        proposal.seen, self._seen = self._seen, []
        return proposal.metrics() if proposal.seen else {}

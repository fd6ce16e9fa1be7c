"""What vLLM's workers can be asked beyond what they know: `LLM.collective_rpc` calls these methods by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator


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
        model = self.model_runner.get_model()
        initialize_layerwise_reload(model.policy)
        loaded = model.load_weights(safetensors_weights_iterator(files, use_tqdm_on_load=False))
        finalize_layerwise_reload(model.policy, self.model_runner.model_config)
        if missing := {f"policy.{name}" for name, _ in model.policy.named_parameters()} - loaded:
            names = ", ".join(sorted(missing))
            raise ValueError(f"{folder}: it has no weights for {names}; an engine cannot go on with a part of them")

    def qstar_metrics(self) -> dict[str, float]:
        """The qstar/* values (docs/metrics.md) of the tokens since the last call; none if there were none.

        The first call begins to record: an engine that is never asked keeps nothing. A prompt that vLLM reads in
        several parts counts as one more token for each further part.
        """
        return dict(self.model_runner.get_model().metrics())

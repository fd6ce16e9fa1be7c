"""Adapters (LoRA): small matrices beside the linear layers of a policy, which are trained instead of its weights.

Without its adapters, the module is the reference policy. Servers and exports get merged weights, which any program
reads as those of a whole model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import transpose
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from trainer_ext.backends.in_process import checkpoint as checkpoints
from trainer_ext.backends.in_process import platform
from trainer_ext.fits.architectures import causal_models
from trainer_ext.sampling import draws

platform.use()  # before verl's engines read the device's name

from verl.utils.device import get_device_id  # noqa: E402
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead  # noqa: E402
from verl.workers.engine.fsdp.utils import unfuse_moe_params  # noqa: E402

#: The kind of this engine in verl's registry: under verl's own name it would replace verl's engine.
KIND = "rlsweep_adapted_language_model"
_PREFIX, _BASE, _ADAPTER = "base_model.model.", ".base_layer.", "default"  # peft's words in the names of parameters


def attach(module: Any, settings: Any, seed: int) -> Any:
    """The module with adapters, which alone need gradients. They do not change its outputs yet.

    settings: verl's actor_rollout_ref.model (lora_rank, lora_alpha, target_modules); seed: of the run, which decides
    the adapters' first values. ValueError: the module has no linear layer of a name in target_modules.
    """
    head = module.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, layer in module.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D)) and layer is not head
    }
    chosen = settings.target_modules
    targets = sorted(linear) if isinstance(chosen, str) else list(chosen)
    if unknown := [name for name in targets if name not in linear]:
        raise ValueError(
            f"verl.actor_rollout_ref.model.target_modules = {targets}: the model has no linear layer "
            f"{' and no '.join(unknown)} below its head. Fix: use all-linear, or some of {', '.join(sorted(linear))}"
        )
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=int(settings.lora_rank),
        lora_alpha=int(settings.lora_alpha),
        target_modules=targets,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to False")  # peft corrects it for GPT-2's layers
        torch.manual_seed(draws.key(seed, "adapters", 0, 0))
        return get_peft_model(module, config)


def count(model: str, settings: Any) -> int:
    """Parameters of the adapters of a model in a folder, counted without its weights."""
    trust = bool(settings.trust_remote_code)
    config = AutoConfig.from_pretrained(model, trust_remote_code=trust)
    with torch.device("meta"):
        module = attach(causal_models.without_weights(config, trust), settings, seed=0)
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


@torch.no_grad()
def merged(module: Any) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the model without adapters, by its name there, with the adapters added to it.

    All ranks that share the module read it to its end together; each gets whole tensors. Those without adapters may be
    the module's own.
    """
    state: dict[str, Tensor] = module.state_dict()
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}
    for path, tensor in state.items():
        if ".lora_" in path:
            continue
        value = _whole(tensor)
        owner, _, leaf = path.rpartition(_BASE)
        if owner in layers and leaf == "weight":
            layer = layers[owner]
            down, up = (_whole(state[f"{owner}.lora_{side}.{_ADAPTER}.weight"]).float() for side in "AB")
            change = transpose(up @ down, layer.fan_in_fan_out) * layer.scaling[_ADAPTER]
            value = (value.float() + change).to(value.dtype)
        yield path.removeprefix(_PREFIX).replace(_BASE, "."), value


def _whole(tensor: Tensor) -> Tensor:
    """All of a tensor that ranks share; without other ranks it is no copy."""
    return tensor.to(get_device_id()).full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_weights(base: str, settings: Any, checkpoint: Path, adapters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model in the folder `base` with the adapters of a checkpoint merged into them, in float32.

    settings: as in `attach`. ValueError: the adapters are of another model, or of other settings.
    """
    trust = bool(settings.trust_remote_code)
    module = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, trust_remote_code=trust)
    names = [name for name, _ in module.named_parameters()]
    module = attach(module, settings, seed=0)
    trained = {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}
    checkpoints.copy_weights(checkpoint, adapters, trained)
    weights = dict(merged(module))
    return {name: weights[name] for name in names}


@EngineRegistry.register(KIND, ["fsdp2"], device=["cpu", "cuda"])
class AdaptedEngine(FSDPEngineWithLMHead):
    """The engine of a policy with adapters, and of the reference, which is the same module without them."""

    def _build_module(self) -> Any:
        self.model_config.model_type = "language_model"  # verl's method reads it to choose a class of transformers
        return super()._build_module()

    def _build_lora_module(self, module: Any) -> Any:
        return attach(module, self.model_config, int(self.engine_config.seed))

    def get_per_tensor_param(self, *_: Any, **__: Any) -> tuple[Iterator[tuple[str, Tensor]], None]:
        """Merged weights for the servers; verl's own are rounded to bfloat16."""
        return unfuse_moe_params(merged(self.module), self.model_config.hf_config.model_type), None

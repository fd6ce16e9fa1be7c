"""Imported by verl in every process of a run (model.external_lib): a CPU's platform and engine, our servers.

It registers each with verl under a name of its own, but for the engine of a device for which verl has none. On a GPU,
policy, reference and target have verl's own engines.
"""

from __future__ import annotations

import faulthandler
import pkgutil
import signal
from functools import partial
from typing import Any

# before verl's engines: it says which device there is, and what they need not import
from trainer_ext.backends.in_process.engine import value_module

# isort: split
import torch.distributed as dist
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.replica import RolloutReplicaRegistry

from trainer_ext.backends.in_process import logits
from trainer_ext.backends.verl_ray import adapters, attention, servers  # noqa: F401  (they register)
from trainer_ext.methods import policy_loss  # noqa: F401  (registers with verl)

#: The kind of a critic's engine: verl's own needs flash attention, and is registered for GPUs.
VALUE_MODEL = "rlsweep_value_model"
logits.use()
faulthandler.register(signal.SIGUSR1, all_threads=True)  # for trainer.hang_s


@EngineRegistry.register("language_model", ["fsdp2"], device="cpu")
class CpuEngine(FSDPEngineWithLMHead):
    """verl's own, of policy, reference and target, on a device for which verl has not registered it."""

    def _build_fsdp_module(self, module: Any) -> Any:
        # A forward-only module would move to an accelerator's pinned memory. Sharded as the policy is, it also gets the
        # weights of rank 0, where the other ranks have built it on the meta device.
        only, self.engine_config.forward_only = self.engine_config.forward_only, False
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config.forward_only = only


@EngineRegistry.register(VALUE_MODEL, ["fsdp2"], device=["cpu", "cuda"])
class PackedValueEngine(FSDPEngineWithValueHead):
    """The engine of a critic, always trained. The first rank reads the weights; verl sends the others their parts."""

    def _build_module(self) -> Any:
        return value_module(self.model_config, with_weights=dist.get_rank() == 0)


for _rollout, (_replica, _adapter) in servers.CLASSES.items():
    _name = servers.name_in_verl(_rollout)
    # the module of the servers imports this one
    RolloutReplicaRegistry.register(_name, partial(pkgutil.resolve_name, _replica))
    rollout_base._ROLLOUT_REGISTRY[(_name, "async")] = _adapter  # verl has no function for this one

"""Workers, and the resource pools of a run. It imports none of verl's agent loops, which need datasets and pandas."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer_ext.backends.verl_ray import plugin  # before verl's workers: it spares them what they do not need

# isort: split
import psutil
import ray
import torch
import torch.distributed as dist
from ray.util.placement_group import NODE_ID_LABEL_KEY, placement_group
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.ray import RayResourcePool, ResourcePoolManager
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import Metric
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.utils.padding import no_padding_2_padding

from trainer_ext.backends.in_process.engine import GradVariance
from trainer_ext.backends.protocol import Lost
from trainer_ext.backends.verl_ray import adapters, attention, servers, shards, shared
from trainer_ext.fits import devices
from trainer_ext.methods.losses import Loss

#: The columns that losses read.
_COLUMNS = (
    *("response_mask", "old_log_probs", "advantages", "rollout_is_weights", "ref_log_prob"),
    *("pair_weight", "values", "returns"),
)
#: The columns that the ranks read, of those that there are. verl would send them all, and move each to the device.
READ = ("input_ids", "position_ids", "prompts", "responses", "loss_mask", *_COLUMNS)
#: Reported values that agg_loss has multiplied by the number of ranks already.
_LOSSES = ("actor/pg_loss", "actor/sft_loss", "critic/vf_loss")


class _KeepsShards:
    """What the run asks all ranks of a model that is trained; `trained` gives verl's engine of it."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self.trained().optimizer.param_groups[0]["lr"])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_shards(self, folder: str) -> None:
        shards.save(Path(folder), self.trained(), dist.get_rank(), dist.get_world_size())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_shards(self, folder: str) -> None:
        shards.load(Path(folder), self.trained(), dist.get_rank(), dist.get_world_size())


class ModelWorker(_KeepsShards, TrainingWorker):
    """verl's worker of one model, with our checkpoints, in a process group on gloo, and on GPUs also on NCCL.

    verl would name the backend of a CPU twice.
    """

    def __init__(self, config: Any):
        if not dist.is_initialized():
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            # gloo would listen at the address of the host's name, which may be another one than that of Ray's node
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _device_of(ray.util.get_node_ip_address()))
            backend = "cpu:gloo" if devices.kind() == devices.CPU else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, rank=rank, world_size=size)
        if config.model_type == "value_model":
            config = replace(config, model_type=plugin.VALUE_MODEL)
        super().__init__(config)

    def trained(self) -> Any:
        return self.engine


class PolicyWorker(_KeepsShards, ActorRolloutRefWorker):
    """verl's worker of policy and reference, with our checkpoints; also scores responses under a target."""

    actor_worker_cls = ModelWorker
    ref_worker_cls = ModelWorker

    def trained(self) -> Any:
        return self.actor.engine

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """As verl's. The servers of transformers' models get the weights by the names that their modules have; verl
        gives those of experts the names that vLLM reads."""
        super().init_model()
        if self.config.rollout.name == servers.name_in_verl("hf"):
            engine = self.actor.engine
            engine.get_per_tensor_param = lambda *_, **__: (adapters.merged(engine.module), None)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_target(self, path: str) -> None:
        """Load the target, a model in a folder, as a second reference."""
        model = deepcopy(self.config.model)
        packed = model.override_config.attn_implementation if model.use_remove_padding else None
        model.path, model.override_config = path, attention.overrides(path, model.trust_remote_code, packed)
        engine = deepcopy(self.ref.config.engine_config)
        settings = replace(self.ref.config, model_config=omega_conf_to_dataclass(model), engine_config=engine)
        self.target = self.ref_worker_cls(config=settings)
        self.target.reset()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_target_log_prob(self, data: TensorDict) -> TensorDict | None:
        """See verl's compute_ref_log_prob."""
        output = self.target.infer_batch(data=data)
        return output.cpu() if output is not None else None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def device_peak(self) -> int:
        """The most bytes that this process has held on its device; 0 on a CPU."""
        return torch.cuda.max_memory_allocated()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def measure_grad_variance(self) -> None:
        """Measure from now on how much the gradients of the policy's micro-batches differ."""
        self._grad_variance = GradVariance(self.actor.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_grad_variance(self) -> float | None:
        return self._grad_variance.take()


def on_packed(
    loss: Loss, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """`loss` on the responses' part of verl's packed batches, under verl's signature.

    Its metrics are shares of the mini-batch, of which verl takes the ranks' mean.
    """
    padded = {name: no_padding_2_padding(x, data) for name, x in model_output.items()}
    columns = data.select(*[name for name in _COLUMNS if name in data]).to_padded_tensor()
    columns["response_mask"] = columns["response_mask"].bool()
    for name in ("dp_size", "batch_num_tokens", "global_batch_size"):
        tu.assign_non_tensor_data(columns, name, tu.get_non_tensor_data(data, name, None))
    value, metrics = loss(padded, columns, dp_group)
    ranks = tu.get_non_tensor_data(data, "dp_size", 1)
    for name, metric in metrics.items():
        if isinstance(metric, Metric) and name not in _LOSSES:
            metric.values = [ranks * share for share in metric.values]
    return value, metrics


def _device_of(address: str) -> str:
    """The network device that has an address of this host."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            return name
    raise RuntimeError(f"no network device of this host has the address of its Ray, {address}")


class _Pool(RayResourcePool):
    """A CPU for each rank, and a GPU if the run has them, of one node or more: a placement group on each, as verl has
    them, and no two on one node.

    verl's own groups are kept apart by the GPUs that they take.
    """

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str = "cpu"
    ) -> list[Any]:
        if self.pgs is None and (share := shared.own()) is not None:
            self.pgs = [shared.BundlePart(share, index, ranks) for index, ranks in enumerate(self._store)]
        if self.pgs is None:
            nodes = shared.nodes()
            if len(nodes) != len(self._store):
                raise Lost(f"{len(nodes)} of the Ray's {len(self._store)} nodes are alive")
            self.pgs = []
            for node, count in zip(nodes, self._store, strict=True):
                there = [{NODE_ID_LABEL_KEY: node}] * count
                bundles = [{"CPU": 1, "GPU": 1} if self.use_gpu else {"CPU": 1}] * count
                self.pgs.append(placement_group(bundles, strategy, bundle_label_selector=there))
            ray.get([group.ready() for group in self.pgs])
        return self.pgs


class Pools(ResourcePoolManager):
    """Pools of CPUs and GPUs, one of each for each rank."""

    def create_resource_pool(self) -> None:
        """verl's method counts the GPUs that are free on all nodes of a Ray."""
        on_gpus = devices.kind() == devices.CUDA
        for name, processes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = _Pool(
                process_on_nodes=processes, use_gpu=on_gpus, max_colocate_count=1, name_prefix=name
            )


class Servers(LLMServerManager):
    """verl's manager of rollout servers, without its balancer: RowClient decides itself which server answers.

    The balancer is a process of its own, which imports verl.
    """

    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = None

"""verl's whole configuration tree for a run of this backend."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from trainer_ext.backends.verl_ray import adapters, attention, reward, servers
from trainer_ext.fits import devices
from trainer_ext.fits.architectures import SDPA, causal_models
from trainer_ext.methods.update import Method

_PLUGIN = "trainer_ext.backends.verl_ray.plugin"


def whole_tree(config: Mapping[str, Any], method: Method, model: str, target: str | None, nodes: int) -> DictConfig:
    """What verl's trainer and its workers read: the run's own differences, and what this backend decides."""
    tree: DictConfig = deepcopy(config["verl"])
    section, steps = config["method"], int(config["trainer"]["steps"])
    ranks, parallel = int(config["trainer"]["ranks"]), devices.Parallel.from_model(config["model"])
    kind, precision = devices.kind_of(config["model"]), str(config["trainer"]["dtype"])
    trust = bool(tree.actor_rollout_ref.model.trust_remote_code)
    flash = kind == devices.CUDA and precision == devices.BFLOAT16 and find_spec("flash_attn") is not None
    flash = flash and causal_models.attention_of(model, trust) == SDPA
    packed = ("flash_attention_2" if flash else attention.PACKED) if flash or parallel.sequence > 1 else None
    with open_dict(tree):
        actor, rollout, ref = tree.actor_rollout_ref.actor, tree.actor_rollout_ref.rollout, tree.actor_rollout_ref.ref
        tree.data.seed = int(config["seed"])
        tree.actor_rollout_ref.model.update(
            path=model,
            external_lib=_PLUGIN,
            use_remove_padding=packed is not None,
            enable_gradient_checkpointing=kind == devices.CUDA,  # their memory is small
            override_config=attention.overrides(model, trust, packed),
        )
        actor.update(method.actor_settings())
        actor.use_kl_loss = True  # so that verl keeps a reference; our loss has the run's own value
        actor.optim.total_training_steps = steps
        actor.optim.betas = [*map(float, actor.optim.betas)]  # 0 is an integer in YAML, which torch refuses
        if tree.actor_rollout_ref.model.lora_rank:
            tree.actor_rollout_ref.model.update(model_type=adapters.KIND)
            tree.actor_rollout_ref.model.lora.merge = True  # servers get whole weights, and know of no adapters
            actor.fsdp_config.seed = int(config["seed"])  # of the adapters' first values
        mixed = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        for part in (actor, ref):
            part.strategy = part.fsdp_config.strategy = "fsdp2"
            part.use_torch_compile = part.fsdp_config.use_torch_compile = False
            part.fsdp_config.update(mixed_precision=mixed, offload_policy=parallel.offload)
            part.ulysses_sequence_parallel_size = parallel.sequence
            part.fsdp_config.ulysses_sequence_parallel_size = parallel.sequence
        rows = min(int(actor.ppo_mini_batch_size), int(tree.data.train_batch_size)) * int(rollout.n)
        rows //= ranks // parallel.sequence
        micro = min(int(actor.ppo_micro_batch_size_per_gpu), rows)
        actor.ppo_micro_batch_size_per_gpu = micro
        rollout.log_prob_micro_batch_size_per_gpu = ref.log_prob_micro_batch_size_per_gpu = micro
        rollout.update(
            name=servers.name_in_verl(config["trainer"]["rollout"]),
            seed=int(config["seed"]),
            dtype=precision,
            max_num_seqs=(config["trainer"]["rollout"] == "hf" and parallel.rows) or rollout.max_num_seqs,
            tensor_model_parallel_size=parallel.tensor,
            n_gpus_per_node=ranks // nodes,
            free_cache_engine=False,
            calculate_log_probs=True,
            custom={"method": dict(section), "target": target},
        )
        if config["trainer"]["rollout"] == "vllm":
            rollout.update(servers.vllm_section(config, model, target))
        rollout.agent.num_workers = 1
        each = 1 + int(config["trainer"]["eval_samples"])  # a greedy one first
        rollout.val_kwargs.update(n=each, temperature=rollout.temperature, top_p=1.0)
        tree.critic.enable = section["advantage"] == "gae"
        if tree.critic.enable:
            _set_critic(tree, float(section["critic_lr_ratio"]))
        tree.reward.custom_reward_function.path = f"pkg://{reward.__name__}"
        tree.reward.custom_reward_function.name = reward.compute_score.__name__
        tree.reward.custom_reward_function.reward_kwargs = {"task": dict(config["task"])}
        tree.reward.num_workers = 0  # the agent loop computes the rewards (loops.py)
        tree.trainer.update(
            device=kind, n_gpus_per_node=ranks // nodes, nnodes=nodes, resume_mode="disable", critic_warmup=0
        )
        # under any other name verl takes the buffer and the checkpoints of its asynchronous trainers
        tree.trainer.v1.trainer_mode = "sync"
        tree.transfer_queue.backend.SimpleStorage.num_data_storage_units = int(config["trainer"]["storage_units"])
    OmegaConf.set_struct(tree, True)
    OmegaConf.resolve(tree)
    return tree


def _set_critic(tree: DictConfig, lr_ratio: float) -> None:
    """verl's critic: the starting model, trained as the actor is, but for its learning rate."""
    critic, actor, model = tree.critic, tree.actor_rollout_ref.actor, tree.actor_rollout_ref.model
    tokens, micro = actor.ppo_max_token_len_per_gpu, actor.ppo_micro_batch_size_per_gpu
    critic.update(strategy=actor.strategy, ppo_micro_batch_size_per_gpu=micro)
    critic.ulysses_sequence_parallel_size = actor.ulysses_sequence_parallel_size
    critic.ppo_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu = tokens
    critic.model.update({key: model[key] for key in critic.model})
    critic.optim, critic.fsdp = deepcopy(actor.optim), deepcopy(actor.fsdp_config)
    critic.optim.lr = lr_ratio * actor.optim.lr
    # verl itself gives the sizes of micro-batches to the engines of policy and reference alone
    critic.fsdp.update(
        use_dynamic_bsz=actor.use_dynamic_bsz, micro_batch_size_per_gpu=micro, infer_micro_batch_size_per_gpu=micro
    )

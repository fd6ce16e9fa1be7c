"""What verl's tree says of vLLM's servers (`trainer.rollout=vllm`). Nothing here imports verl or vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_ext.vllm_qstar.settings import KEY, engine_arguments

#: The environment of a server on a CPU. A server has one thread, as every process of a run, and vLLM would bind the
#: threads of all servers to the same cores.
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


def draws_from_q(method: Mapping[str, Any]) -> bool:
    """Whether the servers hold two models, policy and target."""
    return bool(method["sampler"] == "geometric")


def of_rollout(config: Mapping[str, Any], model: str, target: str | None) -> dict[str, Any]:
    """Values of verl's section `rollout`; model, target: folders. ValueError: tokens would not be drawn from q."""
    verl, method = config["verl"], config["method"]
    rollout = verl.actor_rollout_ref.rollout
    on_gpu = int((config["model"].get("resources") or {}).get("devices") or 0) > 0
    length = int(verl.data.max_prompt_length) + int(verl.data.max_response_length)
    # other backends end a response at the tokenizer's token alone, and so does vLLM without the model's own file
    own: dict[str, Any] = {"generation_config": "vllm"}
    if draws_from_q(method):
        assert target is not None
        # a server that sleeps gives its memory to the training; at level 1 it keeps the weights, also the target's
        arguments = engine_arguments(
            model, target, float(rollout.temperature), method, sleep_level=int(on_gpu), max_model_len=length
        )
        own |= {name: arguments[name] for name in ("hf_overrides", "logits_processors")}
        own["async_scheduling"] = False  # it computes q once more after the last token of a response
    return {
        "max_model_len": length,
        "max_num_batched_tokens": max(int(rollout.max_num_batched_tokens), int(rollout.max_num_seqs), length),
        "load_format": "auto" if draws_from_q(method) else "dummy",  # the policy's weights come before the first step
        "enforce_eager": not on_gpu,
        "enable_sleep_mode": on_gpu,
        "free_cache_engine": on_gpu,
        "logprobs_mode": "processed_logprobs",
        "engine_kwargs": {"vllm": own},
    }


def sleep_level(engine: Mapping[str, Any]) -> int | None:
    """The only level at which an engine with these settings (`engine_kwargs.vllm`) may sleep; None: any."""
    level = engine.get("hf_overrides", {}).get(KEY, {}).get("sleep_level")
    return None if level is None else int(level)

"""Whether a run has the memory that it needs, and how much a rank of trainer=verl_ray needs, by arithmetic.

The ranks share the weights, gradients and moments of each model (FSDP2, in float32). A rank gathers one layer after the
other in the number format of `trainer.dtype`. Beside each rank is its rollout server. Nothing here loads torch.

All functions take config, the run's configuration with its device-dependent values settled (devices.settled), and verl,
verl's whole tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_ext import registry
from trainer_ext.fits import memory
from trainer_ext.fits.architectures import FLOAT, Architecture
from trainer_ext.fits.devices import Parallel, asked
from trainer_ext.fits.memory import VARIANCE, Need
from trainer_ext.objection import Objection

NUMBER = {"float32": 4, "bfloat16": 2}  # bytes
#: What a device holds beside tensors. On an H200, CUDA took 2 GB for a rank and its server. The rest is a guess, for
#: NCCL, and for what PyTorch's allocator has reserved and cannot use.
FIXED = 5_000_000_000
#: Copies of the logits of a micro-batch that a rank has at once, in the number format: in an update those of the padded
#: rows, those of the tokens, and the gradient; in scoring the first two, and another where a temperature divides them.
#: tests/trainer_ext/test_rank_memory.py measures them.
LOGITS, SCORED = 3, 2
#: Copies in float32 of memory.BLOCK logits.
COPIES_OF_BLOCK = 3
#: Bytes of weights that are on their way from a rank to its server at a time (backends/verl_ray/servers.py).
ON_THE_WAY = 2**26
#: What a vLLM server holds in its part of a device, at the least.
OF_VLLM = ("weights of the server", "cache of keys and values of one response")
_GB = 1e9
_DOING = {"sampling": "sampling", "scoring": "scoring a micro-batch", "update": "updating the policy"}
_DEVICE, _MEMORY = "model.resources.device_memory_gb", "model.resources.memory_gb"
_PARTS = 3  # parts of a sum that are named
_IN_ONE_PROCESS = (
    "verl.actor_rollout_ref.rollout.max_num_seqs",
    "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "verl.data.max_response_length",
)


def need(
    config: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, target: Architecture
) -> tuple[Need | None, Need]:
    """The memory of one rank and its server: of its device, None where nothing trains on devices; and main memory.

    target: the sizes of the target policy, if the method has one.
    """
    method, trainer, parallel = config["method"], config["trainer"], Parallel.from_model(config["model"])
    ranks, on_devices, vllm = trainer["ranks"], asked(config["model"])[1] > 0, trainer["rollout"] == "vllm"
    number = NUMBER[trainer["dtype"]]
    throughout, sampling, update, main = (dict[str, int]() for _ in range(4))

    trains = method["loss"] != "none"
    weights = FLOAT * math.ceil(model.parameters / ranks)
    adapters = model.adapters_of_layer(verl["actor_rollout_ref"]["model"])  # these alone are trained, if there are any
    trained = FLOAT * math.ceil(model.layers * adapters / ranks) if adapters else weights
    resident, of_update = (main, main) if on_devices and parallel.offload else (throughout, update)
    resident["shard of the weights"] = weights + (trained if adapters else 0)
    if trains:
        resident["shard of the moments of AdamW"] = 2 * trained
        of_update["shard of the gradients"] = trained
        if method["advantage"] == "gae":
            resident["shard of the critic and its moments"] = 3 * weights
        if trainer["grad_variance"]:
            of_update[VARIANCE] = 2 * trained

    # Models that are only asked: FSDP2 keeps their shards in main memory, also with devices.
    if not adapters:  # the policy without them is the reference
        main["shard of the reference policy"] = weights
    if method["sampler"] == "rejection":
        main["shard of the target policy"] = FLOAT * math.ceil(target.parameters / ranks)

    # The server of the rank
    read = memory.read_while_drawing(method, model, target)
    shared = parallel.tensor if vllm else 1
    served = {OF_VLLM[0]: number * math.ceil(sum(model.parameters for model in read) / shared)}
    if vllm:  # asleep while the rank trains, and lets responses wait if its cache is full
        cache = sum(model.cache(memory.length_of(verl), number) for model in read)
        sampling |= dict(zip(OF_VLLM, (*served.values(), math.ceil(cache / shared)), strict=True))
        if on_devices and method["sampler"] in registry.WITH_TARGET:  # while it sleeps, its weights are in main memory
            main |= served
    else:
        throughout |= served
        rows = rows_drawn(config, verl)  # equal prompts are read once, but these may be of as many as there are
        sampling |= memory.drawing(read, verl, rows, min(rows, int(verl["data"]["train_batch_size"])), number)
    sampling["weights on their way to the server"] = ON_THE_WAY + FLOAT * model.vocabulary * model.hidden_size

    # A micro-batch
    rows = rows_of_rank(config, verl)
    tokens = memory.micro_batch(verl, rows)[0]
    if not verl["actor_rollout_ref"]["actor"]["use_dynamic_bsz"]:
        tokens = math.ceil(tokens / parallel.sequence)  # a dynamic size is that of each rank
    logits = tokens * model.vocabulary
    block = COPIES_OF_BLOCK * FLOAT * min(logits, max(memory.BLOCK, model.vocabulary))
    scorers = [model, target] if method["sampler"] == "rejection" else [model]
    scored = SCORED + (verl["actor_rollout_ref"]["rollout"]["temperature"] != 1)
    scoring = {
        "layers gathered": max(_gathered(scorer, number) for scorer in scorers),
        "logits of a micro-batch": scored * number * logits + block,
    }
    phases = {"sampling": sampling, "scoring": scoring}
    if trains:
        update["layers gathered"] = _gathered(model, number)
        largest = max(model.parameters_of_layer, model.parameters_of_ends)  # whose gradients are summed over the ranks
        update["gradients of one layer"] = (number + FLOAT) * (adapters or largest)
        update["logits of a micro-batch"] = LOGITS * number * logits + block
        update["activations"] = memory.activations(model, tokens, on_devices, number)  # on devices, computed again
        phases["update"] = update
    if not on_devices:
        return None, Need({**throughout, **main}, phases)
    throughout["CUDA and NCCL (in part a guess)"] = FIXED
    return Need(throughout, phases), Need(main, {"update": {}})


def rows_of_rank(config: Mapping[str, Any], verl: Mapping[str, Any]) -> int:
    """The responses of a mini-batch that a rank has; ranks that share sequences have the same."""
    rollout, actor = verl["actor_rollout_ref"]["rollout"], verl["actor_rollout_ref"]["actor"]
    prompts = min(int(actor["ppo_mini_batch_size"]), int(verl["data"]["train_batch_size"]))
    sequence = Parallel.from_model(config["model"]).sequence
    return max(1, prompts * int(rollout["n"]) * sequence // int(config["trainer"]["ranks"]))


def rows_drawn(config: Mapping[str, Any], verl: Mapping[str, Any]) -> int:
    """The responses that a server of Hugging Face models draws at a time."""
    rollout = verl["actor_rollout_ref"]["rollout"]
    whole = int(verl["data"]["train_batch_size"]) * int(rollout["n"])
    most = Parallel.from_model(config["model"]).rows or int(rollout["max_num_seqs"])
    return min(math.ceil(whole / int(config["trainer"]["ranks"])), most)


def _gathered(model: Architecture, number: int) -> int:
    """Bytes of the weights that a rank has whole: embeddings and head, a layer, and the next one that is prefetched."""
    return number * (model.parameters_of_ends + min(2, model.layers) * model.parameters_of_layer)


def misfits(
    config: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, target: Architecture, reward_model: int
) -> Iterator[Objection]:
    """Why a run does not fit into the memory that it asks for. A run may state no limit.

    It states the excess in each phase with its largest parts, and the keys that lower it. target: the sizes of the
    target policy, if the method has one; reward_model: the number of its parameters.
    """
    nodes, on_each = asked(config["model"])
    places: list[tuple[str, str, int, Need, Mapping[str, int]]] = []
    if config["trainer"]["backend"] == "verl_ray":
        device, main = need(config, verl, model, target)
        ranks = math.ceil(config["trainer"]["ranks"] / nodes)  # of the fullest node, which may have the reward model
        if device is not None:
            places.append((_DEVICE, "each device", 1, device, {}))
        beside = {"reward model": FLOAT * reward_model} if reward_model else {}
        places.append((_MEMORY, f"a node with {ranks} rank{'s' if ranks > 1 else ''}", ranks, main, beside))
    else:
        whole = memory.need(config["method"], verl, model, target, on_each > 0, reward_model)
        process = {} if on_each else {"the process itself": memory.PROCESS}
        places.append((_DEVICE if on_each else _MEMORY, "the run", 1, whole, process))
    for key, who, times, needed, more in places:
        if (limit := config["model"]["resources"].get(key.rpartition(".")[2])) is None:
            continue
        utilization = None
        if key == _DEVICE and config["trainer"].get("rollout") == "vllm":
            utilization = verl["actor_rollout_ref"]["rollout"]["gpu_memory_utilization"]
        sums = {phase: _sum(needed, phase, times, more, limit, utilization) for phase in needed.phases}
        if over := [said for count, said in sums.values() if count > limit * _GB]:
            least = math.ceil(max(count for count, _ in sums.values()) / _GB)
            held = f"use {'nodes' if key == _MEMORY else 'devices'} of {least} GB and set {key}={least}"
            fix = "; or ".join([*_ways(config, verl, nodes, on_each), f"{held}, or choose a smaller model"])
            yield Objection(key, limit, f"{who} needs {'; '.join(over)}", fix)
            return


def _sum(
    needed: Need, phase: str, times: int, beside: Mapping[str, int], limit: float, utilization: float | None
) -> tuple[int, str]:
    """The bytes of a phase, and the same in words with the largest parts.

    times: ranks that share the memory; beside: what is held once; utilization: the part of a device that vLLM takes
    while it samples, None: there is no vLLM server.
    """
    items = {**needed.throughout, **needed.phases[phase]}
    parts = {**{what: times * size for what, size in items.items()}, **beside}
    count, note = sum(parts.values()), ""
    if utilization is not None and phase == "sampling":
        # vLLM takes its part of the device, and fails if that does not hold what it needs at least
        least = sum(size for what, size in items.items() if what in OF_VLLM)
        count = max(count - least + math.ceil(utilization * limit * _GB), math.ceil(least / utilization))
        note = f", all that vLLM needs within its part of the device, gpu_memory_utilization={utilization}"
    largest = sorted(parts.items(), key=lambda part: -part[1])[:_PARTS]
    listed = ", ".join(f"{what} {size / _GB:.1f}" for what, size in largest if size >= 0.005 * count)
    doing = f" while {_DOING[phase]}" if len(needed.phases) > 1 else ""
    return count, f"{count / _GB:.1f} GB{doing} ({listed}{note})"


def _ways(config: Mapping[str, Any], verl: Mapping[str, Any], nodes: int, on_each: int) -> Iterator[str]:
    """The keys that lower what a run needs, with their values."""
    if config["trainer"]["backend"] != "verl_ray":
        yield f"lower {', '.join(_IN_ONE_PROCESS)}"
        return
    parallel, trainer = Parallel.from_model(config["model"]), config["trainer"]
    actor, lora_rank = verl["actor_rollout_ref"]["actor"], verl["actor_rollout_ref"]["model"]["lora_rank"]
    vllm = trainer["rollout"] == "vllm"
    micro = 0 if actor["use_dynamic_bsz"] else int(actor["ppo_micro_batch_size_per_gpu"] or 0)
    lower = {
        "model.parallel.rows": 0 if vllm else rows_drawn(config, verl),
        "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": min(micro, rows_of_rank(config, verl)),
    }
    if named := [f"{key}={value}" for key, value in lower.items() if value > 1]:
        yield f"lower {', '.join(named)}"
    if not on_each:
        return
    more = f"model.resources.devices={on_each}, model.resources.nodes={nodes}"
    tensor = f", model.parallel.tensor={parallel.tensor}" if vllm else ""
    yield f"raise {more}, model.parallel.sequence={parallel.sequence}{tensor}"
    settings = {
        "model.parallel.offload=true": not parallel.offload,
        "trainer.grad_variance=false": trainer["grad_variance"],
        "verl.actor_rollout_ref.model.lora_rank=16 (trains adapters instead of all weights)": not lora_rank,
        "trainer.rollout=vllm (its servers share a model)": not vllm,
    }
    if chosen := [setting for setting, helps in settings.items() if helps]:
        yield f"set {', '.join(chosen)}"

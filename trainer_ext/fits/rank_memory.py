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
from trainer_ext.fits.devices import Parallel, asked, settled
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
_ROLLOUT = "verl.actor_rollout_ref.rollout"
_SHARE = f"{_ROLLOUT}.gpu_memory_utilization"
_RESPONSE = "verl.data.max_response_length"
_MICRO = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


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
    given = model, target, reward_model
    for key, (who, limit, sums) in _places(config, verl, *given).items():
        if over := [said for count, said in sums if count > limit * _GB]:
            least = math.ceil(max(count for count, _ in sums) / _GB)
            held = f"use {'nodes' if key == _MEMORY else 'devices'} of {least} GB and set {key}={least}"
            fix = "; or ".join([*_ways(config, verl, key, *given), f"{held}, or choose a smaller model"])
            yield Objection(key, limit, f"{who} needs {'; '.join(over)}", fix)
            return


def _places(
    config: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture, target: Architecture, reward_model: int
) -> dict[str, tuple[str, float, list[tuple[int, str]]]]:
    """By the key of each limit: who needs the memory, the limit, and the sum of each phase (`_sum`)."""
    (nodes, on_each), trainer = asked(config["model"]), config["trainer"]
    places: dict[str, tuple[str, int, Need | None, Mapping[str, int]]] = {}
    if trainer["backend"] == "verl_ray":
        device, main = need(config, verl, model, target)
        ranks = math.ceil(trainer["ranks"] / nodes)  # of the fullest node, which may have the reward model
        places[_DEVICE] = "each device", 1, device, {}
        beside = {"reward model": FLOAT * reward_model} if reward_model else {}
        places[_MEMORY] = f"a node with {ranks} rank{'s' if ranks > 1 else ''}", ranks, main, beside
    else:
        whole = memory.need(config["method"], verl, model, target, on_each > 0, reward_model)
        process = {} if on_each else {"the process itself": memory.PROCESS}
        places[_DEVICE if on_each else _MEMORY] = "the run", 1, whole, process
    found = {}
    for key, (who, times, needed, more) in places.items():
        limit, share = config["model"]["resources"].get(key.rpartition(".")[2]), None
        if key == _DEVICE and trainer.get("rollout") == "vllm":
            share = verl["actor_rollout_ref"]["rollout"]["gpu_memory_utilization"]
        if needed is not None and limit is not None:
            found[key] = who, limit, [_sum(needed, phase, times, more, limit, share) for phase in needed.phases]
    return found


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


def _ways(config: Mapping[str, Any], verl: Mapping[str, Any], place: str, *given: Any) -> Iterator[str]:
    """The keys that lower a run's need in one place, with their values. Each is tried. given: as `_places` takes."""
    (nodes, on_each), parallel = asked(config["model"]), Parallel.from_model(config["model"])
    ranks = None if on_each else config["trainer"].get("ranks")  # one on each device, also on more of them
    tensor = parallel.tensor if config["trainer"].get("rollout") == "vllm" else max(1, on_each)  # as vLLM can have it
    whole = _with(_with({**config, "verl": verl}, "trainer.ranks", ranks), "model.parallel.tensor", tensor)
    config = settled(whole)

    def excess(key: str, value: object) -> float:
        _, limit, sums = _places(changed := settled(_with(whole, key, value)), changed["verl"], *given)[place]
        return sum(max(0, count - limit * _GB) for count, _ in sums)

    drawn = "model.parallel.rows" if config["trainer"]["backend"] == "verl_ray" else f"{_ROLLOUT}.max_num_seqs"
    micro = min(verl["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] or 0, rows_of_rank(config, verl))
    lower = {drawn: rows_drawn(config, verl), _MICRO: micro, _RESPONSE: verl["data"]["max_response_length"]}
    more = {"model.resources.devices": on_each, "model.resources.nodes": nodes}
    more |= {"model.parallel.sequence": parallel.sequence, "model.parallel.tensor": tensor}
    now, tenths = excess("trainer.ranks", ranks), (tenth / 10 for tenth in range(1, 10))
    share = min(tenths, key=lambda share: excess(_SHARE, share))
    tried: dict[str, dict[str, tuple[object, object]]] = {
        "lower": {key: (1, value) for key, value in lower.items()},
        "raise": {key: (2 * value if on_each else value, value) for key, value in more.items()},
        "set": {
            "model.parallel.offload": (True, "true"), "trainer.grad_variance": (False, "false"), _SHARE: (share, share),
            "verl.actor_rollout_ref.model.lora_rank": (16, "16 (trains adapters instead of all weights)"),
            "trainer.rollout": ("vllm", "vllm (its servers can share a model)"),
        },
    }  # fmt: skip
    for verb, keys in tried.items():
        if named := [f"{key}={said}" for key, (value, said) in keys.items() if excess(key, value) < now]:
            yield f"{verb} {', '.join(named)}"


def _with(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the tree with one dotted key set."""
    first, _, rest = key.partition(".")
    return {**tree, first: _with(tree.get(first) or {}, rest, value) if rest else value}

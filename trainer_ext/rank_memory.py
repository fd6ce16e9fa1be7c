"""How much memory one rank of trainer=verl_ray needs, by arithmetic over the sizes of its models, in three phases.

The ranks share the weights, gradients and moments of each model (FSDP2, in float32). A rank gathers one layer after the
other in the number format of `trainer.dtype`. Beside each rank is its rollout server. Nothing here loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_ext import memory
from trainer_ext.architectures import FLOAT, Architecture
from trainer_ext.memory import VARIANCE, Need

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
#: Bytes of weights that are on their way from a rank to its server at a time (backends/verl_ray/handover.py).
ON_THE_WAY = 2**26
#: What a vLLM server holds in its part of a device, at the least.
OF_VLLM = ("weights of the server", "cache of keys and values of one response")


@dataclass(frozen=True)
class Layout:
    """How the ranks are laid out.

    dtype: of what is computed, float32 or bfloat16; offload: weights, gradients and moments stay in main memory;
    sequence: ranks that share each sequence; tensor: devices that share each vLLM server; rows: responses that a server
    of Hugging Face models draws at a time, None: as verl's tree says; server: hf or vllm; variance: whether
    actor/grad_variance is measured.
    """

    ranks: int
    nodes: int
    devices: bool
    dtype: str
    offload: bool
    sequence: int
    tensor: int
    rows: int | None
    server: str
    variance: bool


@dataclass(frozen=True)
class RankNeed:
    """Bytes of one rank and its server. device: None where nothing trains on devices."""

    device: Need | None
    main: Need


def need(
    method: Mapping[str, Any],
    verl: Mapping[str, Any],
    model: Architecture,
    target: Architecture,
    layout: Layout,
) -> RankNeed:
    """The memory of one rank. method: its section; verl: verl's whole tree; target: the sizes of the target policy, if
    the method has one.
    """
    number = NUMBER[layout.dtype]
    throughout: dict[str, int] = {}
    sampling: dict[str, int] = {}
    scoring: dict[str, int] = {}
    update: dict[str, int] = {}
    main: dict[str, int] = {}

    trains = method["loss"] != "none"
    weights = FLOAT * math.ceil(model.parameters / layout.ranks)
    adapters = model.adapters_of_layer(verl["actor_rollout_ref"]["model"])  # these alone are trained, if there are any
    trained = FLOAT * math.ceil(model.layers * adapters / layout.ranks) if adapters else weights
    own, of_update = (main, main) if layout.devices and layout.offload else (throughout, update)
    own["shard of the weights"] = weights + (trained if adapters else 0)
    if trains:
        own["shard of the moments of AdamW"] = 2 * trained
        of_update["shard of the gradients"] = trained
        if method["advantage"] == "gae":
            own["shard of the critic and its moments"] = 3 * weights
        if layout.variance:
            of_update[VARIANCE] = 3 * trained

    # Models that are only asked: FSDP2 keeps their shards in main memory, also with devices.
    if not adapters:  # the policy without them is the reference
        main["shard of the reference policy"] = weights
    if method["sampler"] == "rejection":
        main["shard of the target policy"] = FLOAT * math.ceil(target.parameters / layout.ranks)

    # The server of the rank
    read = memory.read_while_drawing(method, model, target)
    shared = layout.tensor if layout.server == "vllm" else 1
    served = {OF_VLLM[0]: number * math.ceil(sum(one.parameters for one in read) / shared)}
    if layout.server == "vllm":  # asleep while the rank trains, and lets responses wait if its cache is full
        cache = sum(one.cache(memory.length_of(verl), number) for one in read)
        sampling |= dict(zip(OF_VLLM, (*served.values(), math.ceil(cache / shared)), strict=True))
        if layout.devices and method["sampler"] == "geometric":  # while it sleeps, its weights are in main memory
            main |= served
    else:
        throughout |= served
        rows = rows_drawn(verl, layout)  # equal prompts are read once, but these may be of as many as there are
        sampling |= memory.drawing(read, verl, rows, min(rows, int(verl["data"]["train_batch_size"])), number)
    sampling["weights on their way to the server"] = ON_THE_WAY + FLOAT * model.vocabulary * model.hidden_size

    # A micro-batch
    rows = rows_of_rank(verl, layout)
    tokens = memory.micro_batch(verl, rows)[0]
    if not verl["actor_rollout_ref"]["actor"]["use_dynamic_bsz"]:
        tokens = math.ceil(tokens / layout.sequence)  # of a micro-batch of so many tokens each rank has as many anyway
    logits = tokens * model.vocabulary
    block = COPIES_OF_BLOCK * FLOAT * min(logits, max(memory.BLOCK, model.vocabulary))
    asked = [model, target] if method["sampler"] == "rejection" else [model]
    scoring["layers gathered"] = max(_gathered(one, number) for one in asked)
    scored = SCORED + (verl["actor_rollout_ref"]["rollout"]["temperature"] != 1)
    scoring["logits of a micro-batch"] = scored * number * logits + block
    phases = {"sampling": sampling, "scoring": scoring}
    if trains:
        update["layers gathered"] = _gathered(model, number)
        update["gradients of one layer"] = (number + FLOAT) * (adapters or _largest(model))
        update["logits of a micro-batch"] = LOGITS * number * logits + block
        update["activations"] = memory.activations(model, tokens, layout.devices, number)  # on devices, computed again
        phases["update"] = update
    if not layout.devices:
        return RankNeed(None, Need({**throughout, **main}, phases))
    throughout["CUDA and NCCL (in part a guess)"] = FIXED
    return RankNeed(Need(throughout, phases), Need(main, {"update": {}}))


def rows_of_rank(verl: Mapping[str, Any], layout: Layout) -> int:
    """The responses of a mini-batch that a rank has; ranks that share sequences have the same."""
    rollout, actor = verl["actor_rollout_ref"]["rollout"], verl["actor_rollout_ref"]["actor"]
    prompts = min(int(actor["ppo_mini_batch_size"]), int(verl["data"]["train_batch_size"]))
    return max(1, prompts * int(rollout["n"]) * layout.sequence // layout.ranks)


def rows_drawn(verl: Mapping[str, Any], layout: Layout) -> int:
    """The responses that a server of Hugging Face models draws at a time."""
    rollout = verl["actor_rollout_ref"]["rollout"]
    whole = int(verl["data"]["train_batch_size"]) * int(rollout["n"])
    return min(math.ceil(whole / layout.ranks), layout.rows or int(rollout["max_num_seqs"]))


def _gathered(model: Architecture, number: int) -> int:
    """Bytes of the weights that a rank has whole: embeddings and head, a layer, and the next one that is prefetched."""
    return number * (model.parameters_of_ends + min(2, model.layers) * model.parameters_of_layer)


def _largest(model: Architecture) -> int:
    """Parameters of the largest part whose gradients are summed over the ranks at once."""
    return max(model.parameters_of_layer, model.parameters_of_ends)

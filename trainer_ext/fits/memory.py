"""How much memory a run needs, by arithmetic over the sizes of its models: one process, one device, float32; and disk.

What backends/in_process holds at once, in bytes; rank_memory has the same for verl_ray. Nothing here loads torch.
Small tensors are left out, so a sum is a lower bound that is close where models are large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_ext import registry
from trainer_ext.fits.architectures import FLOAT, Architecture, embedded

#: A process with torch, transformers and verl loaded, which counts where a run has no device.
PROCESS = 600_000_000
#: Copies of the logits that one micro-batch has at once: logits, log-softmax, gradient, and one that is computed.
LOGITS = 4
#: Logits that are in float32 at a time while log-probabilities and entropies are computed; one token may have more.
BLOCK = 2**24
#: Arrays of (rows, vocabulary) while a token is drawn: logits and log-probabilities of each model, and 4 of the draw.
DRAWN_EACH, DRAWN = 2, 4
#: The name of the part for the tokens that a model has read.
KEYS_AND_VALUES = "cache of keys and values"
#: The name of the part that actor/grad_variance adds.
VARIANCE = "variance of the gradient"


@dataclass(frozen=True)
class Need:
    """Bytes by what they are for: throughout a run, and in each phase of a step beside that."""

    throughout: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]


def need(
    method: Mapping[str, Any],
    verl: Mapping[str, Any],
    model: Architecture,
    target: Architecture,
    device: bool,
    reward_model: int = 0,
) -> Need:
    """The memory of a run. method: its section; verl: verl's whole tree; target: the sizes of the target policy, if the
    method has one; device: whether it trains on a device, where activations of layers are computed again; reward_model:
    the number of its parameters.
    """
    rollout, actor, data = verl["actor_rollout_ref"]["rollout"], verl["actor_rollout_ref"]["actor"], verl["data"]
    weights = FLOAT * model.parameters
    throughout = {"weights": weights}
    trains = method["loss"] != "none"
    if trains:
        throughout |= {"gradients": weights, "moments of AdamW": 2 * weights}
    throughout["reference policy"] = weights
    if method["target"] != "none":
        throughout["target policy"] = FLOAT * target.parameters
    if method["advantage"] == "gae":
        throughout["critic with gradients and moments"] = 4 * weights
    if reward_model:
        throughout["reward model"] = FLOAT * reward_model
    rows = data["train_batch_size"] * rollout["n"]
    rows = min(rows, max(rollout["max_num_seqs"], rollout["n"]))
    prompts = math.ceil(rows / rollout["n"])  # each is read once for its group
    read = read_while_drawing(method, model, target)
    sampling = drawing(read, verl, rows, prompts)
    if not device:
        sampling["weights as oneDNN orders them"] = sum(FLOAT * of.parameters for of in read)
    tokens, read_for = micro_batch(verl, actor["ppo_mini_batch_size"] * rollout["n"])
    logits = {"logits of a micro-batch": LOGITS * read_for * model.vocabulary * FLOAT}
    phases = {"sampling": sampling, "scoring": logits}
    if trains:
        again = device and verl["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"]
        kept = activations(model, tokens, again)
        phases["update"] = {**logits, "activations": kept, VARIANCE: 2 * weights}
        sampling["gradient kept for its variance"] = weights
    return Need(throughout, phases)


def checkpoint(method: Mapping[str, Any], verl: Mapping[str, Any], model: Architecture) -> int:
    """Bytes of a checkpoint of either backend: float32 weights and, of a method that trains, the moments of AdamW. With
    adapters (LoRA), those of the adapters alone. method: its section; verl: verl's whole tree.
    """
    adapters = model.layers * model.adapters_of_layer(verl["actor_rollout_ref"]["model"])
    weights = FLOAT * (adapters or model.parameters)
    if method["loss"] == "none":
        return weights
    critic = FLOAT * model.multiplied if method["advantage"] == "gae" else 0  # its own head has one output
    return 3 * (weights + critic)


def length_of(verl: Mapping[str, Any]) -> int:
    """The most tokens of a prompt with its response."""
    return int(verl["data"]["max_prompt_length"] + verl["data"]["max_response_length"])


def read_while_drawing(method: Mapping[str, Any], model: Architecture, target: Architecture) -> list[Architecture]:
    """The models that are asked for each token: the policy first."""
    return [target if name == "target" else model for name in registry.models_read(method)]


def drawing(
    read: Sequence[Architecture], verl: Mapping[str, Any], rows: int, prompts: int, number: int = FLOAT
) -> dict[str, int]:
    """Bytes while so many responses are drawn from models: while the models read so many prompts at once, or at the
    end, whichever is more. number: bytes of keys, values and activations each."""
    length = int(verl["data"]["max_prompt_length"])
    reading = {
        KEYS_AND_VALUES: prompts * sum(model.cache(length, number) for model in read),
        "activations of the prompts": max(_of_layer(model, prompts * length, number) for model in read),
    }
    writing = {
        KEYS_AND_VALUES: rows * sum(model.cache(length_of(verl), number) for model in read),
        "probabilities of the next token": rows * read[0].vocabulary * FLOAT * (DRAWN_EACH * len(read) + DRAWN),
    }
    return max(reading, writing, key=lambda items: sum(items.values()))


def micro_batch(verl: Mapping[str, Any], rows: int) -> tuple[int, int]:
    """The most tokens of a micro-batch, and of those the most of responses. rows: responses of the mini-batch."""
    actor = verl["actor_rollout_ref"]["actor"]
    if actor["use_dynamic_bsz"]:
        return (int(actor["ppo_max_token_len_per_gpu"]),) * 2
    micro = min(actor["ppo_micro_batch_size_per_gpu"] or rows, rows)
    return micro * length_of(verl), micro * int(verl["data"]["max_response_length"])


def activations(model: Architecture, tokens: int, again: bool, number: int = FLOAT) -> int:
    """Bytes kept from a forward pass for its backward pass. again: those inside of layers are computed again; number:
    bytes of each value."""
    inner = _of_layer(model, tokens, number)
    return inner + tokens * number * model.layers * model.hidden_size if again else model.layers * inner


def _of_layer(model: Architecture, tokens: int, number: int) -> int:
    """Bytes of the activations inside of one layer."""
    return tokens * number * (8 * model.hidden_size + 3 * model.intermediate_size)


def target_of(
    model: Architecture, section: Mapping[str, Any], method: Mapping[str, Any], from_path: Architecture | None
) -> Architecture:
    """The sizes of the target policy. section: the configuration's `model`; from_path: of the model in target_path."""
    if method["target"] == "large":
        return embedded(section, method["target_width"], method["target_depth"])
    return from_path or model

"""How much memory a run needs, by arithmetic over the sizes of its models: one process, one device, float32.

What backends/in_process holds at once, in bytes; rank_memory has the same for verl_ray. Nothing here loads torch.
Small tensors are left out, so a sum is a lower bound that is close where models are large.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOAT = 4  # bytes
#: A process with torch, transformers and verl loaded, which counts where a run has no device.
PROCESS = 600_000_000
#: The vocabulary and the positions of embedded models (initial_model.py).
EMBEDDED_VOCABULARY, EMBEDDED_POSITIONS = 99, 512
#: Copies of the logits that one micro-batch has at once: logits, log-softmax, gradient, and one that is computed.
LOGITS = 4
#: Of (rows, vocabulary) while a token is drawn: for each model logits and log-probabilities, and of the draw the rest.
DRAWN_EACH, DRAWN = 2, 4
#: What actor/grad_variance costs.
VARIANCE = "variance of the gradient"


@dataclass(frozen=True)
class Architecture:
    """The sizes of a causal language model. family: gpt2, gpt_neox, llama or qwen2; tied: the head is the embedding."""

    family: str
    vocabulary: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    positions: int
    tied: bool

    @property
    def parameters(self) -> int:
        """The exact number of parameters."""
        return self.parameters_of_ends + self.layers * self.parameters_of_layer

    @property
    def parameters_of_layer(self) -> int:
        """The exact number of parameters of one layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        if self.family in ("gpt2", "gpt_neox"):  # with biases, and two norms of weight and bias
            return 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * inner + 2 * hidden
        return layer + queries + 2 * keys if self.family == "qwen2" else layer

    @property
    def parameters_of_ends(self) -> int:
        """The exact number of parameters outside the layers: embeddings, head and last norm."""
        embeddings = self.vocabulary * self.hidden_size * (1 if self.tied else 2)
        if self.family == "gpt2":
            embeddings += self.positions * self.hidden_size  # learned; the others rotate
        return embeddings + (2 if self.family in ("gpt2", "gpt_neox") else 1) * self.hidden_size

    @property
    def linear(self) -> dict[str, list[tuple[int, int]]]:
        """The linear layers of each layer by name: inputs and outputs. The head is not among them."""
        hidden, inner = self.hidden_size, self.intermediate_size
        if self.family == "gpt2":
            both = [(hidden, hidden), (inner, hidden)]
            return {"c_attn": [(hidden, 3 * hidden)], "c_proj": both, "c_fc": [(hidden, inner)]}
        if self.family == "gpt_neox":
            ends = {"query_key_value": [(hidden, 3 * hidden)], "dense": [(hidden, hidden)]}
            return {**ends, "dense_h_to_4h": [(hidden, inner)], "dense_4h_to_h": [(inner, hidden)]}
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        attention = {"q_proj": [(hidden, queries)], "k_proj": [(hidden, keys)], "v_proj": [(hidden, keys)]}
        gated = {"gate_proj": [(hidden, inner)], "up_proj": [(hidden, inner)], "down_proj": [(inner, hidden)]}
        return {**attention, "o_proj": [(queries, hidden)], **gated}

    def adapters_of_layer(self, settings: Mapping[str, Any]) -> int:
        """The parameters of one layer's adapters (LoRA); 0 without any. settings: verl's actor_rollout_ref.model."""
        chosen = settings["target_modules"]
        names = self.linear if isinstance(chosen, str) else chosen
        return int(settings["lora_rank"]) * sum(sum(sizes) for name in names for sizes in self.linear.get(name, ()))

    def cache_of_token(self, number: int = FLOAT) -> int:
        """Bytes of keys and values of one token. number: bytes of each."""
        return self.layers * 2 * self.key_value_heads * self.head_size * number


def embedded(model: Mapping[str, Any], width: int = 1, depth: int = 1) -> Architecture:
    """The sizes of an embedded model, or of a larger one beside it."""
    heads = width * model["heads"]
    hidden = width * model["hidden_size"]
    return Architecture(
        family="llama",
        vocabulary=EMBEDDED_VOCABULARY,
        hidden_size=hidden,
        intermediate_size=width * model["intermediate_size"],
        layers=depth * model["layers"],
        heads=heads,
        key_value_heads=heads,
        head_size=hidden // heads,
        positions=EMBEDDED_POSITIONS,
        tied=False,
    )


def of_folder(folder: Path) -> Architecture | None:
    """The sizes of a model in a folder, by its config.json; None: there is none, or it is of another family."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        family = config["model_type"]
        if family == "gpt2":
            hidden, heads = config["n_embd"], config["n_head"]
            return Architecture(
                family=family,
                vocabulary=config["vocab_size"],
                hidden_size=hidden,
                intermediate_size=config.get("n_inner") or 4 * hidden,
                layers=config["n_layer"],
                heads=heads,
                key_value_heads=heads,
                head_size=hidden // heads,
                positions=config["n_positions"],
                tied=config.get("tie_word_embeddings", True),
            )
        if family not in ("gpt_neox", "llama", "qwen2"):
            return None
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return Architecture(
            family=family,
            vocabulary=config["vocab_size"],
            hidden_size=hidden,
            intermediate_size=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or hidden // heads,
            positions=config["max_position_embeddings"],
            tied=config.get("tie_word_embeddings", False),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Need:
    """Bytes by what they are for: throughout a run, and in each phase of a step beside that."""

    throughout: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]

    @property
    def peak(self) -> str:
        """The phase that needs the most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def items(self) -> dict[str, int]:
        """What is held at the peak."""
        return {**self.throughout, **self.phases[self.peak]}

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.items.values())


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
    sampling = drawing(read_while_drawing(method, model, target), rows, length_of(verl))
    tokens, read_for = micro_batch(verl, actor["ppo_mini_batch_size"] * rollout["n"])
    logits = {"logits of a micro-batch": LOGITS * read_for * model.vocabulary * FLOAT}
    phases = {"sampling": sampling, "scoring": logits}
    if trains:
        again = device and verl["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"]
        kept = activations(model, tokens, again)
        phases["update"] = {**logits, "activations": kept, VARIANCE: 3 * weights}
        sampling["gradient kept for its variance"] = weights
    return Need(throughout, phases)


def length_of(verl: Mapping[str, Any]) -> int:
    """The most tokens of a prompt with its response."""
    return int(verl["data"]["max_prompt_length"] + verl["data"]["max_response_length"])


def read_while_drawing(method: Mapping[str, Any], model: Architecture, target: Architecture) -> list[Architecture]:
    """The models that are asked for each token: the policy first."""
    read = [model]
    if method["sampler"] in ("target", "geometric"):
        read.append(target)
    if method["alpha"] == "snr_max":
        read.append(model)
    return read


def drawing(read: Sequence[Architecture], rows: int, length: int, number: int = FLOAT) -> dict[str, int]:
    """Bytes while so many responses of `length` tokens are drawn from models. number: bytes of keys and values each."""
    return {
        "cache of keys and values": rows * length * sum(one.cache_of_token(number) for one in read),
        "probabilities of the next token": rows * read[0].vocabulary * FLOAT * (DRAWN_EACH * len(read) + DRAWN),
    }


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
    inner = tokens * number * (8 * model.hidden_size + 3 * model.intermediate_size)
    return inner + tokens * number * model.layers * model.hidden_size if again else model.layers * inner


def target_of(
    model: Architecture, section: Mapping[str, Any], method: Mapping[str, Any], own: Architecture | None
) -> Architecture:
    """The sizes of the target policy. section: the configuration's `model`; own: sizes of the one in target_path."""
    if method["target"] == "large":
        return embedded(section, method["target_width"], method["target_depth"])
    return own or model

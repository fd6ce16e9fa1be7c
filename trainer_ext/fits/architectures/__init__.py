"""The sizes of causal language models, from their configurations: how many parameters, heads and positions they have.

Of four families by formulas. Of every other one, and of a folder whose files do not show by themselves that a run can
load them, transformers builds the model without its weights, in a process of its own (causal_models), because nothing
in this module loads torch.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from trainer_ext.fits import chat
from trainer_ext.objection import Objection

FLOAT = 4  # bytes
#: The vocabulary and the positions of embedded models (initial_model.py).
EMBEDDED_VOCABULARY, EMBEDDED_POSITIONS = 99, 512
#: Attention of torch, which every device has; and transformers' own, for models that need more than torch's computes.
SDPA, EAGER = "sdpa", "eager"
_ROOT = Path(__file__).parents[3]
_LIMIT_S = 120.0  # for the imports of transformers and of the code that comes with a model


def unusable(rule: str, fix: str) -> Objection:
    """Why a model cannot be trained."""
    return Objection("model.path", None, rule, fix)


@dataclass(frozen=True)
class Architecture:
    """The sizes of a causal language model: of gpt2, gpt_neox, llama and qwen2 by formulas, of others as counted.

    tied: the head is the embedding. positions: the most tokens that it reads, None: any number. In a mixture of
    experts, intermediate_size is the sum over the experts that are chosen for a token.

    Counted of the module of another family: of_layers, the parameters of each layer; of_ends, all others; windows, of
    each layer the most tokens whose keys and values it keeps, None: all; kept, the numbers that it keeps of a token;
    shapes, `linear` of the layer that has the most; attention, SDPA or EAGER; has_critic, whether transformers has the
    class for token classification, from which critics are made.
    """

    family: str
    vocabulary: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    positions: int | None
    tied: bool
    of_layers: tuple[int, ...] = ()
    of_ends: int = 0
    windows: tuple[int | None, ...] = ()
    kept: int = 0
    shapes: Mapping[str, Sequence[tuple[int, int]]] | None = None
    attention: str = SDPA
    has_critic: bool = True

    @property
    def parameters(self) -> int:
        """The exact number of parameters."""
        return self.parameters_of_ends + (sum(self.of_layers) or self.layers * self.parameters_of_layer)

    @property
    def multiplied(self) -> int:
        """The parameters that a token is multiplied with: all without the embedding, but with the head."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden_size)

    @property
    def parameters_of_layer(self) -> int:
        """The exact number of parameters of one layer; of layers that differ, the largest one's."""
        if self.of_layers:
            return max(self.of_layers)
        hidden, inner = self.hidden_size, self.intermediate_size
        if self.family in ("gpt2", "gpt_neox"):  # with biases, and two norms of weight and bias
            return 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * inner + 2 * hidden
        return layer + queries + 2 * keys if self.family == "qwen2" else layer

    @property
    def parameters_of_ends(self) -> int:
        """The exact number of parameters outside the layers: embeddings, head and last norm."""
        if self.of_layers:
            return self.of_ends
        embeddings = self.vocabulary * self.hidden_size * (1 if self.tied else 2)
        if self.family == "gpt2":
            embeddings += (self.positions or 0) * self.hidden_size  # learned; the others rotate
        return embeddings + (2 if self.family in ("gpt2", "gpt_neox") else 1) * self.hidden_size

    @property
    def linear(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """The linear layers of each layer by name: inputs and outputs. The head is not among them."""
        if self.shapes is not None:
            return self.shapes
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

    def cache(self, tokens: int, number: int = FLOAT) -> int:
        """Bytes of the keys and values of so many tokens. number: bytes of each."""
        windows = self.windows or (None,) * self.layers
        tokens_kept = sum(tokens if window is None else min(tokens, window) for window in windows)
        return tokens_kept * (self.kept or 2 * self.key_value_heads * self.head_size) * number

    def unpackable(self, length: int) -> str | None:
        """Why sequences of so many tokens cannot be shared by ranks, whose attention is torch's; None: they can."""
        if self.attention != SDPA:
            return "its attention caps or biases its logits, which torch's attention does not compute"
        least = min((window for window in self.windows if window is not None), default=length)
        if least < length:
            return f"some of its layers attend to the last {least} tokens alone, and a sequence has up to {length}"
        return None


def embedded(model: Mapping[str, Any], width: int = 1, depth: int = 1) -> Architecture:
    """The sizes of an embedded model, or of a larger one beside it. model: the section of the configuration."""
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


def of_model(path: Any, trust_remote_code: bool = False, key: str = "model.path") -> Architecture | None:
    """The sizes of a model in a folder, or of a name on the hub that has been loaded on this machine before, by its
    config.json; None: there is no such file.

    trust_remote_code: whether code that comes with the model may be run; key: of the configuration, which names the
    model. Objection: the model cannot be trained, or what is in its folder cannot be loaded.
    """
    file = Path(os.path.expanduser(str(path))) / "config.json"
    loaded: tuple[str, ...] = ()
    if not file.parent.is_dir():
        file = _in_hubs_cache(str(path)) or file
    elif any(file.parent.glob("*.safetensors")) or any(file.parent.glob("*.bin")):
        loaded = ("weights", "tokenizer") if key == "model.path" else ("weights",)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    try:
        architecture = _of_folder(file.parent.resolve(), text, trust_remote_code, loaded)
    except Objection as refused:
        architecture = refused
    if isinstance(architecture, Objection):
        raise Objection(key, path, architecture.rule, architecture.fix)
    return architecture


def _in_hubs_cache(name: str) -> Path | None:
    """The config.json of a name on the hub in the cache of this machine; None: it is not there."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def _parsed(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
        if not isinstance(config["model_type"], str):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        rule, fix = "its config.json does not name a model_type", "name a folder that save_pretrained wrote"
        raise unusable(rule, fix) from None
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "unknown")
        rule = f"its weights are quantized ({method}), and training needs the weights themselves"
        raise unusable(rule, "choose the model before quantization, or save the model dequantized")
    return dict(config)


def _by_formula(config: Mapping[str, Any]) -> Architecture | None:
    """The sizes of a model of a known family; None: of another one."""
    family, has_biases = config["model_type"], config["model_type"] == "gpt_neox"  # biases as the formulas have them
    known = family in ("gpt_neox", "llama", "qwen2") and not config.get("mlp_bias")
    try:
        if family == "gpt2":
            names = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
            names |= {"n_positions": "max_position_embeddings"}
            config = {**config, **{names[key]: config[key] for key in names}}
            config |= {"intermediate_size": config.get("n_inner") or 4 * config["hidden_size"]}
        elif not known or bool(config.get("attention_bias", has_biases)) != has_biases:
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
            tied=config.get("tie_word_embeddings", family == "gpt2"),
        )
    except (KeyError, TypeError):  # transformers knows the defaults
        return None


@functools.cache
def _of_folder(
    folder: Path, config: str, trust_remote_code: bool, loaded: tuple[str, ...]
) -> Architecture | Objection | None:
    """config: the file's text; loaded: what of the folder a run loads: weights, tokenizer."""
    known = _by_formula(_parsed(config))
    if known is not None and _loadable(folder, known, loaded):
        return known
    return _counted(folder, trust_remote_code, loaded) or known


def _loadable(folder: Path, known: Architecture, loaded: Sequence[str]) -> bool:
    """Whether the files show that a run can load them: all weights, and a tokenizer whose tokens the embedding has."""
    try:
        if "weights" in loaded:
            index = folder / "model.safetensors.index.json"
            files = list(folder.glob("*.safetensors")) if index.is_file() else [folder / "model.safetensors"]
            if sum(map(_elements, files)) != known.parameters:
                return False
        if "tokenizer" in loaded:
            from tokenizers import Tokenizer

            tokenizer, named = Tokenizer.from_file(str(folder / "tokenizer.json")), chat.special_tokens(folder)
            ends = named["eos_token"], named.get("pad_token", named["eos_token"])
            most = max(tokenizer.get_vocab_size(with_added_tokens=False) - 1, *map(tokenizer.token_to_id, ends))
            return bool(most < known.vocabulary)
    except Exception:  # of a file that cannot be read; transformers says why
        return False
    return True


def _elements(path: Path) -> int:
    with safe_open(path, framework="np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  (no mapping)


def _counted(folder: Path, trust_remote_code: bool, loaded: Sequence[str]) -> Architecture | Objection | None:
    """The sizes as transformers' module has them; None: the program ended with an error."""
    command = [sys.executable, "-m", f"{__name__}.causal_models", str(folder), *loaded]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if trust_remote_code:
        command.append("--trust-remote-code")
    given: dict[str, Any] = {"cwd": _ROOT, "env": environment, "stdin": subprocess.DEVNULL, "text": True}
    try:
        asked = subprocess.run(command, **given, capture_output=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return unusable(f"transformers does not build it within {_LIMIT_S:g} s", "correct the code that comes with it")
    if asked.returncode:
        return None
    try:
        counted = json.loads((asked.stdout.splitlines() or [""])[-1])
    except ValueError:
        return unusable("the code that comes with it ends before it has built the model", "correct that code")
    if "unusable" in counted:
        return unusable(*counted["unusable"])
    shapes = {name: [(inputs, outputs) for inputs, outputs in sizes] for name, sizes in counted["shapes"].items()}
    whole = {name: tuple(counted[name]) for name in ("of_layers", "windows")}
    return Architecture(**{**counted, **whole, "shapes": shapes})

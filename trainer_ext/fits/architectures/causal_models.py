"""What transformers says of a causal language model: whether a run can load and train it, its attention, its sizes.

`python -m trainer_ext.fits.architectures.causal_models FOLDER` prints the sizes of a model as one line of JSON.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationMixin
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)
from transformers.pytorch_utils import Conv1D

from trainer_ext.fits.architectures import EAGER, SDPA, Architecture, unusable
from trainer_ext.objection import Objection

_OTHER = "choose a language model that reads from left to right, such as those of conf/model"
_AGAIN = "copy or download its files again (git lfs pull, of a git repository)"
#: What the samplers and the engines give to a module.
_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache")


def attention(config: Any, trust_remote_code: bool = False) -> str:
    """The attention with which a model is sampled and trained: SDPA if torch computes all of it, otherwise EAGER.

    transformers gives torch's attention no cap of the logits (Gemma 2), without saying so. config: as AutoConfig reads
    it; trust_remote_code: whether code of the model's own may run.
    """
    if getattr(config, "attn_logit_softcapping", None):
        return EAGER
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)  # None: it comes with the model
    if model_class is None and trust_remote_code:
        model_class = type(without_weights(config, trust_remote_code))
    return EAGER if model_class is not None and not model_class._supports_sdpa else SDPA


def attention_of(path: str, trust_remote_code: bool = False) -> str:
    """`attention` of a model in a folder, or of a name on the hub."""
    return attention(AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code), trust_remote_code)


def count(folder: str, trust_remote_code: bool) -> Architecture:
    """The sizes of a model in a folder. Objection: it cannot be trained."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever the class of the configuration raises
        rule = f"transformers cannot read its config.json: {_said(error)}"
        remote = "trust_remote_code" in str(error)
        fix = "set verl.actor_rollout_ref.model.trust_remote_code=true if you trust the code" if remote else _OTHER
        raise unusable(rule, fix) from error
    check(config)
    try:
        module = without_weights(config, trust_remote_code)
    except Exception as error:  # whatever a configuration makes a module's constructor raise
        rule = f"transformers cannot build it: {type(error).__name__}: {_said(error)}"
        raise unusable(rule, _OTHER) from error
    _check_class(type(module))
    layers = list(_layers(module, set(module._no_split_modules)))
    heads = int(config.num_attention_heads)
    few = getattr(config, "num_key_value_heads", None) or heads
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        few = 1  # all heads share one, as Falcon's and GPTBigCode's configurations say it
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = 2 * few * size
    if getattr(config, "v_head_dim", None):  # latent attention, whose keys and values transformers caches expanded
        kept = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim)
    of_layers = tuple(map(_parameters, layers))
    return Architecture(
        family=config.model_type,
        vocabulary=module.get_input_embeddings().weight.shape[0],
        hidden_size=config.hidden_size,
        intermediate_size=_intermediate_size(config),
        layers=len(layers),
        heads=heads,
        key_value_heads=few,
        head_size=size,
        positions=getattr(config, "max_position_embeddings", None),
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        of_layers=of_layers,
        of_ends=_parameters(module) - sum(of_layers),
        windows=_windows(config, len(layers)),
        kept=kept,
        shapes=max(map(_linear, layers), key=lambda linear: sum(map(sum, itertools.chain(*linear.values())))),
        attention=attention(config, trust_remote_code),
        has_critic=type(config) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    )


def load(folder: str, trust_remote_code: bool, parts: Collection[str], vocabulary: int) -> None:
    """Objection: a run cannot load these parts of a folder (weights, of which headers alone are read; tokenizer)."""
    given: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    for part in parts:
        try:
            if part == "weights":
                how = {"device_map": "meta", "output_loading_info": True, "ignore_mismatched_sizes": True}
                check_loaded(folder, AutoModelForCausalLM.from_pretrained(folder, **how, **given)[1])
            else:
                _check_tokenizer(AutoTokenizer.from_pretrained(folder, **given), vocabulary)
        except Objection:
            raise
        except Exception as error:  # whatever transformers or a library that it calls raises
            # no reason to refuse: what needs the numbers (tied weights that are saved twice), and a larger machine
            if not any(words in str(error).lower() for words in ("meta tensor", "allocate memory")):
                rule = f"transformers cannot load its {part}: {type(error).__name__}: {_said(error)}"
                raise unusable(rule, _AGAIN) from error


def _check_tokenizer(tokenizer: Any, vocabulary: int) -> None:
    if tokenizer.eos_token_id is None:
        rule = "its tokenizer names no token that ends a response"
        raise unusable(rule, "name one of its tokens in its tokenizer_config.json, as eos_token")
    most = max(tokenizer.vocab_size - 1, tokenizer.eos_token_id, tokenizer.pad_token_id or 0)
    if most >= vocabulary:
        rule = f"its tokenizer has {most + 1} tokens, and its embedding only {vocabulary} (vocab_size in config.json)"
        raise unusable(rule, "put the tokenizer of this model there")


def check_loaded(folder: str, info: Mapping[str, Any]) -> None:
    """Objection: weights were missing, and transformers put random numbers in their place. info: as it returns it."""
    shapes = [f"{name} of shape {tuple(shape)}" for name, _, shape in info["mismatched_keys"]]
    if names := sorted([*info["missing_keys"], *shapes]):
        files = sorted(path.name for path in Path(folder).glob("*") if path.suffix in (".safetensors", ".bin"))
        rule = f"its weights ({', '.join(files[:: max(1, len(files) - 1)])}) lack {', '.join(names[:5])}"
        rule += f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise Objection("model.path", folder, f"{rule}, which a run would replace by random numbers", _AGAIN)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def check(config: Any) -> None:
    """Objection: a model of this configuration cannot be trained. config: as AutoConfig reads it."""
    what = f"it is a model of type {config.model_type}, "
    if getattr(config, "is_encoder_decoder", False):
        raise unusable(f"{what}which has an encoder beside its decoder", _OTHER)
    if config.get_text_config() is not config:
        raise unusable(f"{what}which also reads other things than text", _OTHER)
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    own_classes = getattr(config, "auto_map", None) or {}
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in own_classes
    if masked or not known:
        raise unusable(f"{what}which is no causal language model", _OTHER)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is not None:
        _check_class(model_class)
    if not hasattr(config, "num_attention_heads"):  # of BLT, whose models are several
        raise unusable(f"{what}whose configuration names no number of attention heads", _OTHER)


def _check_class(model_class: Any) -> None:
    """Whether a module can be sampled with a cache of keys and values, and its layers be shared by ranks."""
    given = inspect.signature(model_class.forward).parameters
    every = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in given.values())
    if model_class._is_stateful or "past_key_values" not in given:
        rule = "does not keep keys and values of earlier tokens, as a transformer does, and the samplers need them"
    elif not issubclass(model_class, GenerationMixin):
        rule = "does not generate text"
    elif not model_class._no_split_modules:
        rule = "does not name its layers (_no_split_modules), which FSDP needs"
    elif not every and (missing := [name for name in _ARGUMENTS if name not in given]):
        rule = f"does not take {', '.join(missing)}, which the samplers give"
    else:
        return
    raise unusable(f"its class {model_class.__name__} {rule}", _OTHER)


def without_weights(config: Any, trust_remote_code: bool = False) -> Any:
    """The module of a configuration, on torch's meta device."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def _layers(module: nn.Module, names: Collection[str]) -> Iterator[nn.Module]:
    """The parts that FSDP gathers one after the other, none of which is in another. names: of their classes."""
    for child in module.children():
        if type(child).__name__ in names:
            yield child
        else:
            yield from _layers(child, names)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _linear(layer: nn.Module) -> dict[str, list[tuple[int, int]]]:
    shapes: dict[str, list[tuple[int, int]]] = {}
    for name, part in layer.named_modules():
        if isinstance(part, (nn.Linear, Conv1D)):
            inputs, outputs = part.weight.shape if isinstance(part, Conv1D) else (part.in_features, part.out_features)
            shapes.setdefault(name.rpartition(".")[2], []).append((inputs, outputs))
    return shapes


def _intermediate_size(config: Any) -> int:
    """The width of what a token meets in a layer: of a mixture of experts, of those that are chosen for it."""
    widths = (getattr(config, name, None) for name in ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"))
    # some configurations have a list, with one width for each layer
    dense = max(int(max(width) if isinstance(width, list) else width or 0) for width in widths)
    chosen = int(getattr(config, "num_experts_per_tok", None) or 0)
    each = int(getattr(config, "moe_intermediate_size", None) or (dense if chosen else 0))
    shared = int(getattr(config, "shared_expert_intermediate_size", None) or 0)
    shared += each * int(getattr(config, "n_shared_experts", None) or 0)
    return max(dense, chosen * each + shared) or 4 * int(config.hidden_size)


def _windows(config: Any, layers: int) -> tuple[int | None, ...]:
    """For each layer, the largest number of tokens in its cache (transformers.DynamicCache); None: no limit."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m trainer_ext.fits.architectures.causal_models")
    parser.add_argument("folder", help="of a model in the Hugging Face format")
    parser.add_argument("loaded", nargs="*", help="what of the folder a run loads: weights, tokenizer")
    parser.add_argument("--trust-remote-code", action="store_true", help="allow code that comes with the model")
    given = parser.parse_args()
    try:
        counted = count(given.folder, given.trust_remote_code)
        load(given.folder, given.trust_remote_code, given.loaded, counted.vocabulary)
        print(json.dumps(asdict(counted)))
    except Objection as error:
        print(json.dumps({"unusable": [error.rule, error.fix]}))

"""A checkpoint's policy as a folder that transformers loads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from trainer_ext.backends.in_process import checkpoint as checkpoints
from trainer_ext.backends.in_process import initial_model


def export(config: Mapping[str, Any], checkpoint: Path, folder: Path, dtype: str) -> None:
    """`trainer_ext.backends.export` for this backend."""
    write(config, checkpoint, load_file(checkpoint / checkpoints.WEIGHTS), folder, dtype)


def write(config: Mapping[str, Any], checkpoint: Path, weights: Mapping[str, Tensor], folder: Path, dtype: str) -> None:
    """Write a policy with the weights of a checkpoint. Of the starting model, this reads no weights."""
    model = config["model"]
    settings = config["verl"].actor_rollout_ref.model
    trust = {"trust_remote_code": bool(settings.trust_remote_code)}
    if model["kind"] == "pretrained":
        path = os.path.expanduser(model["path"])
        shape, tokenizer = AutoConfig.from_pretrained(path, **trust), AutoTokenizer.from_pretrained(path, **trust)
        tokenizer.chat_template = settings.custom_chat_template or tokenizer.chat_template
    else:
        tokenizer = initial_model.character_tokenizer()
        shape = initial_model.shaped(model, tokenizer)
    module = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, **trust)
    if model["kind"] == "pretrained":
        with suppress(OSError):  # a model need not have one
            module.generation_config = GenerationConfig.from_pretrained(path)
    with torch.no_grad():
        checkpoints.copy_weights(checkpoint, weights, dict(module.named_parameters()))
    logging.disable_progress_bar()
    module.to(dtype=getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

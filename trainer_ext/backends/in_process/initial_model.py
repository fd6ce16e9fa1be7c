"""The model that a run starts from, a folder that verl can load; and the reward model that its task asks for."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainer_ext.backends.in_process.batch import Batch, pad
from trainer_ext.backends.in_process.engine import Actor
from trainer_ext.backends.in_process.prompts import tokens_of
from trainer_ext.backends.in_process.sampler import load_module
from trainer_ext.fits.architectures import EMBEDDED_POSITIONS
from trainer_ext.methods import losses
from trainer_ext.scoring import tasks
from trainer_ext.scoring.artifacts import build_once
from trainer_ext.scoring.reward_models.folders import NAME, files_in, learned
from trainer_ext.scoring.tasks import preferences

#: The value of task.learned_reward.model that stands for the model that the policy starts from.
POLICY = "policy"
SHAPE = ("hidden_size", "intermediate_size", "layers", "heads")
# The optimizer of the warm start: a run's settings must not change the model that all runs start from.
_OPTIMIZER = {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.0, "lr_scheduler_type": "constant", "clip_grad": 1.0}
_OPTIMIZER |= {"weight_decay": 0.01, "betas": [0.9, 0.999], "optimizer": "AdamW", "optimizer_impl": "torch.optim"}
_OPTIMIZER |= {"override_optimizer_config": {"fused": True}}
#: (generator, count) -> `count` pairs (prompt, response) of token ids.
Examples = Callable[[random.Random, int], list[tuple[list[int], list[int]]]]
_SPECIAL = ["<pad>", "<eos>", "<unk>"]
_CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]


def start(config: Mapping[str, Any], cache: Path) -> str:
    """The folder of the model that `config` (model, task, verl) starts from.

    A pretrained one is `model.path`. An embedded one is initialised and taught the task's demonstrations for
    `task.warm_start.steps` steps, once for all runs with the same model and task.
    """
    model = config["model"]
    if model["kind"] == "pretrained":
        return os.path.expanduser(model["path"])
    return embedded({k: model[k] for k in SHAPE}, config, config["task"]["warm_start"], cache)


def embedded(shape: Mapping[str, int], config: Mapping[str, Any], warm: Mapping[str, Any], cache: Path) -> str:
    """The folder of a model of this shape, taught `warm` (steps, batch_size, lr, random_fraction, seed), made once.

    It learns from demonstrations of the task's training prompts alone.
    """
    task, split = config["task"], dict(config["trainer"]["split"])
    sources = [*_files(task), Path(losses.__file__), *sorted(Path(__file__).parent.glob("*.py"))]
    versions = [metadata.version(name) for name in ("torch", "verl", "transformers", "tokenizers")]
    lengths = [int(config["verl"].data[f"max_{part}_length"]) for part in ("prompt", "response")]
    settings = {key: value for key, value in task.items() if key not in (*tasks.NOT_DATA, "reward", "reward_model")}
    made_of = [shape, {**settings, "warm_start": dict(warm)}, split, lengths, versions, [*map(tasks.content, sources)]]

    def build(folder: Path) -> None:
        initialise(shape, warm["seed"], folder)
        examples = demonstrations(task, split, character_tokenizer(), warm["random_fraction"], config["verl"])
        size = {"steps": warm["steps"], "batch_size": warm["batch_size"], "rows": warm["batch_size"]}
        fine_tune(str(folder), folder, config["verl"], examples, lr=warm["lr"], seed=warm["seed"], **size)

    return str(build_once(cache / "models" / name_of(made_of), build))


def _files(task: Mapping[str, Any]) -> list[Path]:
    """The task's module, and the local files that it reads."""
    return [Path(tasks.get(task["name"]).__file__ or ""), *tasks.files(task)]


def name_of(made_of: Any) -> str:
    """The name of a folder by what its content is made of, which is JSON."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def with_reward(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """The configuration with its learned reward as a reward model in a folder; without one, as it is.

    It learns from the pairs of a share of the task's prompts, which nothing else sees, before the first run that needs
    it. cache: a folder for models that runs share.
    """
    task, split = config["task"], config["trainer"]["split"]
    asked = task.get("learned_reward")
    if not asked or task.get("reward") == NAME:
        return dict(config)
    model = start(config, cache) if asked["model"] == POLICY else os.path.expanduser(asked["model"])
    files = [*_files(task), *files_in(Path(model))]
    made_of = [dict(task), dict(split), None if Path(model).is_dir() else model, [*map(tasks.content, files)]]
    folder = cache / "rewards" / name_of(made_of)
    if not folder.exists():
        preferences.train(task, split, model, folder, learned(asked))
    return {**config, "task": {**task, "reward": NAME, NAME: str(folder)}}


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable ASCII character, and <pad>, <eos>, <unk>; the chat template joins the messages."""
    vocabulary = {token: index for index, token in enumerate(_SPECIAL + _CHARACTERS)}
    core = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        split_special_tokens=True,  # <eos> in a text is five characters, not the end
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )


def shaped(shape: Mapping[str, int], tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """The configuration of an embedded model with this shape and vocabulary."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        max_position_embeddings=EMBEDDED_POSITIONS,
        initializer_range=0.1,  # with the usual 0.02 such a small model starts slowly
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def initialise(shape: Mapping[str, int], seed: int, folder: Path) -> None:
    """Write a random embedded model of this shape, with its tokenizer, into a folder."""
    tokenizer = character_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = LlamaForCausalLM(shaped(shape, tokenizer))
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def demonstrations(
    task: Mapping[str, Any], split: Mapping[str, float], tokenizer: Any, random_fraction: float, verl: DictConfig
) -> Examples:
    """Random training prompts of a task, each with a demonstration, as tokens; none is longer than verl's tree allows.

    A prompt whose demonstration is empty, such as a problem without a solution, is left out. ValueError: no prompt is
    left, or every prompt is longer.
    """
    module = tasks.get(task["name"])
    most, length = int(verl.data.max_prompt_length), int(verl.data.max_response_length)
    trained = tasks.rows_by_split(task, split)[tasks.TRAIN]
    shown = [row for row in trained if module.demonstration(row, random.Random(0), 0.0)]
    if not shown:
        raise ValueError(f"task {task['name']}: no training prompt has a demonstration")
    encoded = [(row, tokens_of(tokenizer, row.messages)) for row in shown]
    rows = [(row, prompt) for row, prompt in encoded if len(prompt) <= most]
    if not rows:
        raise ValueError(f"task {task['name']}: no prompt has at most data.max_prompt_length={most} tokens")

    def draw(generator: random.Random, count: int) -> list[tuple[list[int], list[int]]]:
        chosen = generator.choices(rows, k=count)
        texts = [module.demonstration(row, generator, random_fraction) for row, _ in chosen]
        answers = tokenizer(texts, add_special_tokens=False)["input_ids"]
        ended = [[*answer, tokenizer.eos_token_id][:length] for answer in answers]
        return [(prompt, answer) for (_, prompt), answer in zip(chosen, ended, strict=True)]

    return draw


def fine_tune(
    model: str,
    folder: Path,
    verl: DictConfig,
    examples: Examples,
    steps: int,
    batch_size: int,
    rows: int,
    lr: float,
    seed: int,
) -> None:
    """Supervised fine-tuning of `model` on drawn examples with verl's engine; saves model and tokenizer to `folder`.

    rows: of a micro-batch, a divisor of the batch.
    """
    verl = deepcopy(verl)
    with open_dict(verl):
        verl.actor_rollout_ref.actor.optim.update({**_OPTIMIZER, "lr": lr})
        verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = rows
    actor = Actor(verl, model, total_steps=steps)
    generator, pad_id = random.Random(seed), actor.tokenizer.pad_token_id
    loss = partial(losses.likelihood, "token-mean", None)
    for _ in range(steps):
        pairs = examples(generator, batch_size)
        prompts, prompt_mask = pad([prompt for prompt, _ in pairs], pad_id, left=True)
        responses, mask = pad([response for _, response in pairs], pad_id, left=False)
        actor.update(Batch(prompts, prompt_mask, responses, mask).columns(), loss)
    load_module(model, actor.model_config, actor.weights()).save_pretrained(folder)
    actor.tokenizer.save_pretrained(folder)

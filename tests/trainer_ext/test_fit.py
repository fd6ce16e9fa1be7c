"""Whether runs fit into memory: the designs' own models, what a refusal names; what a plan says of tokenizers."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from tests.launcher.experiments import SHIPPED, make, refusals, refused, shipped
from tests.trainer_ext.conftest import jsonl
from tests.trainer_ext.test_architectures import here
from tests.trainer_ext.twins import tokenizer_of
from trainer_ext.application.verl_tree import merged
from trainer_ext.backends.in_process.initial_model import character_tokenizer, initialise
from trainer_ext.backends.in_process.prompts import tokens_of
from trainer_ext.fits import architectures, rank_memory
from trainer_ext.fits.architectures import Architecture

ON_DEVICES = ("trainer=verl_ray", "cluster=slurm", "seed=0")
EMBEDDED = {"hidden_size": 64, "intermediate_size": 96, "layers": 1, "heads": 2}
#: Experiments whose design this trainer refuses: in each line of the plan are these words.
REFUSED = {
    "qstar_scale_30b": "conf/model/llama_30b.yaml: model.resources.device_memory_gb = 80: each device needs ",
    "qstar_speculative": "must be none, because the servers of trainer=verl_ray draw a token at a time",
}


@pytest.mark.parametrize("experiment", shipped("experiment"))
def test_the_designs_own_models_fit(experiment):
    arguments = (f"experiment={experiment}", "scale=design", *ON_DEVICES)
    if experiment not in REFUSED:
        assert make(*arguments).runs
        return
    lines = [line for line in refused(*arguments) if ". Fix: " in line]
    assert lines and all(REFUSED[experiment] in line for line in lines)


def of_method(method: str, *arguments: str) -> tuple[str, ...]:
    named = (f"method={method}", "experiment.name=x", f"experiment.baseline={method}", "task=hh_rlhf_short")
    return (*named, *ON_DEVICES, *arguments)


@pytest.mark.parametrize(
    ("method", "words", "remedy"),
    [
        ("q_star", "model=llama_7b model.parallel.rows=null", "model.parallel.rows=32"),
        ("c0_ppo", "model=qwen2_5_1_5b model.resources.device_memory_gb=70", "trainer.grad_variance=false"),
        ("c0_grpo", "model=qwen2_5_7b model.resources.device_memory_gb=40 model.resources.devices=4",
         "model.resources.devices=8 model.resources.nodes=4"),
        ("c0_grpo", "model=llama_7b model.resources.devices=1", "verl.actor_rollout_ref.model.lora_rank=16"),
        ("c0_grpo", "model=llama_30b model.resources.memory_gb=512", "model.resources.memory_gb=1041"),
        ("c0_grpo", "model=qwen2_5_1_5b model.resources.devices=0 model.resources.memory_gb=40",
         "model.resources.memory_gb=110"),
        ("q_star", "model=llama_30b", None),
    ],
)  # fmt: skip
def test_a_refusal_names_the_excess_and_the_keys_that_lower_it(method, words, remedy, worded):
    arguments = of_method(method, *words.split())
    (line,) = refused(*arguments)
    worded(line)
    assert not remedy or make(*arguments, *remedy.split()).runs


def test_a_vllm_server_has_its_part_of_each_device():
    """It is not installed here, so the plan would refuse it: the arithmetic is asked directly."""
    planned = make(*of_method("q_star", "model=llama_13b"))
    ((run,), (base,)) = planned.runs.values(), planned.bases.values()
    config = {**run.config, "trainer": {**run.config["trainer"], "rollout": "vllm"}}
    model = Architecture(**SHIPPED.compose(["model=llama_13b"]).tree["model"]["architecture"])
    tree = merged(base.tree, run.config["verl"])
    (found,) = rank_memory.misfits(config, tree, model, model, 0)
    assert found is not None and found.key == "model.resources.device_memory_gb"
    assert "gpu_memory_utilization=0.5" in found.rule and "model.parallel.tensor=1" in found.fix
    shared = {**config["model"], "parallel": {**config["model"]["parallel"], "tensor": 2}}
    assert not list(rank_memory.misfits({**config, "model": shared}, tree, model, model, 0))
    (share,) = re.findall(r"gpu_memory_utilization=([\d.]+)", found.fix)
    given = {"actor_rollout_ref": {"rollout": {"gpu_memory_utilization": float(share)}}}
    assert not list(rank_memory.misfits(config, merged(tree, given), model, model, 0))
    little = {**config["model"], "resources": {**config["model"]["resources"], "memory_gb": 100, "devices": 4}}
    (found,) = rank_memory.misfits({**config, "model": little}, merged(tree, given), model, model, 0)
    assert found.key == "model.resources.memory_gb" and not re.search("devices=|rows|micro|_utilization", found.fix)


def test_what_a_models_file_states_without_effect_is_accepted():
    """Its coefficient of the KL loss, where a run has no such loss."""
    words = ("method=c0_grpo", "model=qwen2_5_0_5b", "task=gsm8k", "cluster=slurm", "seed=0")
    assert make(*words, "verl.actor_rollout_ref.actor.use_kl_loss=false").runs
    assert make(*words, "verl.actor_rollout_ref.actor.kl_loss_coef=0.1").runs


def test_all_ranks_of_a_node_without_devices_share_its_memory():
    """A rank more has a server more."""
    small = ("experiment=quickstart", "trainer=verl_ray", "seed=0", "model.hidden_size=512")
    needed = []
    for ranks in (1, 2):
        said = "\n".join(refused(*small, "model.resources.memory_gb=0.05", f"trainer.ranks={ranks}"))
        found = re.findall(rf"a node with {ranks} ranks? needs ([\d.]+) GB while sampling", said)
        needed.append(max(map(float, found)))
    assert needed[1] > needed[0] > 0


def write_sparse(config: PreTrainedConfig, file: Path) -> None:
    """The weights of a configuration, as holes of a file: a plan reads the header."""
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(config).state_dict()
    header, end = {}, 0
    for name, tensor in tensors.items():
        end, begin = end + 2 * tensor.numel(), end
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(file, 8 + len(text) + end)


def foreign(config: PreTrainedConfig, folder: Path, *arguments: Any) -> tuple[str, ...]:
    """The plan's arguments for a model of another family, of which the plan reads the configuration alone."""
    tokenizer_of("qwen2").save_pretrained(folder)
    config.save_pretrained(folder)
    write_sparse(config, folder / "model.safetensors")
    named = ("model=pretrained", f"model.path={folder}", "verl.data.train_batch_size=64", *arguments)
    large = ("devices=8", "device_memory_gb=80", "memory_gb=900", "cpus=64")
    return of_method("c0_grpo", *(f"model.resources.{one}" for one in large), *named)


@pytest.fixture
def asked_here(monkeypatch):
    """What counts a foreign model is asked in this process: importing transformers anew takes seconds."""
    monkeypatch.setattr(architectures, "_counted", here)


def test_a_mixture_of_experts_is_compared_with_its_devices(tmp_path, asked_here):
    (line,) = refused(*foreign(transformers.MixtralConfig(), tmp_path))
    assert "model.resources.device_memory_gb = 80: each device needs " in line
    assert "weights of the server 93.4" in line  # 46.7 billion parameters of 2 bytes


def test_what_the_parts_of_a_foreign_model_cannot_do(tmp_path, asked_here):
    small = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 310}
    shared = ("model.parallel.sequence=2", "verl.data.max_response_length=64")
    capped = transformers.Gemma2Config(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, **small)
    (line,) = refused(*foreign(capped, tmp_path / "gemma2", *shared))
    assert line.endswith(
        "model.parallel.sequence = 2: the ranks cannot share sequences of model pretrained: its attention caps or "
        "biases its logits, which torch's attention does not compute. Fix: set model.parallel.sequence=1"
    )
    assert make(*foreign(capped, tmp_path / "gemma2")).runs
    bare = transformers.OPTConfig(num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=64, **small)
    (line,) = refused(*foreign(bare, tmp_path / "opt", "method/advantage=gae"))
    assert "method.advantage = gae: a critic needs the class of model pretrained for token classification" in line


def test_a_model_that_reads_in_both_directions_is_refused(tmp_path):
    (line,) = refused(*foreign(transformers.BertConfig(), tmp_path))
    assert line == (
        f"command line: model.path = {tmp_path}: it is a model of type bert, which is no causal language model. "
        "Fix: choose a language model that reads from left to right, such as those of conf/model"
    )


def test_a_name_on_the_hub_is_planned_with_the_configuration_in_this_machines_cache(tmp_path, monkeypatch, asked_here):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    named = ("model=pretrained", "model.path=some/model", "verl.data.train_batch_size=64", "task=gsm8k")
    (run,) = make(*of_method("c0_grpo", *named)).runs.values()
    assert run.checkpoint is None  # nothing is known of it
    folder = tmp_path / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    config = transformers.Qwen2Config(vocab_size=310, num_hidden_layers=2, hidden_size=64, num_attention_heads=4)
    config.save_pretrained(folder / "snapshots" / "abc")
    (run,) = make(*of_method("c0_grpo", *named)).runs.values()
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    assert run.checkpoint == 3 * 4 * sum(p.numel() for p in module.parameters())
    transformers.BertConfig().save_pretrained(folder / "snapshots" / "abc")
    (line,) = refused(*of_method("c0_grpo", *named))
    assert "model.path = some/model: it is a model of type bert, which is no causal language model" in line


def test_local_prompts_of_a_pretrained_model_are_counted_with_its_tokenizer(tmp_path, worded):
    model, data = tmp_path / "model", jsonl(tmp_path / "train.jsonl", {"question": "1 + 1?", "answer": "#### 2"})
    character_tokenizer().save_pretrained(model)
    words = f"method=ptrw task=gsm8k task.train_path={data} model=qwen2_5_0_5b model.path={model}"
    worded(refusals(f"{words} verl.data.max_prompt_length=20"))
    worded(refusals(words))
    initialise(EMBEDDED, 0, model)
    assert make(*words.split(), "verl.data.max_prompt_length=200", "verl.data.max_response_length=100").runs


def test_the_tokens_of_a_chat_template_count_and_its_refusals_are_named(tmp_path, worded):
    """A run renders every prompt with it before the first step."""
    model, tokenizer = tmp_path / "model", tokenizer_of("qwen2")
    data = jsonl(tmp_path / "train.jsonl", {"prompt": "1 + 1?", "answer": "2"})
    words = f"method=ptrw task=file task.train_path={data} model=pretrained model.path={model} trainer.eval_every=0"
    tokenizer.save_pretrained(model)
    messages = [{"role": "user", "content": "1 + 1?"}]
    bare, whole = len(tokenizer.encode("1 + 1?")), len(tokens_of(tokenizer, messages))
    assert whole > bare

    def first(more: str) -> str:
        return next(refusals(f"{words} task.reward=exact_match {more}"))

    said = first(f"verl.data.max_prompt_length={bare}")
    assert f"the shortest of 1 has {whole} tokens. Fix: set verl.data.max_prompt_length={whole} or more" in said
    (model / "chat_template.jinja").write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    worded(first("task.system_prompt=Count."))
    assert not any("chat template" in line for line in refusals(f"{words} task.reward=exact_match"))
    given = "verl.actor_rollout_ref.model.custom_chat_template='{{ messages[0].content }}{{ messages[0].content }}'"
    twice = len(tokenizer.encode("1 + 1?1 + 1?"))
    lines = refused(*words.split(), "task.reward=exact_match", given, f"verl.data.max_prompt_length={bare}")
    assert f"the shortest of 1 has {twice} tokens" in lines[0]


def test_prompts_that_a_model_cannot_read_or_tell_apart_are_refused(tmp_path, worded):
    model, tokenizer = tmp_path / "model", tokenizer_of("qwen2")
    known = len(tokenizer)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(model)
    data = jsonl(
        tmp_path / "a.jsonl", *({"prompt": text, "answer": ""} for text in ("1?", "2?", "long <new>" * 9, "<new>?"))
    )
    words = f"method=ptrw task=file task.train_path={data} model=pretrained model.path={model} trainer.eval_every=0"
    words += " trainer.split.test=0 trainer.split.validation=0 task.reward=exact_match"
    template, config = model / "chat_template.jinja", model / "config.json"
    own = template.read_text()
    sizes = [f'{{"vocab_size": {vocabulary}}}' for vocabulary in (known, known, known, known + 1, "null")]
    for text, said in zip(("", "same", own, own, own, own), (*sizes, "{"), strict=True):
        template.write_text(text)
        config.write_text(said)
        worded(next(refusals(f"{words} verl.data.max_prompt_length=40")))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_cannot_be_read_is_named_once(name, tmp_path, asked_here):
    data = jsonl(tmp_path / "a.jsonl", {"prompt": "1?", "answer": ""})
    initialise(EMBEDDED, 0, tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).write_text("{")
    words = f"method=ptrw task=file task.train_path={data} model=pretrained model.path={tmp_path} trainer.eval_every=0"
    (line,) = refused(*words.split(), "task.reward=exact_match")
    assert f"model.path = {tmp_path}: transformers cannot load its tokenizer" in line


def test_a_target_with_other_tokens_than_the_policy_is_refused(tmp_path, worded):
    initialise(EMBEDDED, 0, tmp_path)
    words = f"method=q_star task=sorting method.target_path={tmp_path}"
    assert make(*words.split()).runs
    module = AutoModelForCausalLM.from_pretrained(tmp_path)
    module.resize_token_embeddings(120)
    module.save_pretrained(tmp_path)
    worded(refusals(words))

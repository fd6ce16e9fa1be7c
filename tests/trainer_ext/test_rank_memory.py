"""The memory of a run and of a rank by arithmetic: exact counts, sums by hand, and what each setting changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, Qwen2Config

from tests.configuration import CONF, SHIPPED, configuration
from tests.trainer_ext.engines import batch_of, engine_of
from tests.wording import Worded
from trainer_ext.backends.in_process import initial_model, platform
from trainer_ext.fits import memory, rank_memory
from trainer_ext.fits.architectures import Architecture, embedded, of_model
from trainer_ext.fits.memory import VARIANCE, Need

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
PRETRAINED = [name for name in MODELS if "architecture" in SHIPPED.compose([f"model={name}"]).tree["model"]]


def declared(model: str) -> Architecture:
    return Architecture(**SHIPPED.compose([f"model={model}"]).tree["model"]["architecture"])


def config_of(one: Architecture) -> PreTrainedConfig:
    if one.family == "gpt2":
        sizes = {"n_embd": one.hidden_size, "n_layer": one.layers, "n_head": one.heads, "n_positions": one.positions}
        return GPT2Config(vocab_size=one.vocabulary, **sizes)
    sizes = {"vocab_size": one.vocabulary, "hidden_size": one.hidden_size, "intermediate_size": one.intermediate_size}
    sizes |= {"num_hidden_layers": one.layers, "num_attention_heads": one.heads}
    sizes |= {"max_position_embeddings": one.positions, "tie_word_embeddings": one.tied}
    if one.family == "gpt_neox":
        return GPTNeoXConfig(**sizes)
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[one.family](num_key_value_heads=one.key_value_heads, **sizes)


def test_the_sizes_of_known_models():
    known = {"gpt2": 124_439_808, "llama_7b": 6_738_415_616, "pythia_1_4b": 1_414_647_808, "pythia_6_9b": 6_857_302_016}
    known["qwen2_5_0_5b"] = 494_032_768
    assert {model: declared(model).parameters for model in known} == known


def test_an_embedded_model_has_the_size_that_is_built(tmp_path):
    section = SHIPPED.compose(["model=tiny"]).tree["model"]
    assert of_model(tmp_path) is None  # nothing is known without a configuration
    initial_model.initialise({key: section[key] for key in initial_model.SHAPE}, 0, tmp_path)
    assert of_model(tmp_path) == embedded(section)
    assert embedded(section).parameters == 111_808


METHOD = {"loss": "policy_gradient", "target": "none", "advantage": "grpo", "sampler": "policy", "alpha": "none"}
VERL = {
    "data": {"train_batch_size": 8, "max_prompt_length": 6, "max_response_length": 4},
    "actor_rollout_ref": {
        "model": {"enable_gradient_checkpointing": True, "lora_rank": 0, "target_modules": "all-linear"},
        "rollout": {"n": 2, "max_num_seqs": 4, "temperature": 1.0},
        "actor": {"ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 2, "use_dynamic_bsz": False},
    },
}
SMALL = Architecture("llama", 100, 8, 16, 2, 2, 2, 4, 64, False)


def test_the_sum_of_one_process_by_hand():
    needed = memory.need(METHOD, VERL, SMALL, SMALL, device=True)
    weights = 4 * SMALL.parameters
    assert needed.throughout == {
        "weights": weights, "gradients": weights, "moments of AdamW": 2 * weights, "reference policy": weights,
    }  # fmt: skip
    # 4 responses of 10 tokens; keys and values of 2 layers x 2 heads x 4 numbers
    assert needed.phases["sampling"]["cache of keys and values"] == 4 * 10 * 2 * 2 * 2 * 4 * 4
    # 2 responses of 4 tokens over 100 words
    assert needed.phases["update"]["logits of a micro-batch"] == memory.LOGITS * 2 * 4 * 100 * 4
    assert needed.phases["update"]["variance of the gradient"] == 2 * weights


def test_on_a_cpu_each_sampled_model_has_a_second_copy():
    given = ({**METHOD, "target": "expert", "sampler": "geometric"}, VERL, SMALL, SMALL)
    here, there = (memory.need(*given, device=device).phases["sampling"] for device in (False, True))
    assert {key: here[key] for key in here.keys() - there} == {"weights as oneDNN orders them": 8 * SMALL.parameters}


def changed(section: str, **values: object) -> dict:
    parts = VERL["actor_rollout_ref"]
    return {**VERL, "actor_rollout_ref": {**parts, section: {**parts[section], **values}}}


DYNAMIC = changed("actor", use_dynamic_bsz=True, ppo_max_token_len_per_gpu=50)


def test_micro_batches_of_so_many_tokens():
    logits = memory.need(METHOD, DYNAMIC, SMALL, SMALL, device=True).phases["update"]["logits of a micro-batch"]
    assert logits == memory.LOGITS * 50 * 100 * 4


def test_the_size_of_a_checkpoint():
    def size(lora_rank: int = 0, **changes: str) -> int:
        return memory.checkpoint({**METHOD, **changes}, changed("model", lora_rank=lora_rank), SMALL)

    weights = 4 * SMALL.parameters
    assert size() == 3 * weights
    assert size(advantage="gae") == 6 * weights - 3 * 4 * 100 * 8  # without the head
    assert size(loss="none") == weights
    layer = 4 * (8 + 8) + 2 * (8 + 16) + (16 + 8)  # inputs and outputs of the linear layers
    assert size(lora_rank=2) == 3 * 4 * 2 * 2 * layer


def test_what_a_method_adds():
    def total(**changes: str) -> int:
        return sum(memory.need({**METHOD, **changes}, VERL, SMALL, SMALL, device=True).throughout.values())

    weights = 4 * SMALL.parameters
    assert total(advantage="gae") == total() + 4 * weights
    assert total(target="expert", sampler="geometric") == total() + weights
    assert total(loss="none") == total() - 3 * weights
    both = memory.need({**METHOD, "target": "expert", "sampler": "geometric"}, VERL, SMALL, SMALL, device=True)
    alone = memory.need(METHOD, VERL, SMALL, SMALL, device=True)
    cache = "cache of keys and values"
    assert both.phases["sampling"][cache] == 2 * alone.phases["sampling"][cache]


def layout(**changes: object) -> dict:
    """The sections of a configuration that lay out the ranks, on devices by default."""
    trainer = {"ranks": 2, "dtype": "bfloat16", "rollout": "hf", "grad_variance": True}
    resources, parallel = {"nodes": 1, "devices": 1}, {"offload": False, "sequence": 1, "tensor": 1, "rows": None}
    for section in (trainer, resources, parallel):
        section |= {name: value for name, value in changes.items() if name in section}
    return {"trainer": trainer, "model": {"resources": resources, "parallel": parallel}}


ON_CPU = {"devices": 0, "dtype": "float32"}


def need(sections: dict | None = None, model: Architecture = SMALL, verl=VERL, **method: str):
    config = {**(sections or layout()), "method": {**METHOD, **method}}
    return rank_memory.need(config, verl, model, SMALL)


def test_the_sum_by_hand():
    device, main = need()
    assert device is not None
    shard, layer, ends = 2 * SMALL.parameters, SMALL.parameters_of_layer, SMALL.parameters_of_ends
    assert device.throughout == {
        "shard of the weights": shard, "shard of the moments of AdamW": 2 * shard,
        "weights of the server": 2 * SMALL.parameters, "CUDA and NCCL (in part a guess)": 5_000_000_000,
    }  # fmt: skip
    # a mini-batch of 4 prompts with 2 responses each is 4 a rank: 2 of 10 tokens in a micro-batch, over 100 words;
    # logits have 2 bytes, and 3 copies of a block, here of all of them, 4
    assert device.phases["update"] == {
        "shard of the gradients": shard, VARIANCE: 2 * shard, "layers gathered": 2 * (2 * layer + ends),
        "gradients of one layer": 6 * ends, "logits of a micro-batch": 20 * 100 * (3 * 2 + 3 * 4),
        "activations": 20 * 2 * (8 * 8 + 3 * 16) + 20 * 2 * 2 * 8,
    }  # fmt: skip
    assert device.phases["scoring"] == {
        "layers gathered": 2 * (2 * layer + ends), "logits of a micro-batch": 20 * 100 * (2 * 2 + 3 * 4),
    }  # fmt: skip
    # keys and values of 4 responses of 10 tokens at a time: 2 layers x 2 heads x 4 numbers of 2 bytes
    assert device.phases["sampling"]["cache of keys and values"] == 4 * 10 * 2 * 2 * 2 * 4 * 2
    assert main.throughout == {"shard of the reference policy": shard}


def test_the_weights_of_the_designs_at_16_and_8_devices():
    """The sums of the design of this trainer, in GB: Qwen2.5-7B on 8 devices, LLaMA-30B on 16."""
    for model, ranks, state, gathered in (("qwen2_5_7b", 8, 11.4, 3.1), ("llama_30b", 16, 24.4, 3.0)):
        device = need(layout(ranks=ranks), declared(model))[0]
        assert device is not None
        held = sum(device.throughout[name] for name in ("shard of the weights", "shard of the moments of AdamW"))
        assert round(held / 1e9, 1) == state
        assert round(device.phases["update"]["layers gathered"] / 1e9, 1) == gathered


#: By name: what differs from a run of two ranks on devices, whose numbers `test_the_sum_by_hand` has.
DIFFERENCES: dict[str, dict[str, Any]] = {
    "plain": {},
    "adapters": {"verl": changed("model", lora_rank=3, target_modules=["q_proj", "down_proj"])},
    "without devices": {"sections": layout(**ON_CPU)},
    "offload": {"sections": layout(offload=True)},
    "shared sequences": {"sections": layout(sequence=2)},
    "eight ranks": {"sections": layout(ranks=8)},
    "eight ranks, shared sequences": {"sections": layout(ranks=8, sequence=2)},
    "micro-batches of tokens": {"verl": DYNAMIC},
    "micro-batches of tokens, shared sequences": {"verl": DYNAMIC, "sections": layout(sequence=2)},
    "one row at a time": {"sections": layout(rows=1)},
    "vLLM over two ranks": {"sections": layout(rollout="vllm", tensor=2)},
    "vLLM": {"sections": layout(rollout="vllm")},
    "vLLM, geometric": {"sections": layout(rollout="vllm"), "sampler": "geometric", "target": "expert"},
    "vLLM, target": {"sections": layout(rollout="vllm"), "sampler": "target", "target": "expert"},
    "a critic": {"advantage": "gae"},
    "no training": {"loss": "none"},
    "geometric": {"sampler": "geometric", "target": "expert"},
    "rejection": {"sampler": "rejection", "target": "expert"},
    "without the variance": {"sections": layout(grad_variance=False)},
}


def test_what_each_setting_changes(worded: Worded) -> None:
    """Lines of a golden text: what a run holds that the plain one does not, or in another size, in bytes."""

    def items(found: tuple[Need | None, Need]) -> dict[str, int]:
        places = dict(zip(("device", "main"), found, strict=True))
        return {
            f"{place}, {phase}, {name}": size
            for place, one in places.items() if one is not None
            for phase, parts in {"throughout": one.throughout, **one.phases}.items()
            for name, size in parts.items()
        }  # fmt: skip

    plain = items(need())
    for name, difference in DIFFERENCES.items():
        own = items(need(**difference))
        worded([f"# {name}", *(f"{key}: {own.get(key, 0)}" for key in sorted({*plain, *own})
                               if name == "plain" or own.get(key) != plain.get(key))])  # fmt: skip


ROWS, LENGTH, WORDS = 4, 64, 20_000


def held(of: Callable[[], object]) -> int:
    """The most bytes of tensors that a call has held at a time, beside those from before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        of()
    now = most = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.train
@pytest.mark.parametrize(("temperature", "dtype"), [(1.0, "float32"), (0.7, "float32"), (0.7, "bfloat16")])
def test_a_micro_batch_holds_what_the_arithmetic_says(
    temperature: float, dtype: str, tmp_path: Path, monkeypatch
) -> None:
    """A rank's engine on a CPU, with more words than anything else, as its steps call it: with entropies, and with
    collision probabilities in scoring."""
    platform.use()
    platform.start_process_group()
    from trainer_ext.backends.in_process import logits

    for module in (memory, logits):  # as small beside the logits as on a GPU
        monkeypatch.setattr(module, "BLOCK", 2**17)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, tie_word_embeddings=True, **sizes)).save_pretrained(tmp_path)
    engine = engine_of(configuration("trainer=verl_ray", "method=c0_grpo", f"trainer.dtype={dtype}"), tmp_path)

    def batch(**asked: bool) -> Any:
        rows = [[5] * LENGTH] * ROWS
        return batch_of(rows, micro_batch_size_per_gpu=ROWS, temperature=temperature, **asked)

    def loss(model_output: Any, data: Any, dp_group: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return sum(row.sum() for name in ("log_probs", "entropy") for row in model_output[name].unbind()), {}

    def update() -> None:
        with engine.train_mode():
            engine.train_batch(batch(calculate_entropy=True), loss)

    def score() -> None:
        with engine.eval_mode():
            engine.infer_batch(batch(calculate_entropy=True, calculate_sum_pi_squared=True))

    update()  # the moments of AdamW stay
    architecture = of_model(tmp_path, key="method.target_path")  # without a tokenizer
    assert architecture is not None
    micro = {"ppo_mini_batch_size": ROWS, "ppo_micro_batch_size_per_gpu": ROWS, "use_dynamic_bsz": False}
    rollout = {"n": 1, "max_num_seqs": ROWS, "temperature": temperature}
    verl = {
        "data": {"train_batch_size": ROWS, "max_prompt_length": LENGTH // 2, "max_response_length": LENGTH // 2},
        "actor_rollout_ref": {**VERL["actor_rollout_ref"], "actor": micro, "rollout": rollout},
    }
    sections = layout(**{**ON_CPU, "ranks": 1, "dtype": dtype, "grad_variance": False})
    phases = need(sections, architecture, verl)[1].phases
    for phase, call in (("update", update), ("scoring", score)):
        expected = sum(phases[phase].values())
        assert phases[phase]["logits of a micro-batch"] > 0.8 * expected  # so that they are what is measured
        assert 0.9 * expected < held(call) <= expected

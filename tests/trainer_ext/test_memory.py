"""The memory of a run by arithmetic: exact counts of parameters, and the largest item where it is known."""

from __future__ import annotations

from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, PreTrainedConfig, Qwen2Config

from tests.configuration import CONF, SHIPPED
from trainer_ext.backends.in_process import initial_model
from trainer_ext.fits import memory
from trainer_ext.fits.architectures import Architecture, embedded, of_model

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
PRETRAINED = [name for name in MODELS if "architecture" in SHIPPED.compose([f"model={name}"]).tree["model"]]


def declared(model: str) -> Architecture:
    return Architecture(**SHIPPED.compose([f"model={model}"]).tree["model"]["architecture"])


def config_of(one: Architecture) -> PreTrainedConfig:
    if one.family == "gpt2":
        sizes = {"n_embd": one.hidden_size, "n_layer": one.layers, "n_head": one.heads, "n_positions": one.positions}
        return GPT2Config(vocab_size=one.vocabulary, **sizes)
    sizes = {
        "vocab_size": one.vocabulary,
        "hidden_size": one.hidden_size,
        "intermediate_size": one.intermediate_size,
        "num_hidden_layers": one.layers,
        "num_attention_heads": one.heads,
        "max_position_embeddings": one.positions,
        "tie_word_embeddings": one.tied,
    }
    if one.family == "gpt_neox":
        return GPTNeoXConfig(**sizes)
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[one.family](num_key_value_heads=one.key_value_heads, **sizes)


def test_the_sizes_of_known_models():
    assert declared("gpt2").parameters == 124_439_808
    assert declared("llama_7b").parameters == 6_738_415_616
    assert declared("pythia_1_4b").parameters == 1_414_647_808
    assert declared("pythia_6_9b").parameters == 6_857_302_016
    assert declared("qwen2_5_0_5b").parameters == 494_032_768


def test_an_embedded_model_has_the_size_that_is_built(tmp_path):
    section = SHIPPED.compose(["model=tiny"]).tree["model"]
    initial_model.initialise({key: section[key] for key in initial_model.SHAPE}, 0, tmp_path)
    assert of_model(tmp_path) == embedded(section)
    assert embedded(section).parameters == 111_808


def test_a_folder_without_a_configuration_has_no_known_size(tmp_path):
    assert of_model(tmp_path) is None


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


def test_the_sum_by_hand():
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
    method = {**METHOD, "target": "expert", "sampler": "geometric"}
    here, there = (
        memory.need(method, VERL, SMALL, SMALL, device=device).phases["sampling"] for device in (False, True)
    )
    assert {key: here[key] for key in here.keys() - there} == {"weights as oneDNN orders them": 8 * SMALL.parameters}


def test_micro_batches_of_so_many_tokens():
    actor = {**VERL["actor_rollout_ref"]["actor"], "use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 50}
    verl = {**VERL, "actor_rollout_ref": {**VERL["actor_rollout_ref"], "actor": actor}}
    logits = memory.need(METHOD, verl, SMALL, SMALL, device=True).phases["update"]["logits of a micro-batch"]
    assert logits == memory.LOGITS * 50 * 100 * 4


def test_the_size_of_a_checkpoint():
    def size(lora_rank: int = 0, **changes: str) -> int:
        model = {**VERL["actor_rollout_ref"]["model"], "lora_rank": lora_rank}
        verl = {**VERL, "actor_rollout_ref": {**VERL["actor_rollout_ref"], "model": model}}
        return memory.checkpoint({**METHOD, **changes}, verl, SMALL)

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

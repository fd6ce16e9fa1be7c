"""Models of any family: their sizes, against transformers' modules; what cannot be trained; foreign ones that are."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedConfig

from tests.sharing import shared_folder
from tests.trainer_ext.conftest import MemoryRun, configuration, edit
from tests.trainer_ext.test_rank_memory import PRETRAINED, config_of, declared
from tests.trainer_ext.twins import FOREIGN, tokenizer_of, write_problems, write_twin
from tests.trainer_ext.twins import config_of as twin_of
from tests.wording import Worded
from trainer_ext.backends.in_process.engine import model_overrides
from trainer_ext.backends.in_process.sampler import load_module
from trainer_ext.backends.verl_ray import attention
from trainer_ext.fits import architectures
from trainer_ext.fits.architectures import EAGER, SDPA, causal_models, of_model
from trainer_ext.objection import Objection
from trainer_ext.scoring.artifacts import build_once
from trainer_ext.train import train

#: Read by another program than this one: the sizes that the models' pages on the hub state.
KNOWN: dict[str, tuple[PreTrainedConfig, int]] = {
    "Mistral-7B-v0.1": (transformers.MistralConfig(), 7_241_732_096),
    "Mixtral-8x7B": (transformers.MixtralConfig(), 46_702_792_704),
    "Qwen3-8B": (transformers.Qwen3Config(
        vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8,
    ), 8_190_735_360),
    "Gemma-2-9B": (transformers.Gemma2Config(
        hidden_size=3584, intermediate_size=14336, num_hidden_layers=42, num_attention_heads=16, num_key_value_heads=8,
    ), 9_241_705_984),
    "Phi-3-mini": (transformers.Phi3Config(), 3_821_079_552),
}  # fmt: skip


def saved(config: PreTrainedConfig, folder: Path) -> str:
    config.save_pretrained(folder)
    return str(folder)


def twin(family: str) -> PreTrainedConfig:
    return twin_of(family, tokenizer_of(family))


@pytest.mark.parametrize("model", PRETRAINED)
def test_a_family_with_formulas_is_counted_alike(model: str, tmp_path: Path) -> None:
    formula = declared(model)
    counted = causal_models.count(saved(config_of(formula), tmp_path), trust_remote_code=False)
    assert of_model(tmp_path) == formula

    def told(one: architectures.Architecture) -> dict[str, Any]:
        names = ["parameters", "parameters_of_layer", "parameters_of_ends", "vocabulary", "hidden_size", "layers"]
        names += ["intermediate_size", "heads", "key_value_heads", "positions"]
        linear = {name: sorted(sizes) for name, sizes in one.linear.items()}
        return {"linear": linear, "cache": one.cache(100, 2), **{name: getattr(one, name) for name in names}}

    assert told(counted) == told(formula)
    assert counted.has_critic and counted.unpackable(100) is None


def test_biases_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulas have none for Llama's attention, and GPT-NeoX's always."""
    monkeypatch.setattr(architectures, "_counted", lambda folder, *_: causal_models.count(str(folder), False))
    for kind, biases in ((transformers.LlamaConfig, True), (transformers.GPTNeoXConfig, False)):
        config = kind(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
        config.attention_bias = biases
        counted = causal_models.count(folder := saved(config, tmp_path / config.model_type), trust_remote_code=False)
        assert of_model(folder) == counted


@pytest.mark.parametrize("name", KNOWN)
def test_the_sizes_of_models_that_others_made(name: str, tmp_path: Path) -> None:
    config, parameters = KNOWN[name]
    assert causal_models.count(saved(config, tmp_path), trust_remote_code=False).parameters == parameters


@pytest.mark.parametrize("family", sorted(FOREIGN))
def test_the_cache_has_the_bytes_that_a_module_keeps(family: str, tmp_path: Path) -> None:
    tokens = 40
    module = AutoModelForCausalLM.from_config(twin(family), attn_implementation="eager").eval()
    with torch.no_grad():
        cache = module(
            input_ids=torch.ones(1, tokens, dtype=torch.long), past_key_values=DynamicCache(config=module.config)
        ).past_key_values
    held = sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))
    counted = causal_models.count(saved(module.config, tmp_path), trust_remote_code=False)
    # a window keeps one token less, because the next one is always read with it
    windows = sum(1 for window in counted.windows if window is not None and window <= tokens)
    assert counted.cache(tokens) - held == windows * counted.kept * 4
    assert counted.parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.processes
def test_the_program_says_what_the_function_says(tmp_path: Path) -> None:
    folder = saved(twin("qwen3_moe"), tmp_path)
    assert of_model(folder) == causal_models.count(folder, trust_remote_code=False)
    assert of_model(tmp_path / "nowhere") is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(Objection, match="which is no causal language model"):
        of_model(tmp_path)


def whole(family: str, folder: Path, **sizes: Any) -> Path:
    """A random model and its tokenizer."""
    AutoModelForCausalLM.from_config(twin(family)).save_pretrained(folder, **sizes)
    tokenizer_of(family).save_pretrained(folder)
    return folder


def here(folder: Path, trust_remote_code: bool, loaded: Sequence[str]) -> architectures.Architecture:
    """What the program says, in this process."""
    counted = causal_models.count(str(folder), trust_remote_code)
    causal_models.load(str(folder), trust_remote_code, loaded, counted.vocabulary)
    return counted


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen2", *sorted(FOREIGN), "llama in shards"])
def test_a_whole_folder_is_loaded(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(architectures, "_counted", lambda *given: asked.append(given) or here(*given))
    family, _, shards = family.partition(" in ")
    assert of_model(whole(family, tmp_path, **({"max_shard_size": "20KB"} if shards else {}))) is not None
    assert bool(asked) == (family in FOREIGN)  # of the others, the files say it


def _without(name: str, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({key: tensor for key, tensor in tensors.items() if name not in key}, folder / "model.safetensors")


def _resize(folder: Path, tokens: int) -> None:
    module = AutoModelForCausalLM.from_pretrained(folder)
    module.resize_token_embeddings(tokens)
    module.save_pretrained(folder)


_ONE, _CONFIG = "model.safetensors", "tokenizer_config.json"
_LOAD, _MORE = "transformers cannot load its weights: ", r"tokenizer has \d+1 tokens, and its embedding only \d+0"
#: What makes a folder's model one that no run could load, and words of the objection.
SPOILED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "no head": (r"its weights \(model.safetensors\) lack lm_head.weight, which", lambda at: _without("lm_head", at)),
    "many are lacking": (r"layers\.1\.\S+ and 4 more, which", lambda at: _without("layers.1", at)),
    "a pointer of git-lfs": (_LOAD, lambda at: (at / _ONE).write_text("version https://git-lfs\n")),
    "half a file": (_LOAD, lambda at: os.truncate(at / _ONE, 9000)),
    "no index": (_LOAD, lambda at: (at / _ONE).rename(at / "model-00001-of-00001.safetensors")),
    "a damaged pickle": (_LOAD, lambda at: (at / _ONE).rename(at / "pytorch_model.bin")),
    "another shape": (r"lack lm_head.weight of shape \(320, ", lambda at: edit(at / "config.json", vocab_size=320)),
    "no end": ("names no token that ends", lambda at: edit(at / _CONFIG, eos_token=None, pad_token=None)),
    "a new end": (_MORE, lambda at: edit(at / _CONFIG, eos_token="<no such>")),
    "a small embedding": ("tokens, and its embedding only 99", lambda at: _resize(at, 99)),
}


@pytest.mark.parametrize("case", SPOILED)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_folder_that_no_run_could_load(
    family: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architectures, "_counted", here)
    words, spoil = SPOILED[case]
    spoil(whole(family, tmp_path))
    with pytest.raises(Objection, match=words):
        of_model(tmp_path)
    if case in ("no head", "many are lacking"):
        with pytest.raises(Objection, match=words):
            load_module(str(tmp_path))


#: Configurations of models that cannot be trained.
UNUSABLE: dict[str, dict[str, Any]] = {
    "an encoder": {"model_type": "bert"},
    "an encoder and a decoder": {"model_type": "t5"},
    "no keys and values": {"model_type": "mamba"},
    "several models": {"model_type": "blt"},
    "images": {"model_type": "llava"},
    "an unknown type": {"model_type": "nosuch"},
    "impossible sizes": {"model_type": "qwen3", "hidden_size": "x"},
    "no type": {"hidden_size": 8},
    "quantized": {"model_type": "llama", "quantization_config": {"quant_method": "awq"}},
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_model_that_cannot_be_trained(case: str, tmp_path: Path, worded: Worded) -> None:
    (tmp_path / "config.json").write_text(json.dumps(UNUSABLE[case]))
    by_file = case in ("no type", "quantized")
    with pytest.raises(Objection) as raised:
        of_model(tmp_path) if by_file else causal_models.count(str(tmp_path), trust_remote_code=False)
    ours, _, _ = raised.value.rule.partition("config.json: ")  # what follows is transformers' own
    worded([ours, raised.value.fix])


def test_the_configuration_of_every_family_has_heads_of_keys_and_values(tmp_path: Path) -> None:
    """verl reads their number of every model, and its checks fail without one."""
    transformers.NemotronConfig(num_attention_heads=4).save_pretrained(tmp_path)
    assert model_overrides(str(tmp_path), trust_remote_code=False)["num_key_value_heads"] == 4


def test_a_run_says_it_of_a_model_that_the_plan_has_not_seen(tmp_path: Path) -> None:
    """The plan reads no configuration of a model on the hub."""
    for name, said in (("bert", "of type bert"), ("mamba", "MambaForCausalLM does not keep keys and values")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
        with pytest.raises(Objection, match=said):
            model_overrides(str(tmp_path), trust_remote_code=False)


@pytest.mark.processes
def test_code_that_comes_with_a_model(tmp_path: Path) -> None:
    """It is run if the user trusts it, and not before."""
    (tmp_path / "own.py").write_text(
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n"
        "class OwnConfig(Qwen3Config):\n    model_type = 'own'\n"
        "class OwnForCausalLM(Qwen3ForCausalLM):\n    config_class = OwnConfig\n"
    )
    auto = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    config = {**twin("qwen3").to_dict(), "model_type": "own", "auto_map": auto, "architectures": ["OwnForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Objection, match="trust_remote_code=true"):
        of_model(tmp_path)
    found = of_model(tmp_path, trust_remote_code=True)
    assert found is not None and found.of_layers and found.attention == SDPA
    known = saved(twin("qwen3"), tmp_path / "known")
    assert found.parameters == causal_models.count(known, trust_remote_code=False).parameters


def test_which_attention_computes_all_of_a_model() -> None:
    chosen = {family: causal_models.attention(twin(family)) for family in FOREIGN}
    eager = {family for family, name in chosen.items() if name == EAGER}
    assert eager == {"bloom", "gemma2", "gpt_neo", "gpt_oss", "mpt", "xglm"} and set(chosen.values()) == {EAGER, SDPA}


def test_gemmas_attention_has_its_cap(tmp_path: Path) -> None:
    """transformers gives torch's attention no cap, and does not say so."""
    config = twin("gemma2")
    config.attn_logit_softcapping = 0.5
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    module.save_pretrained(tmp_path)
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        wanted = module(input_ids=tokens).logits
        capped = load_module(str(tmp_path))(input_ids=tokens).logits
        uncapped = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")(input_ids=tokens).logits
    torch.testing.assert_close(capped, wanted, rtol=0, atol=1e-5)
    assert (uncapped - wanted).abs().max() > 1e-2


def test_packed_sequences_need_an_attention_without_windows_and_caps(tmp_path: Path) -> None:
    capped = causal_models.count(saved(twin("gemma2"), tmp_path / "gemma2"), trust_remote_code=False)
    assert "caps or biases its logits" in str(capped.unpackable(8))
    windows = causal_models.count(saved(twin("mistral"), tmp_path / "mistral"), trust_remote_code=False)
    assert windows.unpackable(24) is None and "the last 24 tokens alone" in str(windows.unpackable(25))
    with pytest.raises(ValueError, match=r"model\.parallel\.sequence: .* needs more than torch's computes"):
        attention.overrides(str(tmp_path / "gemma2"), False, attention.PACKED)
    packed = attention.overrides(str(tmp_path / "mistral"), False, attention.PACKED)
    assert packed["attn_implementation"] == attention.PACKED
    module = AutoModelForCausalLM.from_config(twin("mistral"), attn_implementation=attention.PACKED)
    places = torch.arange(25)[None]
    module(input_ids=places[:, :24], position_ids=places[:, :24], attention_mask=None, use_cache=False)
    with pytest.raises(ValueError, match=r"no window \(24 tokens\), and one has 25"):
        module(input_ids=places, position_ids=places, attention_mask=None, use_cache=False)


#: One mini-batch a step: the ratios of its tokens are one, if sampling and training compute the same.
SETTINGS = ["method=c0_grpo", "task=gsm8k", "model=pretrained", "trainer.steps=2", "trainer.checkpoint_every=2"]
SETTINGS += ["trainer.eval_every=0", "trainer.split.validation=0.2", "trainer.split.test=0.2"]
SETTINGS += [f"verl.data.{key}" for key in ("train_batch_size=2", "max_prompt_length=200", "max_response_length=24")]
ACTOR = ("ppo_mini_batch_size=2", "ppo_micro_batch_size_per_gpu=4", "optim.lr=1e-3")
SETTINGS += [f"verl.actor_rollout_ref.actor.{key}" for key in ACTOR]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "foreign")


@pytest.mark.train
@pytest.mark.parametrize("family", sorted(FOREIGN))
def test_a_foreign_model_is_trained_as_it_is_sampled(family: str, shared: Path, tmp_path: Path) -> None:
    data = build_once(shared / "data", lambda folder: write_problems(folder / "train.jsonl")) / "train.jsonl"
    twin = write_twin(family, data, tmp_path / "twin")
    run = MemoryRun(tmp_path / "run", tmp_path / "cache")
    train(configuration(*SETTINGS, f"task.train_path={data}", f"model.path={twin}"), run)
    assert len(run.lines) == 2
    for line in run.lines:
        assert abs(line["actor/ppo_kl"]) < 1e-5 and line["actor/clipfrac_upper"] == 0.0, line["actor/ppo_kl"]
        assert math.isfinite(line["actor/grad_norm"]) and line["actor/grad_norm"] > 0.0
    assert run.lines[0]["actor/kl_init"] == pytest.approx(0.0, abs=1e-6)
    assert run.lines[1]["actor/kl_init"] > 0.0

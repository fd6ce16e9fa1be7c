"""Twins of the pretrained models: two random layers of the same architecture with a tokenizer of the same kind, in a
folder. They go through the same code as the models, which no test can download."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, PreTrainedConfig, Qwen2Config
from transformers import PreTrainedTokenizerFast as Fast

from trainer_ext.backends.in_process.prompts import tokens_of
from trainer_ext.scoring.tasks import gsm8k

NAMES = ("Ann", "Bob", "Cem", "Dora", "Eve", "Finn", "Gita", "Hugo")
#: As Qwen's, without tools and a default system message.
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Enough to learn the form of an answer, and not enough to know the answers.
UPDATES = 12
_LAYERS = {"num_attention_heads": 4, "num_hidden_layers": 2}
_FEW: dict[str, Any] = {"num_key_value_heads": 2}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, **_FEW}
_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
#: Families that no file of conf/model has: the class of their configuration, and its own sizes. Windows are shorter
#: than the tests' prompts.
FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomConfig", {"n_layer": 2, "n_head": 4}),  # positions by attention alone
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **{**_EXPERTS, **_LATENT, "n_routed_experts": 4, "moe_intermediate_size": 16, "n_group": 1},
            **{"topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4},
        },
    ),
    "falcon": ("FalconConfig", {}),  # one head of keys and values
    "gemma2": ("Gemma2Config", {**_FEW, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24}),
    "gemma3_text": ("Gemma3TextConfig", {**_FEW, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24}),
    "gpt_oss": ("GptOssConfig", {**_EXPERTS, "num_local_experts": 4, "head_dim": 8, "sliding_window": 24}),
    "gpt_neo": (
        "GPTNeoConfig",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 24},
    ),
    "mistral": ("MistralConfig", {**_FEW, "sliding_window": 24}),
    "mixtral": ("MixtralConfig", {**_EXPERTS, "num_local_experts": 4}),
    "mpt": ("MptConfig", {"d_model": 32, "n_heads": 4, "n_layers": 2}),
    "olmo2": ("Olmo2Config", _FEW),
    "opt": ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "phi3": ("Phi3Config", _FEW),
    "qwen3": ("Qwen3Config", {**_FEW, "head_dim": 16}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8}),
    "xglm": ("XGLMConfig", {"d_model": 32, "attention_heads": 4, "num_layers": 2, "ffn_dim": 64}),
}


def problems() -> list[dict[str, str]]:
    """Lines of a file like GSM8K's, with two possible answers: a model that guesses is right now and then."""
    return [
        {
            "question": f"{name} has {pens} pens and buys 1 more. How many?",
            "answer": f"{pens} + 1 = <<{pens}+1={pens + 1}>>{pens + 1}\n#### {pens + 1}",
        }
        for name in NAMES
        for pens in (1, 2)
    ]


def write_problems(path: Path) -> Path:
    """A file like GSM8K's."""
    path.write_text("".join(json.dumps(line) + "\n" for line in problems()))
    return path


def write_task(task: str, folder: Path) -> None:
    """Files in the layout of a task's data with the same problems: train.jsonl, and for apps humaneval.jsonl."""
    path = folder / "train.jsonl"
    lines = [_LAYOUTS[task](line["question"], line["answer"]) for line in problems()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    function = {"prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    return x\n"}
    tests = {"task_id": "0", "test": "def check(f):\n    assert f(1) == 1\n"}
    (folder / "humaneval.jsonl").write_text(json.dumps({**function, **tests}) + "\n")


#: task -> (question, answer) -> a line of its data.
_LAYOUTS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "gsm8k": lambda asked, answer: {"question": asked, "answer": answer},
    "hh_rlhf": lambda asked, answer: {
        "chosen": f"\n\nHuman: {asked}\n\nAssistant: {answer}",
        "rejected": f"\n\nHuman: {asked}\n\nAssistant: Ask Ann",
    },
    "tldr": lambda asked, answer: {"prompt": asked, "completion": answer},
    "wmt": lambda asked, answer: {"translation": {"de": asked, "en": answer}},
    "natural_questions": lambda asked, answer: {"question": asked, "answer": [answer, "1"]},
    "apps": lambda asked, answer: {
        "question": asked,
        "solutions": json.dumps([f"print({answer.split()[-1]})"]),
        "input_output": json.dumps({"inputs": [""], "outputs": [answer.split()[-1]]}),
    },
}


def write_twin(family: str, data: Path, folder: Path, positions: int = 256, width: int = 32) -> Path:
    """A model of the family (gpt2, gpt_neox, llama, qwen2, or one of FOREIGN) and its tokenizer, as transformers saves
    them.

    A few updates have taught it the form of an answer, so that some responses have a reward and others have none.
    data: a file of `write_problems`; width: of its layers.
    """
    tokenizer = tokenizer_of(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(config_of(family, tokenizer, positions, width))
        _teach(module, tokenizer, data)
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_read(folder: Path) -> dict[str, str]:
    """Folders with what is read of models before they are loaded, by name: a policy for longer texts, a target with the
    same tokens, one with more words, one with another tokenizer, and one without."""
    qwen2, llama = tokenizer_of("qwen2"), tokenizer_of("llama")
    tokenizers = {"policy": qwen2, "target": qwen2, "larger": qwen2, "llama": llama, "bare": None}
    for name, tokenizer in tokenizers.items():
        config = config_of("qwen2", qwen2, positions=512 if name == "policy" else 256)
        config.vocab_size += 64 if name == "larger" else 0
        config.architectures = ["Qwen2ForCausalLM"]
        config.save_pretrained(folder / name)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / name)
    return {name: str(folder / name) for name in tokenizers}


def tokenizer_of(family: str) -> Fast:
    """A tokenizer of the family's kind; of a foreign family, Qwen's."""
    return {"gpt2": _gpt2, "gpt_neox": _gpt2, "llama": _llama}.get(family, _qwen2)()


def _teach(module: Any, tokenizer: Fast, data: Path) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    rows = []
    for row in gsm8k.rows({"train_path": str(data), "test_path": None}):
        prompt = tokens_of(tokenizer, [{"role": "user", "content": row.prompt}])
        answer = [*tokenizer.encode(row.worked_answer, add_special_tokens=False), tokenizer.eos_token_id]
        rows.append((prompt, answer))
    for _ in range(UPDATES):
        loss = torch.zeros(())
        for prompt, answer in rows:
            ids = torch.tensor([prompt + answer])
            labels = torch.tensor([[-100] * len(prompt) + answer])
            loss = loss + module(input_ids=ids, labels=labels).loss / len(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def config_of(family: str, tokenizer: Fast, positions: int = 256, width: int = 32) -> PreTrainedConfig:
    """The configuration of a twin, whose vocabulary is the tokenizer's."""
    small = {"hidden_size": width, "intermediate_size": 2 * width, **_LAYERS}
    ends = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    if family == "gpt2":  # with dropout, as the model has
        return GPT2Config(n_embd=width, n_layer=2, n_head=4, n_positions=positions, **ends)
    if family == "gpt_neox":
        return GPTNeoXConfig(max_position_embeddings=positions, **small, **ends)
    if family == "llama":
        return LlamaConfig(num_key_value_heads=4, max_position_embeddings=positions, **small, **ends)
    if family in FOREIGN:
        name, own = FOREIGN[family]
        kind: type[PreTrainedConfig] = getattr(transformers, name)
        return kind(
            max_position_embeddings=positions,
            pad_token_id=tokenizer.pad_token_id,
            **{**small, **ends, **own},
        )
    return Qwen2Config(
        num_key_value_heads=2, max_position_embeddings=positions, tie_word_embeddings=True, **small, **ends
    )


def _texts() -> Iterator[str]:
    return (text for line in problems() for text in line.values())


def _bytes(special: list[str]) -> Tokenizer:
    """Byte-pair encoding over bytes, as GPT-2 and Qwen have it."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        _texts(), trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    )
    return core


def _gpt2() -> Fast:
    """No token for padding, no chat template; one token begins and ends a text. GPT-NeoX's are of this kind, too."""
    end = "<|endoftext|>"
    return Fast(tokenizer_object=_bytes([end]), bos_token=end, eos_token=end, unk_token=end)


def _qwen2() -> Fast:
    end, pad = "<|im_end|>", "<|endoftext|>"
    core = _bytes([pad, "<|im_start|>", end])
    return Fast(tokenizer_object=core, eos_token=end, pad_token=pad, chat_template=CHAT)


def _llama() -> Fast:
    """Spaces as marks in the words, other characters as bytes, a token that begins a text; no padding, no template."""
    core = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    core.train_from_iterator(_texts(), trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Fast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")

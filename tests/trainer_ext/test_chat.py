"""Plans find a prompt's tokens without torch, and those that transformers finds in a run."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.configuration import tree_of
from tests.trainer_ext.conftest import edit
from tests.trainer_ext.twins import CHAT, tokenizer_of
from trainer_ext.backends.in_process.engine import load_tokenizer
from trainer_ext.backends.in_process.prompts import tokens_of
from trainer_ext.fits import chat
from trainer_ext.objection import Objection

REFUSES = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% endfor %}"
)
TURNS = "{% for message in messages %}<turn>{{ message['role'] }}\n{{ message['content'] | trim }}\n{% endfor %}"
#: What published templates do beside putting text around the messages.
TEMPLATES = {
    "as Qwen's": CHAT,
    "begins a text, trims, refuses roles": "{{ bos_token }}" + REFUSES + TURNS + "<turn>model",
    "adds a system message": "{% if messages[0].role != 'system' %}<s>You help.{{ eos_token }}{% endif %}" + CHAT,
    "marks what is generated": TURNS
    + "{% generation %}{% if not add_generation_prompt %}x{% endif %}{% endgeneration %}",
    "leaves a loop, writes JSON": "{% for m in messages %}{{ m | tojson }}"
    "{% if loop.first %}{% break %}{% endif %}{% endfor %}",
    "lines of its own": "{%- set x = namespace(n=0) %}\n{%- for m in messages %}\n    {{ m.content }}\n{% endfor %}\n",
}
CONVERSATIONS = [
    [{"role": "user", "content": " Ann has 2 pens.\n\nHow many? "}],
    [{"role": "user", "content": "é – 数"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "Why?"}],
]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])  # GPT-NeoX has a tokenizer of GPT-2's kind
@pytest.mark.parametrize("template", [None, *TEMPLATES.values()], ids=["no template", *TEMPLATES])
def test_a_plan_finds_the_tokens_that_a_run_has(family, template, tmp_path):
    tokenizer = tokenizer_of(family)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    loaded, encode = AutoTokenizer.from_pretrained(tmp_path), chat.encoder(tmp_path).encode
    for messages in CONVERSATIONS:
        assert encode(messages) == tokens_of(loaded, messages)


@pytest.mark.parametrize("model", ["gpt2", "pythia_1_4b", "pythia_6_9b", "llama_7b", "llama_13b", "llama_30b"])
def test_a_base_model_has_its_template_from_its_file(model, tmp_path):
    settings = tree_of(f"model={model}")["verl"]["actor_rollout_ref"]["model"]
    tokenizer_of("llama").save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path), {"trust_remote_code": False, **settings})
    text = loaded.apply_chat_template(CONVERSATIONS[1], add_generation_prompt=True, tokenize=False)
    assert text == "<s>Human: é – 数\n\nAssistant: 2\n\nHuman: Why?\n\nAssistant:"
    encoder = chat.encoder(tmp_path, settings["custom_chat_template"])
    assert encoder.encode(CONVERSATIONS[1]) == tokens_of(loaded, CONVERSATIONS[1])


def test_a_model_without_a_template_of_its_file_keeps_its_own(tmp_path):
    tokenizer_of("qwen2").save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path), {"trust_remote_code": False, "custom_chat_template": None})
    assert loaded.chat_template == CHAT


@pytest.mark.parametrize("given", [CHAT, [{"name": "tools", "template": "x"}, {"name": "default", "template": CHAT}]])
def test_templates_in_the_settings_and_special_tokens_of_older_versions_are_read(given, tmp_path):
    template = "{{ bos_token }}" + CHAT
    tokenizer_of("llama").save_pretrained(tmp_path)
    given = template if isinstance(given, str) else [{**one, "template": template} for one in given[1:]] + given[:1]
    begins = {"content": "<s>", "lstrip": False, "__type": "AddedToken"}
    edit(tmp_path / "tokenizer_config.json", chat_template=given, bos_token=begins)
    loaded, encode = AutoTokenizer.from_pretrained(tmp_path), chat.encoder(tmp_path).encode
    assert loaded.chat_template is not None
    assert encode(CONVERSATIONS[0]) == tokens_of(loaded, CONVERSATIONS[0])


def test_a_tokenizer_that_cuts_and_fills_counts_whole_prompts(tmp_path):
    """Files of models for other purposes say that texts have a certain length."""
    assert chat.encoder(tmp_path) is None  # there is no tokenizer yet
    tokenizer_of("gpt2").save_pretrained(tmp_path)
    core = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    core.enable_truncation(4)
    core.enable_padding(length=4)
    core.save(str(tmp_path / "tokenizer.json"))
    loaded, encode = AutoTokenizer.from_pretrained(tmp_path), chat.encoder(tmp_path).encode
    assert encode(CONVERSATIONS[0]) == tokens_of(loaded, CONVERSATIONS[0])
    assert len(encode(CONVERSATIONS[0])) > 4


def test_a_template_that_refuses_a_role_says_so(tmp_path):
    tokenizer = tokenizer_of("llama")
    tokenizer.chat_template = REFUSES + TURNS
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(Objection, match="System role not supported"):
        chat.encoder(tmp_path).encode([{"role": "system", "content": "Count."}, *CONVERSATIONS[0]])

"""What a plan says of models and their tokenizers."""

from __future__ import annotations

import json

from tests.launcher.experiments import make, refusals, refused
from tests.trainer_ext.twins import tokenizer_of
from trainer_ext.backends.in_process.initial_model import character_tokenizer, initialise
from trainer_ext.backends.in_process.prompts import tokens_of


def test_local_prompts_of_a_pretrained_model_are_counted_with_its_tokenizer(tmp_path, worded):
    model, data = tmp_path / "model", tmp_path / "train.jsonl"
    character_tokenizer().save_pretrained(model)
    data.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    words = f"method=ptrw task=gsm8k task.train_path={data} model=qwen2_5_0_5b model.path={model}"
    worded(refusals(f"{words} verl.data.max_prompt_length=20"))
    worded(refusals(words))
    initialise({"hidden_size": 64, "intermediate_size": 96, "layers": 1, "heads": 2}, 0, model)
    assert make(*words.split(), "verl.data.max_prompt_length=200", "verl.data.max_response_length=100").runs


def test_the_tokens_of_a_chat_template_count_and_its_refusals_are_named(tmp_path, worded):
    """A run renders every prompt with it before the first step."""
    model, data, tokenizer = tmp_path / "model", tmp_path / "train.jsonl", tokenizer_of("qwen2")
    data.write_text(json.dumps({"prompt": "1 + 1?", "answer": "2"}) + "\n")
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


def test_a_target_with_other_tokens_than_the_policy_is_refused(tmp_path, worded):
    initialise({"hidden_size": 64, "intermediate_size": 96, "layers": 1, "heads": 2}, 0, tmp_path)
    words = f"method=q_star task=sorting method.target_path={tmp_path}"
    assert make(*words.split()).runs
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vocab_size": 120}))
    worded(refusals(words))

"""The weights by which a target's examples are drawn from the sampled responses."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.configuration import configuration
from tests.trainer_ext.classifiers import write_classifier
from tests.trainer_ext.conftest import jsonl
from trainer_ext import registry
from trainer_ext.backends.in_process import target_model
from trainer_ext.backends.in_process.sampler import load_module
from trainer_ext.scoring import reward_models

REWARDS = torch.tensor([[0.0, 1.0, 0.5], [2.0, 2.0, -1.0]])
A, B, C = math.exp(2), math.exp(1), math.exp(-6)  # of rewards 1 and 0.5 with beta = 0.5, and of -1 beside 2


def shares(*weights):
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(
    ("choice", "own", "expected"),
    [
        ("best_of_n", {}, [[0, 1, 0], [1, 0, 0]]),  # the first of equal rewards
        ("high_reward", {"target_threshold": 0.5}, [[0, 1, 0], [1, 1, 0]]),
        ("reward_tilted", {"target_beta": 0.5}, [shares(1, A, B), shares(1, 1, C)]),
    ],
)
def test_a_response_is_weighed_by_its_reward(choice, own, expected, monkeypatch):
    monkeypatch.setattr(target_model, "_tuned", lambda start, steps, lr_ratio, examples: examples())
    monkeypatch.setattr(target_model, "_samples", lambda start, prompts, samples, weigh: weigh(REWARDS))
    own = {**own, "target_prompts": 2, "target_samples": 3, "target_steps": 1, "target_lr_ratio": 1.0}
    weights = registry.target.choice({"target": choice, **own})(None)
    torch.testing.assert_close(weights.float(), torch.tensor(expected, dtype=torch.float))


@pytest.fixture
def tiny(tmp_path):
    """A start with a policy of two letters, one prompt, and a reward model: 13 responses are possible."""
    letters = {"<pad>": 0, "<eos>": 1, "a": 2, "b": 3}
    core = Tokenizer(models.WordLevel(letters, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        module = LlamaForCausalLM(LlamaConfig(vocab_size=4, initializer_range=0.3, max_position_embeddings=16, **sizes))
    module.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    model = write_classifier(tmp_path / "rm", words=["a", "b", "aa", "ab", "ba", "bb"])
    path = jsonl(tmp_path / "own.jsonl", {"prompt": "ab"})
    words = [f"task.train_path={path}", "task.answer=null", "task.reward=reward_model"]
    words += [f"task.reward_model={model}", "trainer.split.validation=0.0", "trainer.split.test=0.0"]
    words += [f"model.path={tmp_path}/policy", "verl.data.max_prompt_length=4", "verl.data.max_response_length=2"]
    config = configuration("method=q_star", "method/target=reward_tilted", "task=file", "model=pretrained", *words)
    return target_model.Start(config, tmp_path / "cache", f"{tmp_path}/policy")


def test_reward_tilted_from_a_reward_model_is_the_enumerated_distribution(tiny, monkeypatch):
    """A drawn response weighs exp(score / beta) over the prompt's sum; all together they are the policy, tilted."""
    beta, count = 0.2, 4000
    monkeypatch.setattr(target_model, "_tuned", lambda start, steps, lr_ratio, examples: examples())
    own = {"target_beta": beta, "target_prompts": 1, "target_samples": count, "target_steps": 1, "target_lr_ratio": 1.0}
    learns_from = registry.target.choice({"target": "reward_tilted", **own})(tiny)
    drawn: list = []
    learns_from(SimpleNamespace(choices=lambda *given, k: drawn.extend(given)), 1)
    examples, weights = drawn

    tokenizer, module = AutoTokenizer.from_pretrained(tiny.model), load_module(tiny.model)
    (prompt,) = {tuple(asked) for asked, _ in examples}
    ends = tokenizer.eos_token_id
    possible = [(ends,), *((x, y) for x in range(4) if x != ends for y in range(4))]
    chances, scores = {}, {}
    model = reward_models.reward_model(tiny.config["task"])
    messages = [{"role": "user", "content": "ab"}]
    for response in possible:
        read = torch.tensor([[*prompt, *response]])
        log_p = module(read).logits[0].double().log_softmax(dim=-1)
        chances[response] = math.exp(sum(log_p[len(prompt) - 1 + i, token] for i, token in enumerate(response)))
        text = tokenizer.decode(response, skip_special_tokens=True)
        scores[response] = model.scores([(messages, text)])[0]
    assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
    assert max(scores.values()) - min(scores.values()) > beta

    tilts = [math.exp(scores[tuple(response)] / beta) for _, response in examples]
    assert weights == pytest.approx(shares(*tilts), rel=1e-4)
    tilted = {one: chances[one] * math.exp(scores[one] / beta) for one in possible}
    whole = sum(tilted.values())
    for response in possible:
        expected = tilted[response] / whole
        found = sum(weight for weight, (_, own) in zip(weights, examples, strict=True) if tuple(own) == response)
        error = expected / math.sqrt(chances[response] * count)  # of the number of times that it was drawn
        assert found == pytest.approx(expected, abs=4 * error)
    assert max(abs(tilted[one] / whole - chances[one]) for one in possible) > 0.05

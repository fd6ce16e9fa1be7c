"""What a step draws: from the target, between, by rejection, speculatively; and the targets themselves."""

from __future__ import annotations

import copy
import math
import operator
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from tests.trainer_ext.conftest import configuration, jsonl
from trainer_ext.backends.in_process import target_model
from trainer_ext.backends.in_process.sampler import score
from trainer_ext.backends.in_process.speculative import adaptive
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.methods import losses
from trainer_ext.sampling import alpha

pytestmark = pytest.mark.train
SHORT = ["task.warm_start.steps=20"]
QUICK = [*SHORT, "method.target_steps=5"]  # as in test_train.py: the same model and target serve both


def trainer_of(cache: Path, *overrides: str) -> InProcess:
    alone = {"method=dpo", "method=c0_ppo"}.intersection(overrides)  # without a target
    return InProcess(configuration(*(SHORT if alone else QUICK), *overrides), cache)


def by_hand(trainer: InProcess, batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """log q of the responses' tokens, and the alphas there, from two forward passes over them whole."""
    found = []
    for name in ("policy", "target"):
        with torch.no_grad():
            logits = trainer._rollout._modules[name](
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids
            ).logits[:, -batch.responses.shape[1] - 1 : -1]
        found.append(logits.double().log_softmax(-1))
    solution = alpha.solve(*found)
    log_q = (solution.log_q / temperature).log_softmax(-1)
    return log_q.gather(-1, batch.responses.unsqueeze(-1))[..., 0] * batch.mask, solution.alpha[batch.mask]


@pytest.mark.parametrize(
    "words",
    ["", "method.temperature=0.7", "method/drafting=speculative method.draft_tokens=3", "method/drafting=adaptive"],
)
def test_the_behaviour_that_is_reported_is_q(words, cache):
    trainer = trainer_of(cache, "method=q_star", *words.split())
    drawn = trainer._rollout.draw(1)
    temperature = 0.7 if "method.temperature=0.7" in words else 1.0
    expected, alphas = by_hand(trainer, drawn.samples.batch, temperature)
    torch.testing.assert_close(drawn.samples.behaviour.double(), expected, rtol=0, atol=1e-4)
    plain = score(trainer._policy, drawn.samples.batch, temperature=1.0, rows=64)
    torch.testing.assert_close(drawn.samples.log_probs, plain, rtol=0, atol=1e-4)
    assert drawn.metrics["qstar/degenerate_fraction"] == 0
    # of the tokens put out, and of no draft that was not kept or lies beyond the response's end
    torch.testing.assert_close(drawn.positions["alpha"].sort().values, alphas.sort().values, rtol=0, atol=1e-3)
    assert drawn.metrics["qstar/alpha_mean"] == pytest.approx(float(alphas.mean()), abs=1e-5)


def test_speculative_responses_are_distributed_as_plain_ones(cache):
    """First tokens of many responses to the same prompts, by either way: one chi-square statistic of a 2 x V table."""
    counts = []
    for more in ([], ["method/drafting=speculative", "method.draft_tokens=2"]):
        wide = "verl.actor_rollout_ref.rollout.n=128"
        trainer = trainer_of(cache, "method=q_star", wide, "verl.data.train_batch_size=16", *more)
        batch = trainer._rollout.draw(1).samples.batch
        # the third token: reached by drafts, corrections and further rounds alike
        counts.append(torch.bincount(batch.responses[:, 2], minlength=110).double())
    a, b = counts
    used = a + b > 10
    statistic, freedom = float(((a - b) ** 2 / (a + b))[used].sum()), int(used.sum()) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_the_target_alone_is_drawn_from_when_asked(cache):
    drawn = trainer_of(cache, "method=off_policy")
    samples = drawn._rollout.draw(1).samples
    expected = score(drawn._rollout._modules["target"], samples.batch, temperature=1.0, rows=64)
    torch.testing.assert_close(samples.behaviour, expected, rtol=0, atol=1e-4)


def test_rejection_keeps_one_of_each_prompt_and_trains_on_no_other(cache):
    trainer = trainer_of(cache, "method=rejection")
    drawn = trainer._rollout.draw(1)
    kept = drawn.trained.mask.any(dim=1)
    assert kept.reshape(-1, 8).any(dim=1).all()
    assert 0 < float(kept.float().mean()) < 1
    assert drawn.metrics["rejection/accepted_fraction"] == pytest.approx(float(kept.float().mean()))
    assert torch.equal(drawn.trained.mask[kept], drawn.samples.batch.mask[kept])


def test_a_mini_batch_of_rejected_responses_is_passed_over(cache):
    """Shuffled, mini-batches of two: some hold no response that was accepted, and a mean over no token is no number."""
    keys = ("rollout.n=2", "actor.shuffle=true", "actor.ppo_mini_batch_size=1")
    small = [*(f"verl.actor_rollout_ref.{key}" for key in keys), "verl.data.train_batch_size=16"]
    line = trainer_of(cache, "method=rejection", *small).step(1)
    assert line["rejection/accepted_fraction"] < 0.75 and all(math.isfinite(value) for value in line.values())


@pytest.mark.parametrize("method", ["dpo", "c0_ppo", "off_policy", "rejection", "q_decode"])
def test_operations_are_counted_of_what_is_read_and_of_what_is_trained_on(method, cache):
    trainer = trainer_of(cache, f"method={method}", *(["method/target=expert"] if method == "q_decode" else []))
    seen = []
    draw = trainer._rollout.draw
    trainer._rollout.draw = lambda step: seen.append(draw(step)) or seen[0]
    found = trainer.step(1)["cost/flops_per_sample"]
    (drawn,) = seen
    generated, trained = int(drawn.samples.batch.mask.sum()), int(drawn.trained.mask.sum())
    if method == "dpo":
        rows, differ = losses.best_and_worst(drawn.rewards, 8)
        assert differ.any(), "or nothing was tested"
        trained = int(drawn.trained.mask[rows].sum())
    reading = 2 if method in ("off_policy", "q_decode") else 1
    training = {"c0_ppo": 2, "q_decode": 0}.get(method, 1)
    size = 2 * (4 * 64**2 + 3 * 64 * 172 + 2 * 64) + 64  # of two layers and the last norm
    assert found == pytest.approx(size * (2 * reading * generated + 6 * training * trained) / 256)


def test_what_a_target_is_made_of_is_in_its_name(tmp_path):
    data = jsonl(tmp_path / "data.jsonl", {"question": "1 + 1?", "answer": "2"})
    models = [tmp_path / name / "final" for name in "ab"]
    for folder in models:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text("weights")
    rows = "verl.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"
    whole = configuration("task=gsm8k", f"task.train_path={data}", "method=q_star", "method/target=best_of_n", rows)

    def name(key: str = "method.name", value: Any = "q_star", model: Path = models[0]) -> str:
        """The target's after one setting has changed."""
        config = copy.deepcopy(whole)
        *sections, last = key.split(".")
        reduce(operator.getitem, sections, config)[last] = value
        return target_model.content_name(config, tmp_path, str(model))

    others = [name(f"verl.data.max_{which}_length", 9) for which in ("prompt", "response")]
    rollout, optimizer = "verl.actor_rollout_ref.rollout", "verl.actor_rollout_ref.actor.optim"
    others += [name(f"{rollout}.temperature", 0.5), name(f"{optimizer}.lr", 0.01), name("method.target_samples", 3)]
    others += [name("method.target", "high_reward"), name(model=models[1])]
    before = name()
    assert len({before, *others}) == 8
    assert before == name("seed", 5) == name("method.temperature", 0.7) == name("method.alpha", "ess_balance")
    jsonl(Path(data), {"question": "1 + 2?", "answer": "3"})
    others.append(name())
    (models[0] / "model.safetensors").write_text("other weights")
    assert len({before, *others, name()}) == 10


@pytest.mark.parametrize("choice", ["expert", "reward_tilted", "best_of_n", "high_reward"])
def test_a_target_is_built_once_and_is_better_than_the_start(choice, cache):
    taught = ["task.warm_start.steps=150", "method.target_steps=120"]  # with less its samples have too few rewards
    config = configuration("method=q_star", f"method/target={choice}", *taught)
    trainer = InProcess(config, cache)
    start = trainer.actor.model_config.local_path
    folder = Path(target_model.start(config, cache, start))
    before = folder.stat().st_mtime_ns
    assert target_model.start(config, cache, start) == str(folder)
    assert folder.stat().st_mtime_ns == before
    rollout = trainer._rollout
    rollout.asked = rollout._prompts.of_evaluations(512)

    def reward() -> float:
        return fmean(answer.reward for answer in rollout.evaluate(1, 4) if answer.sample is not None)

    policy = reward()
    rollout._modules = {**rollout._modules, "policy": rollout._modules["target"]}
    assert reward() > policy + 0.05


def test_a_given_model_is_the_target(cache):
    start = trainer_of(cache, "method=dpo").actor.model_config.local_path
    config = configuration(*QUICK, "method=q_star", f"method.target_path={start}")
    assert target_model.start(config, cache, "unused") == start


def test_a_threshold_that_no_response_passes_is_refused(cache):
    overrides = ["method=q_star", "method/target=high_reward", "method.target_threshold=2.0"]
    with pytest.raises(ValueError, match=r"none of \d+ responses has a reward above method.target_threshold=2"):
        trainer_of(cache, *overrides)


def test_pairs_of_the_data_are_a_right_and_a_wrong_answer(cache):
    trainer = trainer_of(cache, "method=dpo", "method.dpo_pairs=data")
    batch = trainer._rollout.pairs(1)
    texts = trainer.actor.tokenizer.batch_decode(batch.responses.tolist(), skip_special_tokens=True)
    truths = [row.ground_truth for row in trainer._rollout._prompts.of_step(1, 32) for _ in range(2)]
    scores = [trainer._rollout._score(text, "", truth, {}) for text, truth in zip(texts, truths, strict=True)]
    assert [one.value for one in scores] == [1.0, 0.0] * 32
    assert "actor/dpo_loss" in trainer.step(1)


def test_more_is_drafted_the_more_is_kept():
    choose = adaptive(cost=0.1, most=10)
    chosen = [choose(kept, 1000) for kept in (50, 500, 800, 950, 999)]
    assert chosen == sorted(chosen) and chosen[0] == 1 and chosen[-1] == 10
    assert choose(0, 0) == choose(800, 1000) and choose(3, 3) - choose(0, 3) <= 4  # a few tokens tell little


def test_decoding_only_changes_no_weight(cache):
    trainer = trainer_of(cache, "method=q_speculative", "method/target=expert")
    before = {name: tensor.clone() for name, tensor in trainer.actor.weights().items()}
    line = trainer.step(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.actor.weights().items())
    assert line["speculative/speedup"] > 0
    assert line["speculative/acceptance_rate"] == pytest.approx(line["speculative/expected_acceptance"], abs=0.1)

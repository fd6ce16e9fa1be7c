"""Evaluations: which prompts they ask, what their metrics say, and that a run is the same with and without them."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from math import comb
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_ext.conftest import FEW_PROMPTS, SHORT, configuration, science
from tests.trainer_ext.test_backends import saved, step_folder
from trainer_ext.backends.in_process.trainer import InProcess
from trainer_ext.scoring import tasks
from trainer_ext.scoring.rewards import texts
from trainer_ext.scoring.scores import evaluation
from trainer_ext.scoring.scores.evaluation import Answer, Best
from trainer_ext.scoring.tasks import SPLITS, TEST, TRAIN, VALIDATION, Row
from trainer_ext.train import Preempted, train

SHARES = {"validation": 0.1, "test": 0.2}
QUICK = [*SHORT, *FEW_PROMPTS, "trainer.eval_every=2"]
ROWS = st.lists(
    st.builds(
        Row, st.text("ab ", max_size=4), st.just("x"), st.none() | st.sampled_from(SPLITS),
        system=st.sampled_from(["", "s"]),
    ),
    max_size=20,
)  # fmt: skip


def where(divided: dict[str, list[Row]]) -> dict[str, str]:
    """The split of each prompt, without its white space."""
    return {" ".join(row.prompt.split()): split for split, rows in divided.items() for row in rows}


@given(ROWS, st.randoms(use_true_random=False))
def test_equal_prompts_are_in_one_split_whatever_their_order(rows, order):
    divided = tasks.divide(rows, SHARES)
    prompts = [{" ".join(row.prompt.split()) for row in divided[split]} for split in SPLITS]
    assert not any(one & other for one, other in combinations(prompts, 2))
    assert set().union(*prompts) == {" ".join(row.prompt.split()) for row in rows}
    shuffled = order.sample(rows, k=len(rows))
    assert where(tasks.divide(shuffled, SHARES)) == where(divided)


def test_the_shares_are_kept_and_further_prompts_move_none():
    rows = [Row(f"{n}>", "x") for n in range(4000)]
    divided = tasks.divide(rows, SHARES)
    sizes = {split: len(own) for split, own in divided.items()}
    assert sizes[VALIDATION] == pytest.approx(400, abs=60) and sizes[TEST] == pytest.approx(800, abs=80)
    fewer = tasks.divide(rows[:1000], SHARES)
    assert where(fewer).items() <= where(divided).items()
    assert divided[TRAIN] == sorted(divided[TRAIN], key=lambda row: int(row.prompt[:-1]))


def test_training_keeps_repeated_prompts_and_the_others_have_each_once():
    rows = [Row(f"{n}>", "x") for n in range(100)] * 3
    divided = tasks.divide(rows, SHARES)
    assert set(Counter(divided[TRAIN]).values()) == {3}
    assert set(Counter(divided[TEST]).values()) == {1} == set(Counter(divided[VALIDATION]).values())


def test_a_split_that_the_task_brings_takes_no_others():
    """A prompt of the test file that is also in the training file is not trained on."""
    rows = [Row(f"{n}>", "x") for n in range(1000)]
    own = [Row(f"{n} >", "x", TEST) for n in range(2000, 2010)] + [Row("7>", "x", TEST)]
    divided = tasks.divide(rows + own, SHARES)
    assert {row.prompt for row in divided[TEST]} == {row.prompt for row in own}
    assert len(divided[VALIDATION]) == pytest.approx(100, abs=30)
    assert len(divided[TRAIN]) == 999 - len(divided[VALIDATION])


def test_a_task_without_a_prompt_to_train_on_is_refused(monkeypatch):
    monkeypatch.setattr(tasks.get("sorting"), "rows", lambda task: [Row("1>", "1", TEST)])
    with pytest.raises(ValueError, match=r"task\.name: the task has no prompt to train on"):
        tasks.rows_by_split({"name": "sorting"}, SHARES)


@pytest.mark.parametrize("samples", [1, 4, 5, 9])
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(samples):
    for solved in range(samples + 1):
        responses = [number < solved for number in range(samples)]
        for k in range(1, samples + 1):
            subsets = [any(one) for one in combinations(responses, k)]
            assert evaluation.pass_at(k, samples, solved) == pytest.approx(sum(subsets) / len(subsets))


def answers_of(rewards: dict[str, dict[str, list[float]]]) -> list[Answer]:
    """Answers by split and prompt; the first reward is the greedy response's."""
    return [
        Answer(prompt, "", reward, "", split, number - 1 if number else None)
        for split, prompts in rewards.items()
        for prompt, own in prompts.items()
        for number, reward in enumerate(own)
    ]


def test_the_metrics_of_an_evaluation():
    rewards = {
        TEST: {"a": [1.0, 0.5, 0.0, 0.0], "b": [0.0, 1.0, 0.0, 1.0]},
        VALIDATION: {"c": [0.0, 1.0, 1.0, 1.0]},
        TRAIN: {"d": [0.0, 0.0, 0.0, 0.5], "e": [0.0, 1.0, 1.0, 1.0]},
    }
    found = evaluation.metrics(answers_of(rewards), solved_at=1.0)
    expected = {"reward_mean": 2.5 / 6, "greedy_reward_mean": 0.5, "validation_reward_mean": 1.0}
    expected |= {"train_reward_mean": 3.5 / 6, "pass@1": (0 + 2 / 3) / 2, "pass@2": (0 + 1) / 2}
    # the responses are empty
    expected |= {"self_bleu": 1, "empty": 1, "distinct_1": 0, "distinct_2": 0, "repetition": 0, "words": 0}
    assert found == pytest.approx({f"eval/{name}": value for name, value in expected.items()})
    assert evaluation.metrics(answers_of(rewards), solved_at=0.5)["eval/pass@1"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert [evaluation.pass_counts(n) for n in (1, 2, 4, 7, 8)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4], [1, 2, 4, 8]]


def test_an_evaluation_has_the_means_of_further_numbers_over_drawn_responses_to_test_prompts():
    def answer(split, sample, words):
        return Answer("a", "", 0.0, "", split, sample, {"words": words})

    answers = [answer(TEST, None, 9.0), answer(TEST, 0, 1.0), answer(TEST, 1, 4.0)]
    answers += [answer(split, sample, 9.0) for split in (TRAIN, VALIDATION) for sample in (None, 0, 1)]
    assert evaluation.metrics(answers, solved_at=1.0)["eval/reward/words"] == 2.5


def test_an_evaluation_says_how_the_drawn_responses_to_a_test_prompt_differ():
    repeated = "six six six six six six"
    drawn = {"a": ["one two", "one two", "one three", ""], "b": [repeated, "seven", "eight", "nine ten"]}
    answers = [Answer(p, text, 0.0, "", TEST, at) for p, own in drawn.items() for at, text in enumerate(own)]
    answers += [Answer("a", "unlike", 0.0, "", split, None) for split in SPLITS]
    answers += [Answer("c", "unlike", 0.0, "", split, 0) for split in (TRAIN, VALIDATION)]
    found = evaluation.metrics(answers, solved_at=1.0)
    assert found["eval/distinct_1"] == pytest.approx((3 / 6 + 5 / 10) / 2)
    assert found["eval/distinct_2"] == pytest.approx((2 / 3 + 2 / 6) / 2)
    assert found["eval/empty"] == 1 / 8 and found["eval/words"] == 16 / 8
    assert found["eval/repetition"] == pytest.approx((2 / 3) / 8)
    assert found["eval/self_bleu"] == pytest.approx(fmean(map(texts.self_bleu, drawn.values())))


def test_the_best_evaluation_is_chosen_on_validation_prompts_and_is_the_first_of_equals():
    best: Best | None = None
    for step, (validation, test) in enumerate([(0.2, 0.9), (0.5, 0.3), (0.5, 0.8), (0.4, 1.0)], start=1):
        best = evaluation.better(best, step, {"eval/validation_reward_mean": validation, "eval/reward_mean": test})
    assert best == Best(step=2, validation_reward_mean=0.5, reward_mean=0.3)


def test_pass_at_any_k_stands_beside_the_powers_of_two():
    assert evaluation.pass_counts(16, [10]) == [1, 2, 4, 8, 10, 16]
    assert evaluation.pass_counts(4, [10, 3]) == [1, 2, 3, 4]
    answers = [Answer("a", str(n), float(n < 3), "", split, n) for n in range(12) for split in SPLITS]
    answers += [Answer("a", "", 0.0, "", split, None) for split in SPLITS]
    found = evaluation.metrics(answers, 1.0, [10])
    assert found["eval/pass@10"] == pytest.approx(1 - comb(9, 10) / comb(12, 10)) == 1.0
    assert found["eval/pass@8"] == pytest.approx(1 - comb(9, 8) / comb(12, 8))


@pytest.mark.train
def test_responses_to_many_test_prompts_are_kept_for_judges_after_some_steps(new_run):
    words = [*QUICK, "trainer.eval_prompts=4", "trainer.eval_responses=2", "trainer.steps=5"]
    run, plain = new_run("judged"), new_run("plain")
    train(configuration(*words, "trainer.judged={every: 3, prompts: 12}"), run)
    train(configuration(*words), plain)
    assert Counter(step for step, *_ in run.responses) == {2: 2, 3: 12, 4: 2, 5: 12}
    assert sorted(run.evaluations) == [2, 3, 4, 5] and all(len(own) == 60 for own in run.evaluations.values())
    assert {step: run.evaluations[step] for step in (2, 4, 5)} == plain.evaluations
    without = [{key: value for key, value in line.items() if "eval/" not in key} for line in science(run.lines)]
    assert without == [{k: v for k, v in line.items() if "eval/" not in k} for line in science(plain.lines)]


@pytest.mark.train
def test_an_evaluation_asks_unseen_prompts_and_its_greedy_responses_are_the_most_likely(cache):
    trainer = InProcess(configuration(*SHORT, "trainer.eval_every=1", "trainer.eval_prompts=20"), cache)
    trainer.step(1)
    answers = trainer.evaluate(1)
    prompts = {split: {one.prompt for one in answers if one.split == split} for split in SPLITS}
    assert {split: len(own) for split, own in prompts.items()} == dict.fromkeys(SPLITS, 20)
    assert Counter(one.sample for one in answers) == dict.fromkeys((None, 0, 1, 2, 3), 60)
    trained = {row.text for step in range(1, 200) for row in trainer._rollout._prompts.of_step(step, 32)}
    assert prompts[TRAIN] <= trained and not trained & (prompts[TEST] | prompts[VALIDATION])
    score = tasks.get("expression").compute_score
    assert all(one.reward == score("", one.response, one.ground_truth) for one in answers)
    encode, eos = trainer.actor.tokenizer.encode, trainer.actor.tokenizer.eos_token_id
    from torch import tensor

    for one in random.Random(0).sample([one for one in answers if one.sample is None], k=5):
        ids = encode(one.prompt)
        for token in (*encode(one.response), eos)[:6]:
            assert int(trainer._policy(input_ids=tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)


@pytest.mark.train
def test_evaluations_change_no_other_number_and_are_the_same_after_an_interruption(new_run):
    evaluated = [*QUICK, "trainer.eval_prompts=8", "trainer.steps=5"]
    plain, whole, first, second = new_run("plain"), new_run("whole"), new_run("parts", stop_after=3), new_run("parts")
    train(configuration(*evaluated, "trainer.eval_every=0"), plain)
    summary = train(configuration(*evaluated), whole)
    without = [{k: v for k, v in line.items() if "eval/" not in k} for line in science(whole.lines)]
    for line, of_plain in zip(without, science(plain.lines), strict=True):  # plain has no evaluations to measure it at
        assert line == {k: v for k, v in of_plain.items() if k != "actor/kl_init" or line["step"] in (2, 4, 5)}
    files = {name: content for name, content in saved(step_folder(whole, 5)).items() if name != "state.json"}
    assert files.items() <= saved(step_folder(plain, 5)).items()
    with pytest.raises(Preempted):
        train(configuration(*evaluated), first)
    assert train(configuration(*evaluated), second)["best"] == summary["best"]
    assert {**first.evaluations, **second.evaluations} == whole.evaluations
    assert sorted(whole.evaluations) == [2, 4, 5] and sorted(second.evaluations) == [4, 5]
    assert science(first.lines + second.lines) == science(whole.lines)
    validation, reward, selected = (
        {line["step"]: line[key] for line in whole.lines if key in line}
        for key in ("eval/validation_reward_mean", "eval/reward_mean", "eval/selected_reward_mean")
    )
    for step in (2, 4, 5):
        best = max((one for one in validation if one <= step), key=lambda one: validation[one])
        assert selected[step] == reward[best]
    assert summary["best"]["reward_mean"] == selected[5]


@pytest.mark.train
def test_the_policy_is_evaluated_before_training_once_and_no_other_number_changes(new_run, cache):
    evaluated = [*QUICK, "trainer.eval_prompts=8", "trainer.steps=3"]
    plain, whole, first, second = new_run("plain"), new_run("whole"), new_run("parts", stop_after=2), new_run("parts")
    train(configuration(*evaluated), plain)
    evaluated.append("trainer.eval_before_train=true")
    train(configuration(*evaluated), whole)
    before, *after = science(whole.lines)
    assert before["step"] == 0 and before["samples/total"] == before["tokens/total"] == before["cost/flops"] == 0
    expected = InProcess(configuration(*evaluated), cache).evaluate(0)
    assert evaluation.metrics(expected, 1.0).items() <= before.items() and whole.evaluations[0] == expected
    selected = "eval/selected_reward_mean"  # may choose the policy before training
    for line, without in zip(after, science(plain.lines), strict=True):
        assert {**line, selected: without.get(selected)} == {**without, selected: without.get(selected)}
    with pytest.raises(Preempted):
        train(configuration(*evaluated), first)
    train(configuration(*evaluated), second)
    assert science(first.lines + second.lines) == science(whole.lines)


@pytest.mark.train
def test_a_split_without_prompts_is_refused_where_an_evaluation_needs_it(cache):
    none = configuration(*SHORT, "trainer.split.test=0", "trainer.eval_every=1")
    said = r"trainer\.split\.test: the task has no test prompt.* set trainer\.eval_every=0"
    with pytest.raises(ValueError, match=said):
        InProcess(none, cache)

"""Prompts and rewards of the user's own: columns, messages, metadata, functions in files, and what they get wrong."""

from __future__ import annotations

import datetime
import math
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from tests.trainer_ext.conftest import jsonl, refusal, section, train_twin
from tests.trainer_ext.twins import problems, tokenizer_of
from trainer_ext.application.preflight import check_task
from trainer_ext.backends.in_process.prompts import Prompts
from trainer_ext.scoring import rewards, tasks
from trainer_ext.scoring.tasks import Row, file

SECTION = section("file")
SHARES = {"validation": 0.0, "test": 0.0}
VERL = SimpleNamespace(data=SimpleNamespace(max_prompt_length=99))
REWARDS = """
from helper_of_rewards import bonus

def graded(data_source, solution_str, ground_truth, extra_info):
    right = float(solution_str == ground_truth)
    return {"score": right + bonus(extra_info), "right": right, "level": extra_info["level"]}

def plain(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str)

CONSTANT = 3
"""


@pytest.fixture
def own(tmp_path):
    """A folder with a file of rewards, which imports the module beside it."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "helper_of_rewards.py").write_text("def bonus(info):\n    return info['level'] / 10\n")
    return tmp_path


def read(path, **more):
    return file.rows({**SECTION, "train_path": path, **more})


# ---------------------------------------------------------------- prompts


def test_a_test_file_is_the_test_split(tmp_path):
    train_path = jsonl(tmp_path / "a.jsonl", *({"prompt": f"{n}?", "answer": ""} for n in range(20)))
    test_path = jsonl(tmp_path / "b.jsonl", {"prompt": "20?", "answer": ""}, {"prompt": "3?", "answer": ""})
    section = {**SECTION, "train_path": train_path, "test_path": test_path}
    divided = tasks.rows_by_split(section, {"validation": 0.2, "test": 0.2})
    assert {row.prompt for row in divided["test"]} == {"20?", "3?"}
    assert "3?" not in {row.prompt for row in divided["train"]}


def test_prompts_with_another_message_of_the_system_are_others(tmp_path):
    """All of the test file are reported, and none with their text is trained on. With one message for all, or the
    task's, the order is that without any."""

    def asked(test, **more):
        lines = [{"prompt": p if s is None else [{"role": "system", "content": s}, user(p)]} for p, s in test]
        section = {**SECTION, "train_path": train, "test_path": jsonl(tmp_path / "b.jsonl", *lines), "answer": None}
        config = {"task": {**section, "reward": "exact_match", **more}, "trainer": {"split": SHARES}, "verl": VERL}
        prompts = Prompts(config, tmp_path / "cache", tokenizer_of("qwen2"), seed=0)
        assert {row.messages[-1]["content"] for row in prompts._rows} == {"9?"}
        return prompts.of_split(tasks.TEST, 99)

    def user(prompt):
        return {"role": "user", "content": prompt}

    train = jsonl(tmp_path / "a.jsonl", *({"prompt": [user(f"{n}?")]} for n in (0, 9)))
    several = [(f"{n}?", system) for n in range(4) for system in ("French", "German", "")]
    found = asked(several, system_prompt="Be short.")
    told = [(row.messages[-1]["content"], row.messages[0]["content"]) for row in found]
    assert sorted(told) == sorted(several) and len({row.text for row in found}) == 12
    assert [prompt for prompt, _ in told[::3]] == [prompt for prompt, _ in told[1::3]]
    alone = [row.text for row in asked([(f"{n}?", None) for n in range(4)])]
    assert [row.text for row in asked([(f"{n}?", None) for n in range(4)], system_prompt="Be short.")] == alone
    of_one = asked([(f"{n}?", "French") for n in range(4)], system_prompt="Be short.")
    assert [row.text for row in of_one] == [f"French\n{text}" for text in alone]
    assert [row.text for row in asked([(f"{n}?", "Be short.") for n in range(4)], system_prompt="Be short.")] == alone


@pytest.mark.parametrize(
    "values", [[None, {}], [[{"a": {}}]], [1, 10**30], [1, 2, "x", 3], [[1], {"a": 1}], [{"a": 1}, {"a": "x"}, None]]
)
def test_metadata_that_a_run_cannot_write_are_refused_by_a_plan_too(tmp_path, values, worded):
    lines = [{"prompt": f"{n}?", "answer": "", "other": n, "n": value} for n, value in enumerate(values)]
    asked = {**SECTION, "train_path": jsonl(tmp_path / "a.jsonl", *lines), "reward": "exact_match"}
    said = refusal(lambda: tasks.prepare(asked, SHARES, tmp_path / "cache"))
    assert [str(one) for one in check_task(asked, True, True).objections] == [said]
    worded(said)


@pytest.mark.parametrize("values, is_json", [(["2020-01-01", "é\n"], True), ([1, 2.5], True), ([[1], None], True),
                                             ([b"x", None], False), ([datetime.date(2020, 1, 2)], False)])  # fmt: skip
def test_rows_are_read_as_the_parquet_file_has_them(tmp_path, monkeypatch, values, is_json):
    rows = [Row(str(number), "", tasks.TRAIN, metadata={"n": value}) for number, value in enumerate(values)]
    monkeypatch.setattr(tasks, "rows_by_split", lambda *_: {tasks.TRAIN: rows, tasks.TEST: []})
    folder = tasks.prepare({**SECTION, "train_path": jsonl(tmp_path / "a.jsonl")}, SHARES, tmp_path)
    assert (folder / "train.jsonl").is_file() == is_json
    written = pq.read_table(folder / "train.parquet", columns=["prompt", "reward_model", "extra_info"]).to_pylist()
    assert tasks.read(folder, tasks.TRAIN) == written and [row["extra_info"]["n"] for row in written] == values
    assert tasks.read(folder, tasks.TEST) == []


@pytest.mark.parametrize("column, refused", [(None, ["task.warm_start"]), ("answer", [])])
def test_a_warm_start_without_a_demonstration_is_refused_by_a_plan(tmp_path, column, refused):
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "a", "answer": "b"})
    asked = {**SECTION, "train_path": path, "worked_answer": column, "warm_start": {"steps": 1}}
    asked["reward"] = "exact_match"
    assert [objection.key for objection in check_task(asked, True, True).objections] == refused


# ---------------------------------------------------------------- rewards


def test_a_function_of_a_file_gets_the_metadata(own):
    path = jsonl(own / "a.jsonl", {"prompt": "a", "answer": "b", "level": 2})
    section = {**SECTION, "train_path": path, "reward": f"{own}/rewards.py:graded"}
    (row,) = file.rows(section)
    score = tasks.scorer(section)("b", row.prompt, row.ground_truth, row.metadata)
    assert score == rewards.Score(1.2, {"right": 1.0, "level": 2.0})


def test_prepared_prompts_carry_the_metadata_and_are_made_again_with_another_reward(own):
    path = jsonl(own / "a.jsonl", {"prompt": "a", "answer": "b", "level": 2}, {"prompt": "c", "answer": "d"})
    section = {**SECTION, "train_path": path, "reward": f"{own}/rewards.py:graded", "system_prompt": "Hm."}
    folder = tasks.prepare(section, SHARES, own / "cache")
    lines = pq.read_table(folder / "train.parquet").to_pylist()
    expected = [{"level": level, "index": place, "split": "train"} for place, level in enumerate((2, None))]
    assert [line["extra_info"] for line in lines] == expected
    assert lines[0]["prompt"] == [{"role": "system", "content": "Hm."}, {"role": "user", "content": "a"}]
    (own / "rewards.py").write_text(REWARDS.replace("right +", "2 * right +"))
    assert tasks.prepare(section, SHARES, own / "cache") != folder


def test_columns_index_and_split_reach_the_reward(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "a", "answer": "", "index": "k7", "split": "hard"})
    asked = {**SECTION, "train_path": path, "reward": "exact_match"}
    (row,) = tasks.read(tasks.prepare(asked, SHARES, tmp_path), tasks.TRAIN)
    assert row["extra_info"] == {"index": "k7", "split": "hard"}


WRONG = ("exact", "none.py:graded", "rewards.py:grade", "rewards.py:CONSTANT", "rewards.py", "no.such.module:graded")


@pytest.mark.parametrize("spec", WRONG)
def test_a_reward_that_cannot_be_found_is_named(own, spec, worded):
    worded(refusal(lambda: rewards.function(f"{own}/{spec}" if ".py" in spec else spec)))


def test_threads_that_ask_at_the_same_time_find_the_function_and_execute_the_file_once(own):
    (own / "rewards.py").write_text(f"import time\ntime.sleep(0.1)\n{REWARDS}")
    spec, threads = f"{own}/rewards.py:graded", 8
    together = threading.Barrier(threads)

    def ask():
        together.wait()
        return rewards.function(spec)

    with ThreadPoolExecutor(threads) as pool:
        found = {future.result() for future in [pool.submit(ask) for _ in range(threads)]}
    assert len(found) == 1


def test_an_error_inside_a_module_is_not_taken_for_a_missing_module(own):
    (own / "broken.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        rewards.function(f"{own}/broken.py:graded")


@pytest.mark.parametrize(
    "returned",
    ["1", None, float("nan"), 1e39, {"right": 1.0}, {"score": 1.0, "why": "short"}, {"score": 1.0, "a b": 1.0}],
)
def test_what_is_no_score_fails_the_run_with_the_prompt(returned, worded):
    scorer = rewards.Scorer("mine", lambda *_: returned)
    worded(refusal(lambda: scorer("said", "asked", "right", {}), rewards.RewardFailed))


def test_a_reward_that_ends_the_process_fails_the_run_with_the_prompt():
    said = refusal(lambda: rewards.Scorer("mine", lambda *_: sys.exit(7))("said", "asked", "right", {}))
    assert said == "the reward of task mine failed: SystemExit: 7; prompt 'asked', response 'said', answer 'right'"


def reward_of(own, parameters, returned, made="of"):
    """A task with a reward of these parameters."""
    code = f"import functools\ndef of({parameters}): return len({returned})\nclass Own:\n"
    (own / "mine.py").write_text(
        f"{code}    def __call__(self, {parameters}): return len({returned})\ngiven = {made}\n"
    )
    path = jsonl(own / "a.jsonl", {"prompt": "a", "answer": "four"})
    return {**SECTION, "train_path": path, "reward": f"{own}/mine.py:given"}


@pytest.mark.parametrize(
    "parameters, returned",
    [
        ("solution_str, ground_truth, data_source=None, extra_info=None", "solution_str"),
        ("*, data_source, solution_str, ground_truth, extra_info", "solution_str"),
        ("solution_str, ground_truth, **others", "solution_str"),
        ("data_source, solution_str, ground_truth, extra_info, weight=1", "solution_str"),
        ("*given, **named", "named['solution_str']"), ("where, said, right, info=None", "said"),
        ("where, said, *others, **named", "said"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("made", ["of", "functools.partial(of)", "Own()"])
def test_a_reward_gets_its_values_by_verls_names_or_in_verls_order(own, made, parameters, returned):
    asked = reward_of(own, parameters, returned, made)
    assert not check_task(asked, True, True).objections
    assert tasks.scorer(asked)("a response", "", "", {}).value == len("a response")
    assert rewards.file_of(tasks.reward(asked)) == own / "mine.py"


@pytest.mark.parametrize("parameters", ["where, solution_str, ground_truth, extra_info", "solution_str, ground_truth"])
def test_a_reward_with_some_of_verls_names_is_refused(own, parameters, worded):
    asked = reward_of(own, parameters, "solution_str")
    said = refusal(lambda: tasks.scorer(asked))
    assert [str(one) for one in check_task(asked, True, True).objections] == [said]
    worded(said)


def in_thread(call):
    """As the backend verl_ray calls it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def spins(*_):
    while True:
        pass


def catches(*_):
    """It takes no notice of the first interruption."""
    try:
        spins()
    except BaseException:
        spins()


def sets_alarms(*_):
    """As math-verify does for a limit of its own."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    time.sleep(60)


def returns_late(*_):
    began = time.monotonic()
    while time.monotonic() - began < 0.1:
        try:
            time.sleep(0.1)
        except BaseException:
            continue
    return 1.0


@pytest.mark.parametrize("place", [lambda call: call(), in_thread], ids=["main thread", "another thread"])
@pytest.mark.parametrize("function", [lambda *_: time.sleep(60), spins, catches, sets_alarms, returns_late])
def test_a_reward_that_does_not_return_in_time_fails_the_run_with_the_prompt(place, function):
    ends = threading.Event()

    def until_the_test_ends(*given):
        """What is left behind in a thread ends with the test."""
        if threading.current_thread() is threading.main_thread() or function is returns_late:
            return function(*given)
        return ends.wait(60)

    scorer = rewards.Scorer("mine", until_the_test_ends, timeout_s=0.05)
    began = time.monotonic()
    said = refusal(lambda: place(lambda: scorer("said", "asked", "right", {})), rewards.RewardFailed)
    ends.set()
    assert time.monotonic() - began < 10
    assert said == (
        "the reward of task mine failed: it did not return within task.reward_timeout_s=0.05 seconds; "
        "prompt 'asked', response 'said', answer 'right'"
    )


def test_a_signal_that_comes_too_late_interrupts_nothing():
    """That of a limit which has passed may come after its function, and while the next one runs."""

    def meets(returned):
        signal.raise_signal(rewards._LATE)
        return returned()

    assert rewards.within(30, meets, lambda: "returned") == "returned"
    with pytest.raises(ZeroDivisionError):
        rewards.within(30, meets, lambda: 1 / 0)
    signal.raise_signal(rewards._LATE)


def test_a_child_that_a_reward_forks_has_a_limit_of_its_own():
    """It has the handler of its parent, and none of its threads."""

    def forks():
        if not (child := os.fork()):
            try:
                rewards.within(0.05, sets_alarms)
            except rewards.TooSlow:
                os._exit(7)
            finally:
                os._exit(8)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert rewards.within(30, forks) == 7


@pytest.mark.parametrize("place", [lambda call: call(), in_thread], ids=["main thread", "another thread"])
def test_a_limit_changes_nothing_for_a_reward_that_returns_in_time(place):
    handler, (delay, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    scorer = rewards.Scorer("mine", lambda *given: {"score": 0.5, "length": len(given[1])}, timeout_s=30)
    assert place(lambda: scorer("said", "asked", "right", {})) == rewards.Score(0.5, {"length": 4.0})
    assert signal.getsignal(signal.SIGALRM) == handler
    after, _ = signal.getitimer(signal.ITIMER_REAL)
    assert (delay > 0) == (after > 0) and after <= delay
    failing = rewards.Scorer("mine", lambda *_: 1 / 0, timeout_s=30)
    with pytest.raises(rewards.RewardFailed, match="ZeroDivisionError"):
        place(lambda: failing("said", "asked", "right", {}))
    assert signal.getsignal(signal.SIGALRM) == handler


def test_the_limit_is_the_tasks_and_a_run_of_an_older_version_has_none(own):
    """Another limit does not prepare prompts again."""
    path = jsonl(own / "a.jsonl", {"prompt": "a", "answer": "b", "level": 2})
    (own / "slow.py").write_text("import time\n\n\ndef slow(*_):\n    time.sleep(0.1)\n    return 1\n")
    section = {**SECTION, "train_path": path, "reward": f"{own}/slow.py:slow"}
    assert section["reward_timeout_s"] > 0
    with pytest.raises(rewards.RewardFailed, match=r"task\.reward_timeout_s=0\.02"):
        tasks.scorer({**section, "reward_timeout_s": 0.02})("", "", "", {})
    assert len({tasks.prepare({**section, "reward_timeout_s": s}, SHARES, own / "cache") for s in (1.0, 2.0)}) == 1
    del section["reward_timeout_s"]
    assert tasks.scorer(section)("", "", "", {}).seconds >= 0.1


def test_further_numbers_are_means_over_the_responses():
    scores = [rewards.Score(1.0, {"words": 2.0}, 0.5), rewards.Score(0.0, {"words": 4.0}, 0.25)]
    assert rewards.metrics(scores) == {"reward/words": 3.0, "cost/reward_seconds": 0.75}
    with pytest.raises(ValueError, match="the reward returned words for some responses only"):
        rewards.metrics([*scores, rewards.Score(1.0)])


def test_exact_match_takes_no_notice_of_white_space_at_the_ends():
    assert [rewards.exact_match("", text, " Paris") for text in ("Paris\n", "paris", "Paris.")] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("testing two", "testing one two", 4 / 5),  # of rouge-score's own tests (rouge_scorer_test.py)
        ("TESTING, one-two!", "testing one two", 1), ("", "testing one two", 0), ("", "", 0), ("caf", "café", 0),
        ("le café est fermé", "Le CAFE\u0301 est ferme\u0301", 1), ("हिन्दी में", "हिन्दी में", 1),
        ("на столе лежит книга", "книга лежит на столе", 2 * 2 / 8), ("猫在桌子上", "狗在桌子上", 4 / 5),
    ],
)  # fmt: skip
def test_rouge_l_is_the_f_measure_of_the_longest_common_words(response, answer, expected):
    assert rewards.function("rouge_l")("", response, answer) == pytest.approx(expected)


def test_rouge_l_is_the_packages_own_for_plain_english():
    from rouge_score.rouge_scorer import RougeScorer

    response = "It's 3 o'clock_now; don't wait (or do)!"
    answer = "It was 3 o'clock, so now they don't wait"
    expected = RougeScorer(["rougeL"]).score(answer, response)["rougeL"].fmeasure
    assert 0 < expected < 1 and rewards.rouge_l("", response, answer) == expected


@pytest.mark.parametrize(
    ("response", "answers", "expected"),
    [
        ("The Eiffel Tower.", '["Eiffel tower", "La tour Eiffel"]', 1), ("1,969", '["1969"]', 1), ("12", "12", 1),
        ("la  tour Eiffel!", '["Eiffel tower", "La tour Eiffel"]', 1), ("Müller", "Müller", 1),
        ("in the Eiffel Tower", '["Eiffel tower"]', 0), ("", '["Eiffel tower"]', 0),
    ],
)  # fmt: skip
def test_any_exact_match_is_that_of_squad(response, answers, expected):
    assert rewards.function("any_exact_match")("", response, answers) == expected


#: The second reference of sacrebleu's README for its first sentence: 6/6, 4/5, 2/4 and 1/3 n-grams, one word too few.
DOG = math.exp(1 - 7 / 6) * (4 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("The dog bit the man.", "The dog bit the man.", 1), ("The dog bit the man.", "The dog had bit the man.", DOG),
        ("", "The dog bit the man.", 0), ("dog", "", 0), ("cats sleep", "The dog bit the man.", 0),
        ("猫在桌子上", "猫在桌子上", 1), ("Ja.", "Ja.", 1),
    ],
)  # fmt: skip
def test_bleu_is_that_of_a_sentence_from_0_to_1(response, answer, expected):
    assert rewards.function("bleu")("", response, answer) == pytest.approx(expected, abs=1e-9)
    assert rewards.bleu("", response, answer) <= 1


def test_bleu_is_sacrebleus_own_and_compares_characters_where_words_have_no_spaces():
    from sacrebleu import sentence_bleu

    response, answer = "Der Hund beißt einen Mann im Park.", "Der Hund biss den Mann im Park, sagt er."
    assert rewards.bleu("", response, answer) == pytest.approx(sentence_bleu(response, [answer]).score / 100)
    assert 0.3 < rewards.bleu("", "猫在桌子上面", "猫在桌子下面") < 1


# ---------------------------------------------------------------- a run


@pytest.mark.train
def test_a_pretrained_model_trains_on_own_data_with_an_own_reward(own):
    lines = [{"question": one["question"], "answer": one["answer"], "level": 1} for one in problems()]
    words = ["method=c0_grpo", "task=file", f"task.train_path={jsonl(own / 'a.jsonl', *lines)}", "task.prompt=question"]
    words += [f"task.reward={own}/rewards.py:graded", "task.system_prompt='Count.'", "trainer.split.validation=0.2"]
    run = train_twin(own, *words, "trainer.eval_every=2", "trainer.eval_prompts=2")
    for line in run.lines:
        assert line["reward/level"] == 1.0
        assert line["analysis/reward_sum_mean"] == pytest.approx(line["reward/right"] + 0.1)
        assert 0 < line["cost/reward_seconds"] < line["cost/step_seconds"]
    assert run.lines[-1]["eval/reward/level"] == 1.0
    assert run.lines[-1]["eval/reward_mean"] == pytest.approx(run.lines[-1]["eval/reward/right"] + 0.1)
    assert all(prompt in {one["question"] for one in problems()} for _, prompt, *_ in run.responses)

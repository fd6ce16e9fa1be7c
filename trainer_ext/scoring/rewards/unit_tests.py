"""The reward of generated code: it passes unit tests in a sandbox (docs/code-tasks.md).

The answer of a prompt is JSON: a mapping with the tests, as `trainer_ext.scoring.sandbox` takes them, and `prompt`, the
code that a response may continue.
"""

from __future__ import annotations

import json
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trainer_ext.objection import Objection
from trainer_ext.scoring import rewards
from trainer_ext.scoring.sandbox import ISOLATIONS, BadTests, Limits, check, parallel, run

NAME = "unit_tests"
#: Values of task.score.
PASSED, FRACTION = SCORES = ("passed", "fraction")
#: What the reward returns beside the reward.
NUMBERS = ("passed", "timed_out", "syntax_error")
_BLOCK = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_PYTHON = ("python", "python3", "py")


@rewards.reward(NAME)
def score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,
    *,
    sandbox: Mapping[str, Any],
    score: str,
) -> dict[str, float]:
    """1.0 when the program in a response passes all tests, else 0.0; with score=fraction, the share that it passes.

    Further numbers: `passed`, the share of tests passed; `timed_out` and `syntax_error`, 1.0 or 0.0. BadTests: the
    answer is not JSON with tests, or the tests cannot run. sandbox.Unavailable: see there.
    """
    tests = tests_of(ground_truth)
    verdict = run(_limits(sandbox), programs(solution_str, tests), tests)
    share = verdict.passed / verdict.cases
    return {
        rewards.SCORE: share if score == FRACTION else float(verdict.right),
        "passed": share,
        "timed_out": float(verdict.timed_out),
        "syntax_error": float(verdict.syntax_error),
    }


def reward(task: Mapping[str, Any]) -> Callable[..., Any]:
    """Whether a program passes the tests, with the settings of the section `task`. Objection: a setting is missing, or
    has another value."""
    choice = rewards.reward.choice({**task, "reward": NAME})
    if task["score"] not in SCORES:
        rule = f"must be {' or '.join(SCORES)}"
        raise Objection("task.score", task["score"], rule, "give one of these (docs/code-tasks.md)")
    _limits(task["sandbox"])
    unit_tests: Any = partial(score, **choice.settings)
    unit_tests.__name__ = NAME
    unit_tests.parallel, unit_tests.numbers, unit_tests.check = parallel(), NUMBERS, check_answer
    return unit_tests  # type: ignore[no-any-return]


def _limits(settings: Mapping[str, Any]) -> Limits:
    try:
        limits = Limits(**settings)
    except TypeError as error:
        rule = f"it needs the keys {', '.join(Limits.__dataclass_fields__)}"
        raise Objection("task.sandbox", dict(settings), rule, "give these keys (docs/code-tasks.md)") from error
    if limits.isolation not in ISOLATIONS:
        rule = f"must be {' or '.join(ISOLATIONS)}"
        raise Objection("task.sandbox.isolation", limits.isolation, rule, "give one of these (docs/code-tasks.md)")
    return limits


def tests_of(answer: str) -> Mapping[str, Any]:
    """The tests in the answer of a prompt; keys that are null are left out. BadTests: it has none, or wrong ones."""
    try:
        tests = json.loads(answer)
    except ValueError as error:
        raise BadTests(f"the answer of a prompt must be JSON with tests: {error}") from error
    if not isinstance(tests, dict):
        raise BadTests(f"the answer of a prompt must be a JSON mapping with tests; it is {answer:.100}")
    tests = {key: value for key, value in tests.items() if value is not None}  # as Parquet fills what a row lacks
    check(tests)
    return tests


def check_answer(answer: str) -> None:
    """BadTests: as in `tests_of`, or the tests are not Python. Nothing is executed."""
    tests = tests_of(answer)
    for key, text in [("setup", tests.get("setup", "")), *(("tests", text) for text in tests.get("tests", ()))]:
        try:
            with warnings.catch_warnings(action="ignore"):
                compile(text, key, "exec", dont_inherit=True)
        except Exception as error:
            raise BadTests(f"{text!r:.100} is not Python: {error}") from error


def programs(response: str, tests: Mapping[str, Any]) -> list[str]:
    """The programs that a response may mean, the most likely first: the first that is valid Python counts.

    The last ```python block, or the last block; without a block the whole response. If the tests have a `prompt`, code
    that does not define their `entry_point` continues it.
    """
    prompt, entry_point = tests.get("prompt") or "", tests.get("entry_point") or ""
    blocks = _BLOCK.findall(response)
    labelled = [code for language, code in blocks if language.lower() in _PYTHON]
    code = (labelled[-1] if labelled else blocks[-1][1] if blocks else response).removeprefix("\ufeff")
    if not prompt:
        return [*dict.fromkeys([code, textwrap.dedent(code)])]  # a block in a list is indented
    if blocks and re.search(rf"^(async )?def {re.escape(entry_point)}\b", code, re.MULTILINE):
        return [f"{prompt}\n    pass\n\n{code}", code]
    # the first indentation may be missing, or all of it; what follows the function may be no Python
    whole = [code, f"    {code.lstrip()}", *([textwrap.indent(textwrap.dedent(code), "    ")] if blocks else [])]
    return [f"{prompt}{text}" for text in [*whole, *filter(str.strip, map(_body, whole))]]


def _body(code: str) -> str:
    """The lines of a function's body: those before the first line that is not indented."""
    lines = code.splitlines(keepends=True)
    ends = (number for number, line in enumerate(lines) if line.strip() and not line[0].isspace())
    return "".join(lines[: next(ends, len(lines))])

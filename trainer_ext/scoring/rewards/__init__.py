"""Rewards of responses: what a task's function returns, functions in files of the user's, and rewards for text.

A reward has verl's signature, `function(data_source, solution_str, ground_truth, extra_info)`, and gets these values by
name, as from verl. It returns a number, or a mapping whose `score` is the reward and whose other numbers are logged as
`reward/NAME`, means over a step's responses, and as `eval/reward/NAME`, means over an evaluation's. A reward that is
not a function of one response is a `Together`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import re
import signal
import string
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from numbers import Real
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

from trainer_ext.objection import Objection
from trainer_ext.registry import Part
from trainer_ext.scoring.rewards import texts

#: Decorator of the rewards that `task.reward` names without a file or a module.
reward = Part("reward", inputs=4, section="task", group="rlsweep.tasks")

Result = TypeVar("Result")

SCORE = "score"
_LARGEST = 3.4028234663852886e38  # of float32
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_NUMBER = re.compile(  # commas part thousands, or as in India hundreds above one thousand
    r"(?<!\d)-?(?:(?:\d{1,3}(?:,\d{2,3}){0,9},\d{3}(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+]?\d{1,9}(?!\d))?"
)
_SHOWN = 200  # characters of a prompt or a response in an error
_LATE = signal.SIGVTALRM  # no alarm of a function's own, as math-verify sets, is this one
_AGAIN_S = 0.5  # between looks at the time, and interruptions of a function that catches the first one
_loading = threading.RLock()  # verl asks for rewards in threads: none may see a file that another one is executing


@dataclass(frozen=True)
class Score:
    """The reward of a response, further numbers about it by name, and the seconds that the function took."""

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)


#: The messages of a prompt, each with `role` and `content`.
Messages = Sequence[Mapping[str, str]]


class Together(ABC):
    """A reward that scores several responses at once, and reads the messages of their prompts."""

    @abstractmethod
    def scores(self, asked: Sequence[tuple[Messages, str]]) -> list[float]:
        """The reward of each response to its messages. Threads may call it at the same time."""


class Scorer:
    """Gives the responses of a task their rewards. timeout_s: seconds for each of them; None: no limit.

    A `Together` has no limit: it is code of this project, and one call of it scores many responses.
    """

    def __init__(self, data_source: str, function: Callable[..., Any] | Together, timeout_s: float | None = None):
        self._data_source, self._function, self._timeout_s = data_source, function, timeout_s
        self._called = None if isinstance(function, Together) else called(function)

    @property
    def parallel(self) -> int:
        """How many responses may be scored at the same time, in threads."""
        return int(getattr(self._function, "parallel", 1))

    @property
    def together(self) -> bool:
        """Whether responses are scored by `many`."""
        return isinstance(self._function, Together)

    def many(self, asked: Sequence[tuple[Messages, str]]) -> list[Score]:
        """The scores of responses to messages, at once. RewardFailed: the reward raises, or one is not finite."""
        assert isinstance(self._function, Together)
        began = time.perf_counter()
        failed = f"the reward of task {self._data_source} failed:"
        try:
            values = self._function.scores(asked)
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}"
            messages, response = asked[0]
            first = f"the first is {response[:_SHOWN]!r} to the prompt {messages[-1]['content'][:_SHOWN]!r}"
            raise RewardFailed(f"{failed} {what}; of {len(asked)} responses, {first}") from error
        each = (time.perf_counter() - began) / max(1, len(asked))
        for value, (messages, response) in zip(values, asked, strict=True):
            if not _is_finite(value):
                where = f"prompt {messages[-1]['content'][:_SHOWN]!r}, response {response[:_SHOWN]!r}"
                raise RewardFailed(f"{failed} it is {value}, and must be finite in float32; {where}")
        return [Score(float(value), seconds=each) for value in values]

    def __call__(
        self, response: str, prompt: str, ground_truth: str, extra_info: Mapping[str, Any], messages: Messages = ()
    ) -> Score:
        """The score of one response.

        prompt: for the error, and in the place of messages that are not given. RewardFailed: the function raises,
        returns something else than a score, or does not return in time.
        """
        if self._called is None:
            return self.many([(messages or [{"role": "user", "content": prompt}], response)])[0]
        began = time.perf_counter()
        try:
            given = self._data_source, response, ground_truth, dict(extra_info)
            returned = within(self._timeout_s, self._called, *given)
            return replace(score(returned), seconds=time.perf_counter() - began)
        except (Exception, SystemExit) as error:
            what = str(error) if isinstance(error, TooSlow) else f"{type(error).__name__}: {error}"
            raise RewardFailed(
                f"the reward of task {self._data_source} failed: {what}; prompt {prompt[:_SHOWN]!r}, "
                f"response {response[:_SHOWN]!r}, answer {ground_truth[:_SHOWN]!r}"
            ) from error


class RewardFailed(ValueError):
    """A reward function raised, did not return a score, or did not return in time."""


class NoScore(TypeError, ValueError):
    """A reward function returned neither a finite number nor a mapping of finite numbers with `score`."""


class TooSlow(Exception):
    """A reward function did not return within its time limit."""

    def __init__(self, seconds: float):
        super().__init__(f"it did not return within task.reward_timeout_s={seconds:g} seconds")


class _Interruption(BaseException):
    """Ends a function; not an Exception, because functions catch these."""


def within(seconds: float | None, function: Callable[..., Result], *given: Any) -> Result:
    """function(*given). TooSlow: it does not return within `seconds`; None: no limit.

    On the main thread a signal interrupts the function. Elsewhere Python cannot interrupt it: there it runs in a
    thread of its own, which is left behind. A function that never lets Python run (a loop in C) cannot be ended.
    """
    if seconds is None:
        return function(*given)
    if threading.current_thread() is threading.main_thread():
        return _interrupted(seconds, function, *given)
    return _left_behind(seconds, function, *given)


class _Watcher(threading.Thread):
    """Sends the main thread _LATE while the time is past `until`; no timer of the function that it runs ends that."""

    until = math.inf

    def run(self) -> None:
        while True:
            time.sleep(_AGAIN_S)
            if time.monotonic() > self.until:
                signal.pthread_kill(threading.main_thread().ident, _LATE)  # type: ignore[arg-type]  # it runs

    def interrupt(self, number: int, frame: Any) -> None:
        if time.monotonic() > self.until:  # a late signal must not interrupt what follows
            raise _Interruption


_watcher = _Watcher()


def _interrupted(seconds: float, function: Callable[..., Result], *given: Any) -> Result:
    global _watcher
    if not _watcher.is_alive():  # at first, and in a fork, which has no thread of its parent
        _watcher = _Watcher(name="reward limit", daemon=True)
        _watcher.start()
    signal.signal(_LATE, _watcher.interrupt)  # for good: without a handler, a late signal would end the process
    _watcher.until = until = time.monotonic() + seconds
    try:
        try:
            result = function(*given)
        finally:
            _watcher.until = math.inf
    except _Interruption:
        _watcher.until = math.inf  # the function may have returned just then
        raise TooSlow(seconds) from None
    if time.monotonic() > until:  # it caught the interruption, or returned before one
        raise TooSlow(seconds)
    return result


def _left_behind(seconds: float, function: Callable[..., Result], *given: Any) -> Result:
    answer: Future[Result] = Future()

    def call() -> None:
        try:
            answer.set_result(function(*given))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, name="reward", daemon=True).start()
    if not wait([answer], timeout=seconds).done:
        raise TooSlow(seconds)
    return answer.result()


def score(returned: Any) -> Score:
    """What a reward function returned, as a score. Raises NoScore."""
    if not isinstance(returned, Mapping):
        return Score(_number("the reward", returned))
    if SCORE not in returned:
        raise NoScore(f"the mapping has no key {SCORE}, which is the reward; it has {', '.join(map(str, returned))}")
    numbers = {name: _number(f"the value of {name}", value) for name, value in returned.items()}
    for name in numbers:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise NoScore(f"{name!r} cannot name a metric; use letters, digits, _, . and -")
    return Score(numbers.pop(SCORE), numbers)


def _is_finite(value: Any) -> bool:
    """Whether a number is finite in float32, the precision of rewards."""
    return bool(abs(value) <= _LARGEST)


def _number(what: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise NoScore(f"{what} is {value!r}; it must be a number")
    if not _is_finite(value):
        raise NoScore(f"{what} is {value}; it must be finite in float32")
    return float(value)


def metrics(scores: Sequence[Score]) -> dict[str, float]:
    """What the rewards of a step say: `reward/NAME` for each further number, and the seconds of all rewards.

    ValueError: as in `means`.
    """
    further = {metric(name): value for name, value in means([score.metrics for score in scores]).items()}
    return {**further, "cost/reward_seconds": sum(score.seconds for score in scores)}


def means(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of further numbers over responses, by name. ValueError: not all responses have the same."""
    names = list(numbers[0])
    for row in numbers:
        if set(row) != set(names):
            odd = ", ".join(sorted(set(row) ^ set(names)))
            raise ValueError(f"the reward returned {odd} for some responses only; return the same keys for each")
    return {name: fmean(row[name] for row in numbers) for name in names}


def metric(name: str) -> str:
    """The metric of a further number."""
    return f"reward/{name}"


# ---------------------------------------------------------------- functions by name


def function(spec: str) -> Callable[..., Any]:
    """The reward that a text names: a known one, `FILE.py:FUNCTION`, or `MODULE:FUNCTION`.

    A file is relative to the folder in which the command runs. Objection: there is no such file, module, function or
    known reward. Whatever the file raises when it is imported is passed on.
    """
    place, colon, name = (spec, "", "") if spec.endswith(".py") else spec.rpartition(":")
    if not colon and not place:
        return reward.get(spec).function
    if place.endswith(".py") and not Path(place).expanduser().is_file():
        raise _no_function(spec, f"the file {Path(place).expanduser().resolve()} does not exist")
    module = _load(Path(place).expanduser().resolve()) if place.endswith(".py") else _import(place, spec)
    attribute = getattr(module, name, None)
    if not callable(attribute):
        defined = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        what = f"no function {name!r}" if name else "no function given"
        raise _no_function(spec, f"{place}: {what}; it has {', '.join(defined) or 'none'}")
    return attribute  # type: ignore[no-any-return]


def _no_function(spec: str, rule: str) -> Objection:
    fix = "name a function as FILE.py:FUNCTION or MODULE:FUNCTION, or a known reward (docs/own-data.md)"
    return Objection("task.reward", spec, rule, fix)


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for ARGUMENTS in this order. It gets them by name, or in this order if it has none of the names.

    Objection: it has some of the names, and cannot be called with all of them.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have none
        return function
    with suppress(TypeError):
        signature.bind(**dict.fromkeys(ARGUMENTS))
        return lambda *given: function(**dict(zip(ARGUMENTS, given, strict=True)))
    if not {*ARGUMENTS} & {*signature.parameters}:
        return function
    rule = f"its parameters are {signature}, and a reward is called with {', '.join(ARGUMENTS)} by name, as by verl"
    fix = "take these four names, or none of them: then their values come in this order"
    raise Objection(getattr(function, "__name__", "task.reward"), None, rule, fix, str(file_of(function)))


def file_of(function: Callable[..., Any] | Together) -> Path:
    """The file that a reward stands in."""
    return Path(sys.modules[getattr(function, "func", function).__module__].__file__ or "")  # func: of a partial


def _load(file: Path) -> ModuleType:
    name = f"rlsweep_reward_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    with _loading:
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            if str(file.parent) not in sys.path:
                sys.path.append(str(file.parent))  # so that it can import the modules beside it
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def _import(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        rule = f"there is no module {name}; a file ends in .py, as in rewards.py:FUNCTION"
        raise _no_function(spec, rule) from error


# ---------------------------------------------------------------- rewards for text


def last_number(text: str) -> str | None:
    """The last number of a text, without commas, as Decimal reads it; None: it has no number."""
    numbers = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    return numbers[-1].replace(",", "") if numbers else None


@reward("last_number")
def same_last_number(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the last number of the response equals that of the answer, else 0.0."""
    number, right = last_number(solution_str), last_number(ground_truth)
    return float(number is not None and right is not None and Decimal(number) == Decimal(right))


@reward("exact_match")
def exact_match(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the response is the answer but for white space at its ends, else 0.0."""
    return float(solution_str.strip() == ground_truth.strip())


@reward("any_exact_match")
def any_exact_match(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the response is one of the answers, as in SQuAD's evaluation, else 0.0.

    Lower case, without punctuation, the articles a, an and the, and with single spaces. The answers: a list as JSON, or
    one text.
    """
    try:
        answers = json.loads(ground_truth)
    except ValueError:
        answers = ground_truth
    given = _squad(solution_str)
    return float(any(given == _squad(str(x)) for x in (answers if isinstance(answers, list) else [ground_truth])))


def _squad(text: str) -> str:
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


@reward("rouge_l")
def rouge_l(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """ROUGE-L of the response for the answer, the F-measure, from 0 to 1 (Lin 2004, by the package rouge-score).

    The package's own words are of a-z and 0-9 alone; here they are those of every script, in lower case. Without other
    letters in the texts both are the same.
    """
    return float(_rouge().score(ground_truth, solution_str)["rougeL"].fmeasure)


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=SimpleNamespace(tokenize=texts.words))


@reward("bleu")
def bleu(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """BLEU of the response as a sentence for the answer, from 0 to 1 (texts.bleu)."""
    return texts.bleu(solution_str, [ground_truth])

"""Rewards of responses: what a task's function returns, functions in files of the user's, and rewards for text.

A reward has verl's signature, `function(data_source, solution_str, ground_truth, extra_info)`. It returns a number, or
a mapping whose `score` is the reward and whose other numbers are logged as `reward/NAME`, means over a step's
responses.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from trainer_ext.registry import Part

#: Decorator of the rewards that `task.reward` names without a file or a module.
reward = Part("reward", inputs=4, section="task", group="rlsweep.tasks")

SCORE = "score"
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_NUMBER = re.compile(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?")
_SHOWN = 200  # characters of a prompt or a response in an error


@dataclass(frozen=True)
class Score:
    """The reward of a response, and further numbers about it by name."""

    value: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Scorer:
    """Gives the responses of a task their rewards."""

    def __init__(self, data_source: str, function: Callable[..., Any]):
        self._data_source, self._function = data_source, function

    @property
    def parallel(self) -> int:
        """How many responses may be scored at the same time, in threads."""
        return int(getattr(self._function, "parallel", 1))

    def __call__(self, response: str, prompt: str, ground_truth: str, extra_info: Mapping[str, Any]) -> Score:
        """The score of one response. RewardFailed: the function raises, or returns something else than a score.

        prompt: for the error alone.
        """
        try:
            return score(self._function(self._data_source, response, ground_truth, dict(extra_info)))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RewardFailed(
                f"the reward of task {self._data_source} failed: {what}; prompt {prompt[:_SHOWN]!r}, "
                f"response {response[:_SHOWN]!r}, answer {ground_truth[:_SHOWN]!r}"
            ) from error


class RewardFailed(Exception):
    """A reward function raised, or did not return a score."""


def score(returned: Any) -> Score:
    """What a reward function returned, as a score.

    TypeError, ValueError: it is neither a finite number nor a mapping of finite numbers with `score`.
    """
    if not isinstance(returned, Mapping):
        return Score(_number("the reward", returned))
    if SCORE not in returned:
        raise ValueError(f"the mapping has no key {SCORE}, which is the reward; it has {', '.join(map(str, returned))}")
    numbers = {name: _number(f"the value of {name}", value) for name, value in returned.items()}
    for name in numbers:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a metric; use letters, digits, _, . and -")
    return Score(numbers.pop(SCORE), numbers)


def _number(what: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{what} is {value!r}; it must be a number")
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}; it must be finite")
    return float(value)


def metrics(scores: Sequence[Score]) -> dict[str, float]:
    """`reward/NAME` for each further number, the mean over the responses. ValueError: not all responses have it."""
    names = list(scores[0].metrics)
    for one in scores:
        if set(one.metrics) != set(names):
            odd = ", ".join(sorted(set(one.metrics) ^ set(names)))
            raise ValueError(f"the reward returned {odd} for some responses only; return the same keys for each")
    return {metric(name): fmean(one.metrics[name] for one in scores) for name in names}


def metric(name: str) -> str:
    """The metric of a further number."""
    return f"reward/{name}"


# ---------------------------------------------------------------- functions by name


def function(spec: str) -> Callable[..., Any]:
    """The reward that a text names: a known one, `FILE.py:FUNCTION`, or `MODULE:FUNCTION`.

    A file is relative to the folder in which the command runs. ValueError: there is no such file, module, function or
    known reward. Whatever the file raises when it is imported is passed on.
    """
    place, colon, name = (spec, "", "") if spec.endswith(".py") else spec.rpartition(":")
    if not colon and not place:
        return _known(spec)
    module = _load(Path(place).expanduser()) if place.endswith(".py") else _import(place)
    found = getattr(module, name, None)
    if not callable(found):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        what = f"no function {name!r}" if name else "no function given"
        raise ValueError(f"{place}: {what}; it has {', '.join(own) or 'none'}")
    return found  # type: ignore[no-any-return]


def _known(name: str) -> Callable[..., Any]:
    try:
        return reward.get(name).function
    except ValueError as error:
        closest = "".join(f"; did you mean {one}?" for one in difflib.get_close_matches(name, list(reward), n=1))
        raise ValueError(f"there is no such reward; there are {', '.join(reward)}{closest}") from error


def file_of(function: Callable[..., Any]) -> Path:
    """The file that a reward function stands in."""
    return Path(sys.modules[function.__module__].__file__ or "")


def _load(file: Path) -> ModuleType:
    file = file.resolve()
    if not file.is_file():
        raise ValueError(f"the file {file} does not exist")
    name = f"rlsweep_reward_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
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


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"there is no module {name}; a file ends in .py, as in rewards.py:FUNCTION") from error


# ---------------------------------------------------------------- rewards for text


def last_number(text: str) -> str | None:
    """The last number of a text, without commas; None: it has no number."""
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


@reward("last_number")
def same_last_number(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the last number of the response equals that of the answer, else 0.0."""
    number, right = last_number(solution_str), last_number(ground_truth)
    return float(number is not None and right is not None and float(number) == float(right))


@reward("exact_match")
def exact_match(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """1.0 when the response is the answer but for white space at its ends, else 0.0."""
    return float(solution_str.strip() == ground_truth.strip())

"""What a plan's analysis section asks for, checked value by value; a refusal names file, key, value and what is
needed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

METRIC = re.compile(r"[^\s|]+")  # whatever another tool calls it
OWN_METRIC = re.compile(r"[a-z_]+/[A-Za-z0-9_@]+")  # as the trainer calls its own, and conf/config.yaml has it
KEY = "a metric's key such as actor/grad_norm"


class BadPlan(ValueError):
    """A folder that holds no plan to report on, or one that asks for something unknown; the message names the file and
    the fix."""


class BadValue(BadPlan):
    """One key of a plan's analysis section that asks for something unknown.

    key: from `analysis` on; value: as it was given, None where the key itself is the matter; rule: what holds.
    """

    def __init__(self, file: str, key: str, value: str | None, rule: str) -> None:
        self.key, self.value, self.rule = key, value, rule
        super().__init__(f"{file}: {key}{'' if value is None else f' = {value}'}: {rule}")


def refuse(file: str, key: str, value: Any, needed: str) -> BadValue:
    """The error for a value, to be raised."""
    return BadValue(file, f"analysis.{key}", repr(value), f"{needed} is needed")


def only(file: str, place: str, given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Refuse a key that is not among those allowed."""
    for key in given:
        if key not in allowed:
            raise BadValue(file, f"{place}.{key}", repr(given[key]), f"no such key; allowed are {', '.join(allowed)}")


def choice(file: str, key: str, value: Any, allowed: Sequence[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise refuse(file, key, value, " or ".join(map(repr, allowed)))
    return value


def whole(file: str, key: str, value: Any, lowest: int) -> int:
    """A whole number from `lowest`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise refuse(file, key, value, f"a whole number from {lowest}")
    return value


def number(file: str, key: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise refuse(file, key, value, "a number")
    return float(value)


def metric(file: str, key: str, value: Any) -> str:
    """A metric's key."""
    if not isinstance(value, str) or not METRIC.fullmatch(value):
        raise refuse(file, key, value, KEY)
    return value


def distinct(file: str, key: str, value: Any, needed: str, lowest: int, highest: int) -> tuple[str, ...]:
    """A list of so many words, none of them twice."""
    words = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not lowest <= len(words) <= highest or not all(isinstance(word, str) for word in words):
        raise refuse(file, key, value, needed)
    if len(set(words)) < len(words):
        raise refuse(file, key, value, f"{needed}, each once,")
    return words

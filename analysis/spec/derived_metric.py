"""Metrics made of recorded ones, for hypotheses: |KEY| is the magnitude, |KEY - NUMBER| the distance from a number,
KEY - KEY a difference, KEY + KEY a sum, each step by step."""

from __future__ import annotations

import re
from dataclasses import dataclass

_KEY = r"[^\s|]+"
_NUMBER = r"\d+(?:\.\d+)?"
_ONE = rf"\|(?P<one>{_KEY})(?: - (?P<number>{_NUMBER}))?\|"
_FORM = re.compile(rf"{_ONE}|(?P<left>{_KEY}) (?P<sign>[+-]) (?P<right>{_KEY})")


@dataclass(frozen=True)
class Derived:
    """keys: one metric for a magnitude (sign |), two for a difference (-) or a sum (+). number: that a magnitude is the
    distance from."""

    sign: str
    keys: tuple[str, ...]
    number: float = 0.0


def parse(text: str) -> Derived | None:
    """How a metric is derived; None: it is a recorded one."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    one, left, sign, right = match.group("one", "left", "sign", "right")
    return Derived("|", (one,), float(match["number"] or 0)) if one else Derived(sign, (left, right))


def keys(text: str) -> tuple[str, ...]:
    """The recorded metrics that a metric, derived or not, is made of."""
    derived = parse(text)
    return (text,) if derived is None else derived.keys

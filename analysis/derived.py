"""Metrics made of recorded ones, for hypotheses: |KEY| is the magnitude, KEY - KEY a difference, KEY + KEY a sum, each
step by step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis.checks import METRIC

if TYPE_CHECKING:
    from analysis.read import Sweep

_KEY = METRIC.pattern
_FORM = re.compile(rf"\|(?P<one>{_KEY})\||(?P<left>{_KEY}) (?P<sign>[+-]) (?P<right>{_KEY})")


@dataclass(frozen=True)
class Derived:
    """keys: one metric for a magnitude (sign |), two for a difference (-) or a sum (+)."""

    sign: str
    keys: tuple[str, ...]


def parse(text: str) -> Derived | None:
    """What the text makes of which metrics; None: it is not of this form."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    one, left, sign, right = match.group("one", "left", "sign", "right")
    return Derived("|", (one,)) if one else Derived(sign, (left, right))


def keys(text: str) -> tuple[str, ...]:
    """The recorded metrics that a metric, derived or not, is made of."""
    made = parse(text)
    return (text,) if made is None else made.keys


def added(sweep: Sweep, metrics: Iterable[str]) -> Sweep:
    """The sweep whose runs also have those of `metrics` that are derived, where they have what these are made of."""
    wanted = {text: found for text in metrics if (found := parse(text)) is not None}
    if not wanted:
        return sweep
    runs = []
    for run in sweep.runs:
        values = dict(run.curves.values)
        for text, made in wanted.items():
            if all(key in values for key in made.keys):
                first, last = values[made.keys[0]], values[made.keys[-1]]
                values[text] = abs(first) if made.sign == "|" else first - last if made.sign == "-" else first + last
        runs.append(replace(run, curves=replace(run.curves, values=values)))
    return replace(sweep, runs=tuple(runs))

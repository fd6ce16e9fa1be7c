"""The curves of derived metrics, computed step by step from recorded ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.spec.derived_metric import parse

if TYPE_CHECKING:
    from analysis.data.sweep import Sweep


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

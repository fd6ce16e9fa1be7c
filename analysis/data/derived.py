"""The curves of derived metrics, computed step by step from recorded ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.spec.derived_metric import parse

if TYPE_CHECKING:
    from analysis.data.sweep import Sweep


def added(sweep: Sweep, metrics: Iterable[str]) -> Sweep:
    """The sweep with the curves of those `metrics` that are derived, for each run that has the recorded ones."""
    asked = {text: derived for text in metrics if (derived := parse(text)) is not None}
    if not asked:
        return sweep
    runs = []
    for run in sweep.runs:
        values = dict(run.curves.values)
        for text, made in asked.items():
            if all(key in values for key in made.keys):
                first, last = values[made.keys[0]], values[made.keys[-1]]
                if made.sign == "|":
                    values[text] = abs(first - made.number)
                else:
                    values[text] = first - last if made.sign == "-" else first + last
        runs.append(replace(run, curves=replace(run.curves, values=values)))
    return replace(sweep, runs=tuple(runs))

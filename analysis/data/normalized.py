"""Curves that are computed from recorded ones: scores normalised by declared reference scores, and derived metrics.

Of normalised scores, 0 is the low reference of a task and 1 the high one. The curves of the primary metric are
normalised before anything is computed of them, so every summary, threshold, figure and hypothesis of it uses normalised
scores.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from analysis.data.sweep import Run, Sweep
from analysis.spec.metric_catalog import parse
from analysis.spec.settings import Settings, factor_of
from analysis.stats.numbers import Array

_RECORDED = "{} as recorded"  # no metric's key has a blank


def normalized(settings: Settings, sweep: Sweep) -> Sweep:
    """The sweep with the primary metric of each run normalised by the references of its level.

    The levels are those of the factor `task`. Without it, they are those of the factor with the most levels that
    `normalize` names.
    """
    references = settings.normalize
    if not references:
        return sweep
    factor = factor_of(references, [run.cell for run in sweep.runs])
    runs = (_normalized(run, settings.metric, references[str(dict(run.cell)[factor])]) for run in sweep.runs)
    return replace(sweep, runs=tuple(runs))


def as_recorded(run: Run, metric: str) -> Array | None:
    """The values of a metric before they were normalised; None if the run does not have it."""
    return run.curves.values.get(_RECORDED.format(metric), run.curves.values.get(metric))


def _normalized(run: Run, metric: str, ends: tuple[float, ...]) -> Run:
    if metric not in run.curves.values:
        return run
    low, high = ends
    recorded = run.curves.values[metric]
    made = {metric: (recorded - low) / (high - low), _RECORDED.format(metric): recorded}
    return replace(run, curves=replace(run.curves, values=ChainMap(made, cast(dict[str, Array], run.curves.values))))


def added(sweep: Sweep, metrics: Iterable[str]) -> Sweep:
    """The sweep with the curves of those `metrics` that are derived, for each run that has the recorded ones."""
    asked = {text: derived for text in metrics if (derived := parse(text)) is not None}
    if not asked:
        return sweep
    runs = []
    for run in sweep.runs:
        values, ends = ChainMap({}, cast(dict[str, Array], run.curves.values)), {**run.curves.ends}
        for text, made in asked.items():
            if all(key in values for key in made.keys):
                first, last = values[made.keys[0]], values[made.keys[-1]]
                if made.sign == "|":
                    values[text] = abs(first - made.number)
                else:
                    values[text] = first - last if made.sign == "-" else first + last
                if known := [run.curves.ends[key] for key in made.keys if key in run.curves.ends]:
                    ends[text] = min(known)
        runs.append(replace(run, curves=replace(run.curves, values=values, ends=ends)))
    return replace(sweep, runs=tuple(runs))

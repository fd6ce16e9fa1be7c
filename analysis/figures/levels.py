"""The curves of a metric by level: one curve for each level of the factor that a method has, which a mean over levels
would hide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analysis.data.sweep import Run, Sweep
from analysis.figures.canvas import Sketch
from analysis.figures.learning_curves import curves
from analysis.findings.levels import factor_order, varied
from analysis.findings.study import Study
from analysis.spec.figure_spec import Picture
from analysis.spec.figure_spec import curves as picture_of
from analysis.spec.registry import figure

_MOST = 8  # curves that colours can still tell apart


@figure("levels")
def levels(study: Study, picture: Picture) -> Sketch | None:
    """Seeds, band and mean of the first metric at each level of each method's only factor; a method without a factor
    has one curve. None if no method has exactly one factor of two levels or more, or if there are too many curves."""
    apart = by_level(study.sweep)
    if apart is None or len(apart.groups) > _MOST:
        return None
    metric = picture.metrics[0]
    sketch = curves(replace(study, sweep=apart), picture_of(metric))
    if sketch is None:
        return None
    return sketch._replace(name=picture.name, title=f"{sketch.title} by level", kind=picture.kind)


def by_level(sweep: Sweep) -> Sweep | None:
    """The sweep with each level of a method's only factor as a group of its own; None if no method has one."""
    groups: dict[str, Any] = {}
    runs: list[Run] = []
    several = False
    for group in sweep.groups:
        factors = varied(sweep, group)
        if len(factors) != 1:
            groups[group] = sweep.plan["groups"][group]
            runs += sweep.of(group)
            continue
        several = True
        (factor,) = (label for label in factor_order(sweep) if label in factors)
        for run in sweep.of(group):
            level = dict(run.cell)[factor]
            name = f"{group}.{factor}.{level}"
            groups.setdefault(name, {"label": f"{sweep.label(group)}, {factor} = {level}"})
            runs.append(replace(run, group=name, cell=tuple(item for item in run.cell if item[0] != factor)))
    return replace(sweep, plan={**sweep.plan, "groups": groups}, runs=tuple(runs)) if several else None

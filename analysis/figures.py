"""The figures of a report: the paired differences, and what the experiment asks to be drawn.

Every method's artists carry a group id (gid), so that a page can hide them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from analysis.curves import curves, spread
from analysis.drawing import INK, STYLE, Figure, Sketch, canvas_of, colours, save
from analysis.metrics import capital
from analysis.picture import Picture
from analysis.points import pareto, scatter
from analysis.snapshots import snapshots
from analysis.study import Block, Study
from analysis.traces import Array

_DRAW: Mapping[str, Callable[[Study, Picture], Sketch | None]] = {
    "curves": curves, "band": spread, "histogram": snapshots, "pareto": pareto, "scatter": scatter,
}  # fmt: skip


def figures(study: Study) -> list[Figure]:
    """The differences on the primary measure, then every figure asked for of which there is something to draw."""
    return _saved(
        lambda: _differences(study.primary, study, None),
        *(lambda picture=picture: _DRAW[picture.kind](study, picture) for picture in study.settings.drawn),
    )


def differences(study: Study, reference: str) -> list[Figure]:
    """Each comparison of the primary measure with what `reference` names; none where there is nothing to draw."""
    return _saved(lambda: _differences(study.primary, study, reference))


def _saved(*drawings: Callable[[], Sketch | None]) -> list[Figure]:
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(STYLE):
        return [save(sketch) for draw in drawings if (sketch := draw()) is not None]


def _differences(block: Block, study: Study, reference: str | None) -> Sketch | None:
    shown = [c for c in block.comparisons if c.result.mean_difference is not None]
    if not shown:
        return None
    look = colours(study.sweep.groups)
    canvas, axes = canvas_of(7.0, 1.15 + 0.42 * len(shown))
    axes.axvline(0, color=INK, linewidth=0.9)
    labels = []
    intervals: dict[str, tuple[Array, Array]] = {}
    for place, comparison in enumerate(reversed(shown)):
        colour, result, group = look[comparison.group][0], comparison.result, comparison.group
        d = np.subtract(comparison.a, comparison.b)
        dots: dict[str, Any] = {"markersize": 3.6, "markeredgewidth": 0, "alpha": 0.55}
        for seed, value in zip(comparison.seeds, d, strict=True):
            of_seed = {**dots, "color": colour, "gid": f"seed.{seed}--{group}", "label": f"seed {seed}"}
            axes.plot([value], [place - 0.16], "o", **of_seed)
        if result.interval is not None:
            axes.plot(result.interval, (place, place), color=colour, linewidth=2.0, gid=f"interval--{group}")
            low, high = result.interval
            intervals[f"mean--{group}"] = np.array([low]), np.array([high])
        mean: dict[str, Any] = {"color": colour, "gid": f"mean--{group}", "label": "mean over seeds"}
        axes.plot([result.mean_difference or 0.0], [place], "D", markersize=6, **mean)
        count = "" if not comparison.gaps else f" (n = {result.n})"
        labels.append(study.sweep.label(group) + count)
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.grid(False, axis="y")
    measure = block.measure
    unit = f" ({measure.unit})" if measure.unit else ""
    baseline = reference or study.sweep.label(shown[0].baseline)
    axes.set_xlabel(f"{measure.title}, difference to {baseline}{unit}")
    level = f"{100 * (1 - study.settings.alpha):g}%"
    sides = {"higher": " Right of the line is better.", "lower": " Left of the line is better."}
    caption = (
        f"{capital(measure.title)}, difference to {baseline} over the same seeds: mean (diamond) "
        f"with its {level} t interval, each seed as a dot.{sides.get(measure.better or '', '')}"
    )
    return Sketch("differences", f"Differences to {reference or 'the baseline'}", caption, canvas, intervals)

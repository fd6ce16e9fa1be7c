"""The figures of a report: the paired differences, and what the experiment asks to be drawn.

Every method's artists carry a group id (gid), so that a page can hide them.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.canvas import INK, LINE, MANY, STYLE, TOGETHER, Figure, Sketch, brief, canvas_of, colours, save
from analysis.figures.histograms import snapshots
from analysis.figures.learning_curves import curves, spread
from analysis.figures.scatter import pareto, scatter
from analysis.figures.survival import waiting
from analysis.figures.traces import Array
from analysis.findings.study import Block, Comparison, Study
from analysis.spec.figure_spec import Picture
from analysis.spec.metric_catalog import capital

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICK = 28  # letters in a line of a method's label, of which there are two at most
_DRAW: Mapping[str, Callable[[Study, Picture], Sketch | None]] = {
    "curves": curves, "band": spread, "histogram": snapshots, "pareto": pareto, "scatter": scatter,
}  # fmt: skip


def figures(study: Study) -> list[Figure]:
    """The differences on the primary measure, the curves of each time, then every figure asked for; none of nothing."""
    return saved(
        lambda: _differences(study.primary, study, None),
        lambda: waiting(study),
        *(lambda picture=picture: _DRAW[picture.kind](study, picture) for picture in study.settings.drawn),
    )


def differences(study: Study, reference: str) -> list[Figure]:
    """Each comparison of the primary measure with what `reference` names; none where there is nothing to draw."""
    return saved(lambda: _differences(study.primary, study, reference))


def saved(*drawings: Callable[[], Sketch | list[Sketch] | None]) -> list[Figure]:
    """What these draw, in every format; none for a drawing of nothing."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # docs/report.md says so
        found: list[Sketch] = []
        for draw in drawings:
            made = draw()
            found += [made] if isinstance(made, Sketch) else made or []
        return save(found)


def _apart(axes: Axes, comparison: Comparison, d: Array, height: float, dots: Mapping[str, Any]) -> None:
    for seed, value in zip(comparison.seeds, d, strict=True):
        named = {**dots, "gid": f"seed.{seed}--{comparison.group}", "label": f"seed {seed}"}
        axes.plot([value], [height], "o", **named)


def _together(axes: Axes, comparison: Comparison, d: Array, height: float, dots: Mapping[str, Any]) -> None:
    from analysis.figures.dense_artists import Members

    group, at = comparison.group, np.array([height])
    axes.plot(d, np.full(d.size, height), "o", gid=f"seeds--{group}", **dots)
    rows = {f"seed.{n}--{group}": (f"seed {n}", d[i : i + 1], at) for i, n in enumerate(comparison.seeds)}
    axes.add_artist(Members(rows))


def _differences(block: Block, study: Study, reference: str | None) -> Sketch | None:
    shown = [c for c in block.comparisons if c.result.mean_difference is not None]
    if not shown:
        return None
    look = colours(study.sweep.groups)
    canvas, axes = canvas_of(7.0, 1.15 + 0.42 * len(shown))
    axes.axvline(0, color=INK, linewidth=0.9)
    many = sum(len(comparison.seeds) for comparison in shown) > MANY
    draw = _together if many else _apart
    labels = []
    intervals: dict[str, tuple[Array, Array]] = {}
    for place, comparison in enumerate(reversed(shown)):
        colour, result, group = look[comparison.group][0], comparison.result, comparison.group
        d = np.subtract(comparison.a, comparison.b)
        dots: dict[str, Any] = {"markersize": 3.6, "markeredgewidth": 0, "alpha": 0.55}
        draw(axes, comparison, d, place - 0.16, {**dots, "color": colour})
        if result.interval is not None:
            axes.plot(result.interval, (place, place), color=colour, linewidth=2.0, gid=f"interval--{group}")
            low, high = result.interval
            intervals[f"mean--{group}"] = np.array([low]), np.array([high])
        mean: dict[str, Any] = {"color": colour, "gid": f"mean--{group}", "label": "mean over seeds"}
        axes.plot([result.mean_difference or 0.0], [place], "D", markersize=6, **mean)
        count = "" if not comparison.gaps else f" (n = {result.n})"
        labels.append(textwrap.fill(brief(study.sweep.label(group), 2 * _TICK), _TICK) + count)
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.grid(False, axis="y")
    measure = block.measure
    unit = f" ({measure.unit})" if measure.unit else ""
    baseline = reference or study.sweep.label(shown[0].baseline)
    beside = max(len(line) for label in labels for line in label.split("\n"))  # it is centred below the axes alone
    axes.set_xlabel(textwrap.fill(f"{measure.title}, difference to {baseline}{unit}", LINE + 14 - min(beside, _TICK)))
    level = f"{100 * (1 - study.settings.alpha):g}%"
    sides = {"higher": " Right of the line is better.", "lower": " Left of the line is better."}
    caption = (
        f"{capital(measure.title)}, difference to {baseline} over the same seeds: mean (diamond) "
        f"{f'with its {level} t interval, ' if intervals else 'without interval, for one seed has none, '}each seed as "
        f"a dot.{sides.get(measure.better or '', '')}"
        f"{f' {TOGETHER}' if many else ''}"
    )
    return Sketch("differences", f"Differences to {reference or 'the baseline'}", caption, canvas, intervals)

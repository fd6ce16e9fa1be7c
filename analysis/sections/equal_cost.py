"""What each method reaches for the same cost: the primary metric over device-seconds and over operations.

A step of two methods may differ in cost. Their curves are put over what they spent and cut where the run that spent
least ended, so that no method is ahead because it spent more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from analysis.data.run_values import over_cost
from analysis.data.sweep import Cell
from analysis.figures.canvas import Sketch
from analysis.figures.learning_curves import curves
from analysis.findings.study import AXES, Block, Measure, Study, block, range_of
from analysis.spec.figure_spec import curves as picture_of
from analysis.spec.metric_catalog import capital
from analysis.spec.validation import some
from analysis.tables.comparison import comparison_table
from analysis.tables.table import Table
from analysis.tables.wording import factors

_COSTS = ("device_seconds", "flops")
_NAMED = 8  # cells whose budgets a note names


@dataclass(frozen=True)
class EqualCost:
    """The final value and the area of the primary metric over each cost, and by axis what the run that spent least had
    spent, by cell."""

    blocks: tuple[Block, ...]
    budgets: Mapping[str, Mapping[Cell, float]]


def equal_cost(study: Study) -> EqualCost | None:
    """What methods reach at equal cost; None without a second method, or if no cost was recorded."""
    blocks: list[Block] = []
    budgets: dict[str, Mapping[Cell, float]] = {}
    for axis in _COSTS if len(study.sweep.groups) > 1 else ():
        converted = over_cost(study.ranges[study.settings.metric], study.sweep.runs, axis)
        if converted is None:
            continue
        common, budgets[axis] = converted
        for summary in ("final", "auc"):
            measure = Measure(study.settings.metric, summary, study.settings.direction, axis=axis)
            blocks.append(block(study.sweep, study.settings, common, measure, study.sweep.baseline))
    return EqualCost(tuple(blocks), budgets) if blocks else None


def equal_cost_table(study: Study, compared: EqualCost) -> Table:
    """Every group on these measures, and against the baseline."""
    made = comparison_table("equal_cost", "At equal cost", study, compared.blocks)
    return replace(made, notes=(*_notes(compared.budgets), *made.notes))


def _notes(ends: Mapping[str, Mapping[Cell, float]]) -> Iterator[str]:
    for axis, of_cell in ends.items():
        spent = [f"{least:.4g}{f' ({factors(cell)})' if cell else ''}" for cell, least in of_cell.items()]
        of = " of the same cell" if len(spent) > 1 else ""
        yield f"Over {AXES[axis]}, curves end at the least that any run{of} spent: {some(spent, _NAMED)}."
    if "device_seconds" in ends:
        yield "Device-seconds compare runs of the same kind of machine, and differ from run to run."
    if "flops" in ends:
        yield (
            "Operations are counted: 2 a parameter and generated token for each model that is read, 6 a parameter and "
            "trained token."
        )
    yield "All of these measures are secondary: they were not declared as the question."


def cost_curves(study: Study, compared: EqualCost) -> list[Sketch]:
    """The primary metric over each cost."""
    drawn = []
    for axis in compared.budgets:
        if axis == study.settings.axis:
            continue  # the learning curves are over it
        settings = study.settings.model_copy(update={"axis": axis})
        ranges = {settings.metric: range_of(study.sweep, settings, settings.metric)}
        sketch = curves(replace(study, settings=settings, ranges=ranges), picture_of(settings.metric))
        if sketch is not None:
            over = f"{sketch.title} over {AXES[axis]}"
            name = f"{sketch.name}_over_{axis}"
            drawn.append(replace(sketch, name=name, title=capital(over), kind="curves_over_cost"))
    return drawn

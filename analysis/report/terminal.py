"""What is printed: of a finished report the question, its answer, and the primary measure; and where comparisons stand
while seeds are added."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.data.sweep import read_sweep
from analysis.findings.study import study
from analysis.tables.table import to_text

if TYPE_CHECKING:
    from analysis.report import Report


def text(written: Report) -> str:
    """The answer, the primary measure in four columns, and where the rest is."""
    answer, brief = written.answer, next(table for table in written.tables if table.name == "paper")
    lines = filter(None, (answer.declaration, answer.question, answer.result, answer.certainty))
    points = [*(f"* {line}" for line in answer.points), *(f"* Missing: {gap}" for gap in answer.gaps)]
    table = to_text(dataclasses.replace(brief, columns=("method", "seeds", "value", "difference")))
    verdicts = [f"{v.hypothesis.id} {v.verdict}: {v.hypothesis.claim}" for v in written.verdicts]
    return "\n".join([*lines, *points, "", table, *verdicts, f"\nReport: {written.index}"])


def standings(folder: Path, as_json: bool) -> str:
    """Where each comparison of the primary measure stands, a line each, or as a list of JSON objects. Raises BadPlan as
    `report.write` does."""
    sweep = read_sweep(folder)
    compared = study(sweep, sweep.asked()).primary.comparisons
    stands = [comparison.standing for comparison in compared if comparison.standing is not None]
    if as_json:
        return json.dumps([dataclasses.asdict(standing) for standing in stands], indent=1)
    if not stands:
        return f"{folder}: the number of its seeds is fixed, or it has no comparison of the primary measure"
    return "\n".join(
        f"{standing.group} and {standing.baseline}: {standing.status} (look {standing.look} of {standing.looks}, "
        f"{standing.seeds} of at most {standing.most} seeds)"
        for standing in stands
    )

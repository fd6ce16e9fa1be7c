"""What a sweep lacks: its groups and cells by its seeds, with what became of each run."""

from __future__ import annotations

from analysis.read import Cell, Run, Sweep
from analysis.tables import Table

DONE, UNPLANNED = "done", "not planned"


def missing(sweep: Sweep) -> Table | None:
    """A row a group and cell, a column a seed; None where no planned run lacks a result."""
    if not any(run.problem for run in sweep.runs):
        return None
    seeds = sorted({run.seed for run in sweep.runs})
    at = {(run.group, run.cell, run.seed): run for run in sweep.runs}
    places: dict[tuple[str, Cell], None] = {}
    for group in sweep.groups:
        places |= dict.fromkeys((run.group, run.cell) for run in sweep.runs if run.group == group)
    factors = any(cell for _, cell in places)
    rows, records = [], []
    for group, cell in places:
        shown = ", ".join(f"{label} = {level}" for label, level in cell)
        states = [_state(at.get((group, cell, seed))) for seed in seeds]
        rows.append((sweep.label(group), *([shown] if factors else []), *states))
        records.append(
            {"group": group, "factors": shown, **{f"seed {s}": x for s, x in zip(seeds, states, strict=True)}}
        )
    columns = ("method", *(["factors"] if factors else []), *(f"seed {seed}" for seed in seeds))
    groups = tuple(group for group, _ in places)
    return Table("missing", "What is missing", columns, tuple(rows), tuple(records), (), groups)


def _state(run: Run | None) -> str:
    """A run that is done by its own account, but cannot be used, is no done run."""
    if run is None:
        return UNPLANNED
    if run.problem is None:
        return DONE
    return run.state if run.state != DONE else "unreadable"

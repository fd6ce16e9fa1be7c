"""What a sweep lacks: its groups and cells by its seeds, with what became of each run."""

from __future__ import annotations

from analysis.data.sweep import Cell, Run
from analysis.findings.study import Study
from analysis.tables.comparison import Table

DONE, UNPLANNED, NO_VALUE = "done", "not planned", "no value"


def lacking(study: Study) -> list[tuple[Run, str]]:
    """The planned runs without a result, with the reason: they did not end well, or, as one that ends before the
    others, have no value of the experiment's question. A group that does not record it at all has no gap."""
    block = study.primary
    unknown = {estimate.group for estimate in block.estimates if not estimate.recorded}
    if block.measure.summary == "time_to" and block.measure.threshold is None:
        unknown = set(study.sweep.groups)
    found = []
    for run in study.sweep.runs:
        value = block.values[run.id]
        why = run.problem or (value.reason if value.value is None and run.group not in unknown else None)
        if why:
            found.append((run, why))
    return found


def told(label: str, run: Run, why: str) -> str:
    """A gap in words; label: of the run's group."""
    return f"{label}, seed {run.seed}{''.join(f', {name} = {level}' for name, level in run.cell)}: {why}"


def missing(study: Study) -> Table | None:
    """A row a group and cell, a column a seed; None where no planned run lacks a result."""
    gaps = {(run.group, run.cell, run.seed) for run, _ in lacking(study)}
    if not gaps:
        return None
    sweep = study.sweep
    seeds = sorted({run.seed for run in sweep.runs})
    at = {(run.group, run.cell, run.seed): run for run in sweep.runs}
    places: dict[tuple[str, Cell], None] = {}
    for group in sweep.groups:
        places |= dict.fromkeys((run.group, run.cell) for run in sweep.runs if run.group == group)
    factors = any(cell for _, cell in places)
    rows, records = [], []
    for group, cell in places:
        shown = ", ".join(f"{label} = {level}" for label, level in cell)
        states = [_state(at.get((group, cell, seed)), (group, cell, seed) in gaps) for seed in seeds]
        rows.append((sweep.label(group), *([shown] if factors else []), *states))
        records.append(
            {"group": group, "factors": shown, **{f"seed {s}": x for s, x in zip(seeds, states, strict=True)}}
        )
    columns = ("method", *(["factors"] if factors else []), *(f"seed {seed}" for seed in seeds))
    groups = tuple(group for group, _ in places)
    return Table("missing", "What is missing", columns, tuple(rows), tuple(records), (), groups)


def _state(run: Run | None, gap: bool) -> str:
    """A run that is done by its own account, but cannot be used, is no done run."""
    if run is None:
        return UNPLANNED
    if run.problem is None:
        return NO_VALUE if gap else DONE
    return run.state if run.state != DONE else "unreadable"

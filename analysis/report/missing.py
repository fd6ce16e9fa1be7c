"""What a sweep lacks: the states of its runs, by group and cell, and by seed."""

from __future__ import annotations

from analysis.data.sweep import Cell, Run
from analysis.findings.study import Study
from analysis.tables.table import Entry, Table, table
from analysis.tables.wording import factors

DONE, UNPLANNED, NO_VALUE = "done", "not planned", "no value"


def lacking(study: Study) -> list[tuple[Run, str]]:
    """The planned runs without a result, with the reason: they did not end well, or have no value of the question.

    A group that does not record the metric at all has no gap.
    """
    block = study.primary
    unknown = {estimate.group for estimate in block.estimates if not estimate.recorded}
    if block.measure.summary == "time_to" and block.measure.threshold is None:
        unknown = set(study.sweep.groups)
    gaps = []
    for run in study.sweep.runs:
        value = block.values[run.id]
        why = run.problem or (value.reason if value.value is None and run.group not in unknown else None)
        if why:
            gaps.append((run, why))
    return gaps


def gap_of(run: Run, why: str, label: str) -> str:
    """A gap in words; label: of the run's group."""
    return f"{', '.join(filter(None, (label, f'seed {run.seed}', factors(run.cell))))}: {why}"


def missing(study: Study) -> Table | None:
    """A row for each group and cell, a column for each seed; None where no planned run lacks a result."""
    gaps = {(run.group, run.cell, run.seed) for run, _ in lacking(study)}
    if not gaps:
        return None
    sweep = study.sweep
    seeds = sorted({run.seed for run in sweep.runs})
    at = {(run.group, run.cell, run.seed): run for run in sweep.runs}
    places: dict[tuple[str, Cell], None] = {}
    for group in sweep.groups:
        places |= dict.fromkeys((run.group, run.cell) for run in sweep.of(group))
    has_factors = any(cell for _, cell in places)
    entries: list[Entry] = []
    for group, cell in places:
        shown = factors(cell)
        states = [_state(at.get((group, cell, seed)), (group, cell, seed) in gaps) for seed in seeds]
        record = {"group": group, "factors": shown}
        record |= {f"seed {seed}": state for seed, state in zip(seeds, states, strict=True)}
        entries.append((group, (sweep.label(group), *([shown] if has_factors else []), *states), record))
    columns = ("method", *(["factors"] if has_factors else []), *(f"seed {seed}" for seed in seeds))
    return table("missing", "What is missing", columns, entries)


def _state(run: Run | None, gap: bool) -> str:
    """The state of a run as shown: a run that is done but cannot be used is unreadable, not done."""
    if run is None:
        return UNPLANNED
    if run.problem is None:
        return NO_VALUE if gap else DONE
    return run.state if run.state != DONE else "unreadable"

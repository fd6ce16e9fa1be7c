"""How an experiment stands: counts by state, last metric, remaining time and failures, from the index and the claims.

Remaining times are estimates from measured steps: a run's own where it has two lines in its log, else the mean of its
group's, else of the experiment's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.run import catalog, folder
from launcher.status.index import UNREADABLE, Index, Row

# What needs a person: these wait for `retry`. Cancelled runs do too, but somebody wanted that.
FAILURES = frozenset({folder.FAILED, folder.DIVERGED, UNREADABLE})
# What the same command takes up, or somebody is at.
UNFINISHED = frozenset({folder.NEW, *folder.RESUMABLE})
_EXPLAINED = FAILURES | {folder.LOST, folder.CANCELLED}


@dataclass(frozen=True)
class Failure:
    """Runs that are not done for one cause. `example` is the id of the one that ended last, `title` what it is."""

    state: str
    kind: str | None
    cause: str
    runs: int
    example: str
    title: str


@dataclass(frozen=True)
class Group:
    """A group of an experiment. `metric` is the mean over its runs of the primary metric's last value, or None.

    `step` is the mean last step of its runs; `work_seconds` what its unfinished runs still compute, added up.
    """

    states: Mapping[str, int]
    metric: float | None
    step: float
    work_seconds: float | None


@dataclass(frozen=True)
class Standing:
    """An experiment.

    `work_seconds` is what its unfinished runs still compute, added up; None while no step was measured.
    `remaining_seconds` is the wall time of that with as many runs at a time as now; None while none runs.
    """

    experiment: str
    total: int
    steps: int
    states: Mapping[str, int]
    groups: Mapping[str, Group]
    metric: str | None
    work_seconds: float | None
    remaining_seconds: float | None
    failures: Sequence[Failure]

    @property
    def settled(self) -> bool:
        """Whether no run is waiting or running."""
        return not any(self.states.get(state) for state in UNFINISHED)

    def document(self) -> dict[str, Any]:
        """The JSON object of `status --json`."""
        return {
            "total": self.total,
            "states": dict(self.states),
            "groups": {name: dict(group.states) for name, group in self.groups.items()},
            "steps": self.steps,
            "metric": {
                "name": self.metric,
                "last": {name: group.metric for name, group in self.groups.items()},
                "step": {name: group.step for name, group in self.groups.items()},
            },
            "work_seconds": self.work_seconds,
            "remaining_seconds": self.remaining_seconds,
            "failures": [vars(failure) for failure in self.failures],
        }


def stand(multirun: Path, plan: Mapping[str, Any], index: Index) -> Standing:
    """How the experiment of a plan.json stands at this moment."""
    metric = (plan.get("analysis") or {}).get("primary", {}).get("metric")
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in plan["runs"]:
        groups[entry["group"]][entry["id"]] = None
    ids = catalog.entries(plan)
    rows = index.refresh(ids, [metric] if metric else [])
    states = {run_id: _state(multirun, run_id, rows.get(run_id)) for run_id in ids}
    steps = {run_id: _steps(multirun, run_id, states[run_id], plan["steps"]) for run_id in ids}
    pace = _mean(row.step_seconds for row in rows.values())
    left: dict[str, float | None] = {}
    for own in groups.values():
        own_pace = _mean(rows[run_id].step_seconds for run_id in own if run_id in rows) or pace
        for run_id in own:
            if states[run_id] in UNFINISHED:
                left[run_id] = _left(rows.get(run_id), steps[run_id], own_pace)
    running = [run_id for run_id in ids if states[run_id] == folder.RUNNING]
    work = _total(left.values())
    return Standing(
        experiment=plan["experiment"],
        total=len(ids),
        steps=plan["steps"],
        states=_counted(states.values()),
        groups={
            name: Group(
                states=_counted(states[run_id] for run_id in own),
                metric=_mean(rows[run_id].metrics[metric] for run_id in own if run_id in rows) if metric else None,
                step=_mean(rows[run_id].step if run_id in rows else 0 for run_id in own) or 0.0,
                work_seconds=_total(left[run_id] for run_id in own if run_id in left),
            )
            for name, own in groups.items()
        },
        metric=metric,
        work_seconds=work,
        remaining_seconds=_wall(work, [left[run_id] for run_id in running]),
        failures=_failures(ids, {run_id: (states[run_id], rows[run_id]) for run_id in ids if run_id in rows}),
    )


def _state(multirun: Path, run_id: str, row: Row | None) -> str:
    return folder.NEW if row is None else catalog.true_state(folder.run_folder(multirun, run_id), row.state)


def _steps(multirun: Path, run_id: str, state: str, planned: int) -> int:
    """A running run's own number of steps; of the others, too many to read, the most that the experiment has."""
    if state != folder.RUNNING:
        return planned
    steps: int = folder.read_config(folder.run_folder(multirun, run_id))["trainer"]["steps"]
    return steps


def _left(row: Row | None, steps: int, pace: float | None) -> float | None:
    """The seconds that a run still computes, or None while no step was measured."""
    seconds = (row.step_seconds if row else None) or pace
    return None if seconds is None else max(0, steps - (row.step if row else 0)) * seconds


def _wall(work: float | None, running: Sequence[float | None]) -> float | None:
    """Wall time with as many runs at a time as now, but no less than the longest of them takes."""
    if work is None or not running:
        return None
    return max(work / len(running), *(own for own in running if own is not None), 0.0)


def _failures(entries: Mapping[str, Mapping[str, Any]], runs: Mapping[str, tuple[str, Row]]) -> list[Failure]:
    """What is not done and will not be by itself, by cause, the most frequent first."""
    found: dict[tuple[str, str | None, str], list[str]] = defaultdict(list)
    for run_id, (state, row) in runs.items():
        if state in _EXPLAINED:
            cause = row.cause or ("its process is gone" if state == folder.LOST else "no cause was recorded")
            # Numbers (addresses, sizes, steps, seeds) do not make another cause.
            found[state, row.kind, re.sub(r"0x[0-9a-f]+|\d+", "#", cause)].append(run_id)
    failures: list[Failure] = []
    for (state, kind, _), ids in found.items():
        newest = max(ids, key=lambda run_id: runs[run_id][1].finished or 0.0)
        cause = runs[newest][1].cause or ("its process is gone" if state == folder.LOST else "no cause was recorded")
        failures.append(Failure(state, kind, cause, len(ids), newest, catalog.title(entries[newest])))
    return sorted(failures, key=lambda failure: -failure.runs)


def _counted(states: Iterable[str]) -> dict[str, int]:
    counts = Counter(states)
    return {state: counts[state] for state in (folder.NEW, *folder.STATES, UNREADABLE) if counts[state]}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None when one is unknown."""
    listed: Collection[float | None] = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if len(known) == len(listed) else None

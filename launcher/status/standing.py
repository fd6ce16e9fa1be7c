"""The present standing of an experiment: counts by state, last metric, remaining time and failures.

Remaining times are estimated from measured steps: a run's own if its log has two lines, else the mean of its group,
else that of the experiment.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.run import catalog, lifecycle
from launcher.run.folder import JSON_KEYS, run_folder
from launcher.run.launch_record import jobs_of
from launcher.run.lifecycle import HOUR_S, NEW, RESUMABLE, RunState
from launcher.status.index import UNREADABLE, Index, Row
from launcher.text import clean, counted, without_numbers

# States that need a decision: these runs wait for `resume`. Cancelled ones do too, but that was a decision.
FAILURES = frozenset({RunState.FAILED, RunState.DIVERGED, UNREADABLE})
# States that the same command resumes, or that another process is working on.
UNFINISHED = frozenset({NEW, *RESUMABLE})
_EXPLAINED = FAILURES | {RunState.LOST, RunState.CANCELLED}
_MOST_CAUSES = 5


@dataclass(frozen=True)
class Failure:
    """Runs that are not done for the same reason. `example` is the id of the one that ended last, `title` its title."""

    state: str
    failure_kind: str | None
    message: str
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
class RunningRun:
    """A run that a worker executes: its last step, its number of steps, and the seconds that it still computes.

    `work_seconds` is None while no step was measured.
    """

    step: int
    steps: int
    work_seconds: float | None


@dataclass(frozen=True)
class Standing:
    """An experiment.

    `work_seconds` is what its unfinished runs still compute, added up; None while no step was measured.
    `remaining_seconds` is the wall time of that with as many runs at a time as now; None while none runs. `running` has
    the running runs by id; `jobs`, by the scheduler's id of a job, how many of its runs are in each unfinished state.
    `device_hours` is what all attempts took until now, `unfinished_device_hours` the part of those that ended without
    finishing their run. `unit` is what messages call these: hours, where no attempt held several devices.
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
    running: Mapping[str, RunningRun] = field(default_factory=dict)
    jobs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    device_hours: float = 0.0
    unfinished_device_hours: float = 0.0
    unit: str = "hours"

    @property
    def finished(self) -> bool:
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
            "failures": [
                {JSON_KEYS.get(name, name): value for name, value in vars(failure).items()} for failure in self.failures
            ],
            "jobs": {job: dict(states) for job, states in self.jobs.items()},
            "device_hours": self.device_hours,
            "unfinished_device_hours": self.unfinished_device_hours,
        }


def stand(multirun: Path, plan: Mapping[str, Any], index: Index) -> Standing:
    """The present standing of the experiment of a plan.json."""
    metric = (plan.get("analysis") or {}).get("primary", {}).get("metric")
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in plan["runs"]:
        groups[entry["group"]][entry["id"]] = None
    ids = catalog.entries(plan)
    rows = index.refresh(ids, [metric] if metric else [])
    states = {
        run_id: lifecycle.true_state(run_folder(multirun, run_id), rows[run_id].state) if run_id in rows else NEW
        for run_id in ids
    }
    steps: dict[str, int] = dict.fromkeys(ids, plan["steps"])  # of the experiment's longest run
    for run_id in (run_id for run_id in ids if states[run_id] == RunState.RUNNING):  # the others are too many to read
        steps[run_id] = catalog.planned_steps(run_folder(multirun, run_id))
    pace = _mean(row.step_seconds for row in rows.values())
    left: dict[str, float | None] = {}
    for members in groups.values():
        group_pace = _mean(rows[run_id].step_seconds for run_id in members if run_id in rows) or pace
        for run_id in members:
            if states[run_id] in UNFINISHED:
                left[run_id] = _left(rows.get(run_id), steps[run_id], group_pace)
    running = {
        run_id: RunningRun(rows[run_id].step, steps[run_id], left.get(run_id))
        for run_id in ids
        if states[run_id] == RunState.RUNNING
    }
    work = _total(left.values())
    return Standing(
        experiment=plan["experiment"],
        total=len(ids),
        steps=plan["steps"],
        states=_counted(states.values()),
        groups={
            name: Group(
                states=_counted(states[run_id] for run_id in members),
                metric=_mean(rows[run_id].metrics[metric] for run_id in members if run_id in rows) if metric else None,
                step=_mean(rows[run_id].step if run_id in rows else 0 for run_id in members) or 0.0,
                work_seconds=_total(left[run_id] for run_id in members if run_id in left),
            )
            for name, members in groups.items()
        },
        metric=metric,
        work_seconds=work,
        remaining_seconds=_wall(work, [run.work_seconds for run in running.values()]),
        running=running,
        jobs=_jobs(multirun, {run_id: (states[run_id], row.launch_id) for run_id, row in rows.items()}),
        device_hours=_device_hours(rows, running),
        unfinished_device_hours=sum(row.unfinished_seconds for row in rows.values()) / HOUR_S,
        unit="device-hours" if any(row.devices > 1 for row in rows.values()) else "hours",
        failures=_failures(ids, {run_id: (states[run_id], rows[run_id]) for run_id in ids if run_id in rows}),
    )


def causes(multirun: Path, standing: Standing) -> Iterator[str]:
    """Each cause of failures with one example, and the command that shows more."""
    for failure in standing.failures[:_MOST_CAUSES]:
        kind = failure.failure_kind
        brackets = f" ({kind})" if kind and kind != failure.state else ""
        yield f"{counted(failure.runs, 'run')} {failure.state}{brackets}: {clean(failure.message)}"
        yield f"    {catalog.command(multirun, 'logs', failure.example)}    # {clean(failure.title)}"
    if len(standing.failures) > _MOST_CAUSES:
        yield f"and {len(standing.failures) - _MOST_CAUSES} more causes; `status --json` lists all of them"


def _device_hours(rows: Mapping[str, Row], running: Collection[str]) -> float:
    """What all attempts took until now, with those that are running."""
    now = time.time()
    ended = sum(row.device_seconds for row in rows.values())
    begun = [rows[run_id] for run_id in running if rows[run_id].started is not None]
    return (ended + sum(max(0.0, now - (row.started or now)) * max(row.devices, 1) for row in begun)) / HOUR_S


def remaining_seconds(standings: Sequence[Standing]) -> float | None:
    """The remaining wall time of experiments that run together; of a single one, its own."""
    running = [run.work_seconds for standing in standings for run in standing.running.values()]
    return _wall(_total(standing.work_seconds for standing in standings), running)


def _jobs(multirun: Path, runs: Mapping[str, tuple[str, str | None]]) -> dict[str, dict[str, int]]:
    """By the scheduler's id of a job or array, how many of its runs are in each unfinished state."""
    begun = {run_id: run for run_id, run in runs.items() if run[0] in (RunState.SUBMITTED, RunState.RUNNING)}
    recorded = jobs_of(multirun, (launch_id for _, launch_id in begun.values()))
    counts: dict[str, Counter[str]] = {}
    for run_id, (state, launch_id) in begun.items():
        if job := recorded[launch_id].get(run_id):
            counts.setdefault(job.partition("_")[0], Counter())[state] += 1
    return {job: dict(states) for job, states in sorted(counts.items())}


def _left(row: Row | None, steps: int, pace: float | None) -> float | None:
    """The seconds that a run still computes, or None while no step was measured."""
    seconds = (row.step_seconds if row else None) or pace
    return None if seconds is None else max(0, steps - (row.step if row else 0)) * seconds


def _wall(work: float | None, running: Sequence[float | None]) -> float | None:
    """Wall time with as many runs at a time as now, but no less than the longest of them takes."""
    if work is None or not running:
        return None
    return max(work / len(running), *(seconds for seconds in running if seconds is not None), 0.0)


def _failures(entries: Mapping[str, Mapping[str, Any]], runs: Mapping[str, tuple[str, Row]]) -> list[Failure]:
    """The runs that will not be done without a command, by reason, the most frequent first."""
    reasons: dict[tuple[str, str | None, str], list[str]] = defaultdict(list)
    for run_id, (state, row) in runs.items():
        if state in _EXPLAINED:
            reasons[state, row.failure_kind, without_numbers(_message(state, row))].append(run_id)
    failures: list[Failure] = []
    for (state, kind, _), ids in reasons.items():
        newest = max(ids, key=lambda run_id: runs[run_id][1].finished or 0.0)
        message = _message(state, runs[newest][1])
        failures.append(Failure(state, kind, message, len(ids), newest, catalog.title(entries[newest])))
    return sorted(failures, key=lambda failure: -failure.runs)


def _message(state: str, row: Row) -> str:
    return row.message or ("its process is gone" if state == RunState.LOST else "no cause was recorded")


def _counted(states: Iterable[str]) -> dict[str, int]:
    counts = Counter(states)
    return {state: counts[state] for state in (NEW, *RunState, UNREADABLE) if counts[state]}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None if one value is unknown."""
    listed: Collection[float | None] = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if len(known) == len(listed) else None

"""The present standing of an experiment: counts by state, last metric, remaining time and failures.

Remaining times are estimated from measured steps: a run's own if its log has two lines, else the mean of its group,
else that of the experiment.

What this needs of each run folder is cached in one file: multirun/.index. A row is used only while state.json is the
file from which it was read (by modification time, size and inode), and a done run's other files are as they were (by
modification time and size); every other row is read again. The file may be deleted, torn, outdated or of another
version at any time. Two writers replace each other's file atomically, and both are right. If multirun is not writable,
the cache stays as it is, and the results are the same.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run import catalog, lifecycle, whole
from launcher.run.folder import metrics_path, planned_steps, run_folder, runs_folder, to_json
from launcher.run.launch_record import jobs_of
from launcher.run.lifecycle import HOUR_S, NEW, RESUMABLE, RunState, read_state
from launcher.text import clean, counted, without_numbers

# ---------------------------------------------------------------- the cache of rows

INDEX_FORMAT = 7
UNREADABLE = "unreadable"
_STATES = frozenset((*RunState, UNREADABLE))
_TAIL, _LONG_TAIL = 2**14, 2**18


@dataclass(frozen=True)
class Row:
    """One run as it was when `key` was read. Times are unix seconds.

    `state` is a RunState, or UNREADABLE with the reason in `message`, also of a done run whose files were changed.
    `step` is the last step of the metric log (0 without one), `step_seconds` the measured time of a step (None with
    fewer than two lines), `metrics` the last finite values by name: None where the log's last 256 KiB have none.
    `launch_id` is the token of the launch that submitted it. `device_seconds` is
    what its ended attempts took, `unfinished_seconds` the part of those that did not finish the run; `started` is when
    the present one began, on so many `devices`. `stamp` is that of its files if it has a manifest (whole.py).
    """

    key: tuple[int, int, int]
    state: str
    finished: float | None
    failure_kind: str | None
    message: str | None
    step: int
    step_seconds: float | None
    metrics: Mapping[str, float | None]
    launch_id: str | None = None
    device_seconds: float = 0.0
    unfinished_seconds: float = 0.0
    started: float | None = None
    devices: int = 0
    stamp: int = 0


_NAMES = tuple(field.name for field in fields(Row))


class Index:
    """The rows of a multirun folder. `refresh` updates the requested ones; `save` writes all of them."""

    def __init__(self, multirun: Path) -> None:
        self._multirun = multirun
        self._rows = _load(index_path(multirun))
        self._changed = False

    def refresh(self, ids: Iterable[str], metrics: Collection[str] = ()) -> dict[str, Row]:
        """The present rows of those runs that have a folder, by id, with the last values of these metrics."""
        runs = os.fspath(runs_folder(self._multirun))
        rows = {run_id: self._row(runs, run_id, metrics) for run_id in ids}
        return {run_id: row for run_id, row in rows.items() if row is not None}

    def save(self) -> None:
        """Write the file if a row has changed and the folder is writable."""
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            present = set(os.listdir(runs_folder(self._multirun)))
            kept = {run_id: row for run_id, row in self._rows.items() if run_id in present}
            rows = {run_id: [getattr(row, name) for name in _NAMES] for run_id, row in kept.items()}
            files.write_atomic(index_path(self._multirun), json.dumps({"format": INDEX_FORMAT, "runs": rows}))
            self._changed = False

    def _row(self, runs: str, run_id: str, metrics: Collection[str]) -> Row | None:
        known = self._rows.get(run_id)
        try:
            status = os.stat(f"{runs}/{run_id}/state.json")
        except FileNotFoundError:
            self._changed |= self._rows.pop(run_id, None) is not None
            return None
        except PermissionError:
            key = (0, 0, 0)  # to read it fails, too, which the row says
        else:  # before the file is read: if it is replaced in between, the next refresh reads it again
            key = (status.st_mtime_ns, status.st_size, status.st_ino)
        current = False
        if known is not None and known.key == key:
            # The log of a running run grows while its state stays the same.
            changed = known.stamp and known.stamp != whole.stamp(Path(runs, run_id))
            current = not changed and known.metrics.keys() >= {*metrics}
            if current and known.state != RunState.RUNNING:
                return known
            metrics = {*metrics, *known.metrics}
        row = _read_row(Path(runs, run_id), key, metrics)
        self._rows[run_id] = row
        self._changed |= not current
        return row


def index_path(multirun: Path) -> Path:
    return multirun / ".index"


def _load(path: Path) -> dict[str, Row]:
    """The rows of the file; none if it is absent, torn, or not of this version."""
    try:
        value = json.loads(path.read_bytes())
        if value["format"] != INDEX_FORMAT:
            return {}
        rows = {run_id: Row(tuple(key), *others) for run_id, (key, *others) in value["runs"].items()}
        return rows if all(row.state in _STATES and isinstance(row.metrics, dict) for row in rows.values()) else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _read_row(folder: Path, key: tuple[int, int, int], metrics: Collection[str]) -> Row:
    """A run's row, from its state and the end of its metric log."""
    try:
        state = read_state(folder)
    except files.BadRunFolder as error:
        # One such folder must not hide the state of thousands of others.
        return Row(key, UNREADABLE, None, None, str(error), 0, None, dict.fromkeys(metrics))
    stamp = whole.stamp(folder) if state.manifest else 0  # before the files that it covers are read
    step, step_seconds, values = _log(metrics_path(folder), metrics)
    changed = whole.problem(folder, state)
    return Row(
        key=key,
        state=UNREADABLE if changed else state.state,
        finished=state.finished,
        failure_kind=state.failure_kind,
        message=changed or state.message,
        step=step,
        step_seconds=step_seconds,
        metrics=values,
        launch_id=state.launch_id,
        device_seconds=sum(state.device_seconds.values()),
        unfinished_seconds=lifecycle.unfinished_seconds(state.device_seconds, state.attempt, state.state),
        started=state.started,
        devices=state.devices,
        stamp=stamp,
    )


def _log(path: Path, metrics: Collection[str]) -> tuple[int, float | None, dict[str, float | None]]:
    """The last step, the seconds a step takes, and the last finite value of each metric, from the log's end."""
    values: dict[str, float | None] = dict.fromkeys(sorted(metrics))
    lines = _last_lines(path, _TAIL)
    if any(not any(_key(name) in line for line in lines) for name in values):
        # The last evaluation may be many steps ago.
        lines = _last_lines(path, _LONG_TAIL)
    newest: dict[str, Any] | None = None
    missing = {name: _key(name) for name in values}
    wanted = (line for line in reversed(lines) if newest is None or any(key in line for key in missing.values()))
    for record in _records(wanted):
        newest = newest or record
        for name in [name for name in missing if math.isfinite(_number(record.get(name)))]:
            values[name] = float(record[name])
            del missing[name]
        if not missing:
            break
    if newest is None:
        return 0, None, values
    oldest = next(record for record in _records(lines) if record.get("attempt") == newest.get("attempt"))
    steps, seconds = newest["step"] - oldest["step"], _number(newest["time"]) - _number(oldest["time"])
    return newest["step"], seconds / steps if steps > 0 and seconds > 0 else None, values


def _number(value: Any) -> float:
    """As a float; NaN for what is no number, or too large for one."""
    with contextlib.suppress(OverflowError):
        return float(value) if isinstance(value, (int, float)) else math.nan
    return math.nan


def _key(name: str) -> bytes:
    """A metric's name as a line has it."""
    return json.dumps(name).encode()


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that are complete and have a step; logs of other tools may lack its time."""
    for record in files.parse_lines(lines):
        if record and isinstance(record.get("step"), int) and isinstance(record.get("time", ""), int | float | None):
            yield record


def _last_lines(path: Path, length: int) -> list[bytes]:
    """The complete lines among the file's last bytes."""
    data = files.read_from(path, -length)
    lines = data.splitlines(keepends=True)
    return lines if len(data) < length else lines[1:]


# ---------------------------------------------------------------- the standing of an experiment

# States that need a decision: these runs wait for `resume`. Cancelled ones do too, but that was a decision.
FAILURES = frozenset({RunState.FAILED, RunState.DIVERGED, UNREADABLE})
# States that the same command resumes, or that another process is working on.
UNFINISHED = frozenset({NEW, *RESUMABLE})
_EXPLAINED = FAILURES | {RunState.LOST, RunState.CANCELLED}
_MOST_CAUSES = 5
_SUBMITTED = frozenset({RunState.SUBMITTED, RunState.RUNNING})


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

    `steps` is None where only the run knows; `work_seconds` is also None while no step was measured.
    """

    step: int
    steps: int | None
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
    steps: int | None
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
            "failures": [to_json(failure) for failure in self.failures],
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
    known = {run_id: rows[run_id].state if run_id in rows else None for run_id in ids}
    states = {run_id: lifecycle.true_state(run_folder(multirun, run_id), state) for run_id, state in known.items()}
    steps: dict[str, int | None] = dict.fromkeys(ids, plan["steps"])  # of the experiment's longest run
    executed = [run_id for run_id in ids if states[run_id] == RunState.RUNNING]
    for run_id in executed:  # the others are too many to read
        steps[run_id] = planned_steps(run_folder(multirun, run_id))
    begun = {run_id: row.launch_id for run_id, row in rows.items() if states[run_id] in _SUBMITTED}
    jobs: dict[str, list[str]] = {}  # the states of the runs of each job or array
    for run_id, job in jobs_of(multirun, begun).items():
        jobs.setdefault(job.partition("_")[0], []).append(states[run_id])
    pace = _mean(row.step_seconds for row in rows.values())
    left: dict[str, float | None] = {}
    for members in groups.values():
        group_pace = _mean(rows[run_id].step_seconds for run_id in members if run_id in rows) or pace
        for run_id in members:
            if states[run_id] in UNFINISHED:
                left[run_id] = _left(rows.get(run_id), steps[run_id], group_pace)
    running = {run_id: RunningRun(rows[run_id].step, steps[run_id], left.get(run_id)) for run_id in executed}
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
        device_hours=_device_hours(rows, running),
        unfinished_device_hours=sum(row.unfinished_seconds for row in rows.values()) / HOUR_S,
        unit="device-hours" if any(row.devices > 1 for row in rows.values()) else "hours",
        failures=_failures(ids, {run_id: (states[run_id], rows[run_id]) for run_id in ids if run_id in rows}),
        jobs={job: _counted(listed) for job, listed in sorted(jobs.items())},
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
    begun = [rows[run_id] for run_id in running]
    return (ended + sum(max(0.0, now - (row.started or now)) * max(row.devices, 1) for row in begun)) / HOUR_S


def remaining_seconds(standings: Sequence[Standing]) -> float | None:
    """The remaining wall time of experiments that run together; of a single one, its own."""
    running = [run.work_seconds for standing in standings for run in standing.running.values()]
    return _wall(_total(standing.work_seconds for standing in standings), running)


def _left(row: Row | None, steps: int | None, pace: float | None) -> float | None:
    """The seconds that a run still computes, or None while no step was measured, or where its length is not known."""
    seconds = (row.step_seconds if row else None) or pace
    return None if seconds is None or steps is None else max(0, steps - (row.step if row else 0)) * seconds


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

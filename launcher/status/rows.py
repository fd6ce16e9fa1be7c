"""What `status` needs of each run folder: its state, and the end of its metric log."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run import compute, whole
from launcher.run.folder import metrics_path, read_state, run_folder

UNREADABLE = "unreadable"
_TAIL, _LONG_TAIL = 2**14, 2**18


@dataclass(frozen=True)
class Row:
    """One run. Times are unix seconds.

    `state` is a RunState, or UNREADABLE with the reason in `message`, also of a done run whose files were changed.
    `step` is the last step of the metric log (0 without one), `step_seconds` the measured time of a step (None with
    fewer than two lines), `metrics` the last finite values by name: None where the log's last 256 KiB have none.
    `launch_id` is the token of the launch that submitted it. `device_seconds` is
    what its ended attempts took, `unfinished_seconds` the part of those that did not finish the run; `started` is when
    the present one began, on so many `devices`.
    """

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


def read_rows(multirun: Path, ids: Iterable[str], metrics: Collection[str] = ()) -> dict[str, Row]:
    """Those of these runs that have a folder, by id, with the last values of these metrics."""
    rows = {run_id: _read(run_folder(multirun, run_id), metrics) for run_id in ids}
    return {run_id: row for run_id, row in rows.items() if row is not None}


def _read(folder: Path, metrics: Collection[str]) -> Row | None:
    try:
        state = read_state(folder)
    except FileNotFoundError:
        return None
    except files.BadRunFolder as error:
        # One such folder must not hide the state of thousands of others.
        return Row(UNREADABLE, None, None, str(error), 0, None, dict.fromkeys(metrics))
    step, step_seconds, values = _log(metrics_path(folder), metrics)
    changed = whole.problem(folder, state)
    return Row(
        state=UNREADABLE if changed else state.state,
        finished=state.finished,
        failure_kind=state.failure_kind,
        message=changed or state.message,
        step=step,
        step_seconds=step_seconds,
        metrics=values,
        launch_id=state.launch_id,
        device_seconds=sum(state.device_seconds.values()),
        unfinished_seconds=compute.unfinished(state.device_seconds, state.attempt, state.state),
        started=state.started,
        devices=state.devices,
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
    steps, seconds = newest["step"] - oldest["step"], newest["time"] - oldest["time"]
    return newest["step"], seconds / steps if steps > 0 and seconds > 0 else None, values


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _key(name: str) -> bytes:
    """A metric's name as a line has it."""
    return json.dumps(name).encode()


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that are complete and have a step."""
    for record in files.parse_lines(lines):
        if record and isinstance(record.get("step"), int) and isinstance(record.get("time"), (int, float)):
            yield record


def _last_lines(path: Path, length: int) -> list[bytes]:
    """The complete lines among the file's last bytes."""
    data = files.read_from(path, -length)
    lines = data.splitlines(keepends=True)
    return lines if len(data) < length else lines[1:]

"""A cache of what `status` needs of each run folder, in one file: multirun/.index.

A row is used only while state.json is the file from which it was read (by modification time, size and inode), and a
done run's other files are as they were (by modification time and size); every other row is read again. The file may be
deleted, torn, outdated or of another version at any time. Two writers replace each other's file atomically, and both
are right. If multirun is not writable, the cache stays as it is, and the results are the same.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from launcher import files
from launcher.run import lifecycle, whole
from launcher.run.folder import metrics_path, runs_folder
from launcher.run.lifecycle import RunState, read_state

FORMAT = 6
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
        self._rows = _load(path_of(multirun))
        self._changed = False

    def refresh(self, ids: Iterable[str], metrics: Collection[str] = ()) -> dict[str, Row]:
        """The present rows of those runs that have a folder, by id, with the last values of these metrics."""
        present: dict[str, Row] = {}
        runs = os.fspath(runs_folder(self._multirun))
        for run_id in ids:
            row = self._row(runs, run_id, metrics)
            if row is not None:
                present[run_id] = row
        return present

    def save(self) -> None:
        """Write the file if a row has changed and the folder is writable."""
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            present = set(os.listdir(runs_folder(self._multirun)))
            rows = {
                run_id: [getattr(row, name) for name in _NAMES]
                for run_id, row in self._rows.items()
                if run_id in present
            }
            files.write_atomic(path_of(self._multirun), json.dumps({"format": FORMAT, "runs": rows}))
            self._changed = False

    def _row(self, runs: str, run_id: str, metrics: Collection[str]) -> Row | None:
        known = self._rows.get(run_id)
        try:
            status = os.stat(f"{runs}/{run_id}/state.json")
        except FileNotFoundError:
            self._changed |= self._rows.pop(run_id, None) is not None
            return None
        # The key is taken before the file is read: if the file is replaced in between, the next refresh reads it again.
        key = (status.st_mtime_ns, status.st_size, status.st_ino)
        current = known is not None and known.key == key
        if known is not None and current:
            missing = [name for name in metrics if name not in known.metrics]
            # The log of a running run grows while its state stays the same.
            changed = known.stamp and known.stamp != whole.stamp(Path(runs, run_id))
            if not missing and not changed and known.state != RunState.RUNNING:
                return known
            metrics = {*metrics, *known.metrics}
            current = not missing and not changed
        row = _read(Path(runs, run_id), key, metrics)
        self._rows[run_id] = row
        self._changed |= not current
        return row


def path_of(multirun: Path) -> Path:
    """The file of the index."""
    return multirun / ".index"


def _load(path: Path) -> dict[str, Row]:
    """The rows of the file; none if it is absent, torn, or not of this version."""
    try:
        value = json.loads(path.read_bytes())
        if value["format"] != FORMAT:
            return {}
        rows = {run_id: Row(tuple(key), *others) for run_id, (key, *others) in value["runs"].items()}
        return rows if all(row.state in _STATES and isinstance(row.metrics, dict) for row in rows.values()) else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _read(folder: Path, key: tuple[int, int, int], metrics: Collection[str]) -> Row:
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

"""A cache of what `status` needs of each run folder, in one file: multirun/.index.

It is never the truth: a row counts only while state.json is the file it was read from (modification time, size and
inode), and every other row is read again. The file may be deleted, torn, of another version or out of date at any
moment; two writers replace each other's file whole, and each is right. Where multirun cannot be written, it stays as it
is and the answer is the same.
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
from launcher.run import folder as folders

FORMAT = 1
UNREADABLE = "unreadable"
_TAIL, _LONG_TAIL = 2**14, 2**18


@dataclass(frozen=True)
class Row:
    """One run as it stood when `key` was read. Times are unix seconds.

    `state` is one of folder.STATES, or UNREADABLE with the reason in `cause`. `step` is the last step of the
    metric log (0 without one), `step_seconds` the measured time of a step (None with fewer than two lines), `metrics`
    the last finite values by name: None where the log's last 256 KiB have none.
    """

    key: tuple[int, int, int]
    state: str
    attempt: int
    started: float | None
    finished: float | None
    job: str | None
    kind: str | None
    cause: str | None
    step: int
    step_seconds: float | None
    metrics: Mapping[str, float | None]


_NAMES = tuple(field.name for field in fields(Row))


class Index:
    """The rows of a multirun folder. `refresh` brings those that are asked for up to date; `save` keeps them."""

    def __init__(self, multirun: Path) -> None:
        self._multirun = multirun
        self._rows = _load(path_of(multirun))
        self._changed = False

    def refresh(self, ids: Iterable[str], metrics: Collection[str] = ()) -> dict[str, Row]:
        """The runs that have a folder, by id, as they stand now, with the last values of these metrics."""
        present: dict[str, Row] = {}
        runs = os.fspath(folders.runs_folder(self._multirun))
        for run_id in ids:
            row = self._row(runs, run_id, metrics)
            if row is not None:
                present[run_id] = row
        return present

    def save(self) -> None:
        """Write the file when a row has changed. A folder that cannot be written is left alone."""
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            there = set(os.listdir(folders.runs_folder(self._multirun)))
            rows = {run_id: _plain(row) for run_id, row in self._rows.items() if run_id in there}
            files.write_atomic(path_of(self._multirun), json.dumps({"format": FORMAT, "runs": rows}))
            self._changed = False

    def _row(self, runs: str, run_id: str, metrics: Collection[str]) -> Row | None:
        known = self._rows.get(run_id)
        try:
            found = os.stat(f"{runs}/{run_id}/state.json")
        except FileNotFoundError:
            self._changed |= self._rows.pop(run_id, None) is not None
            return None
        # Looked at before it is read: who replaces the file in between makes a row that the next look reads again.
        key = (found.st_mtime_ns, found.st_size, found.st_ino)
        current = known is not None and known.key == key
        if known is not None and current:
            missing = [name for name in metrics if name not in known.metrics]
            # A running run's log grows under an unchanged state.
            if not missing and known.state != folders.RUNNING:
                return known
            metrics = {*metrics, *known.metrics}
            current = not missing
        row = _read(Path(runs, run_id), key, metrics)
        self._rows[run_id] = row
        self._changed |= not current
        return row


def path_of(multirun: Path) -> Path:
    """Where the index lies."""
    return multirun / ".index"


def _load(path: Path) -> dict[str, Row]:
    """The rows of the file; none where it is absent, torn, or not of this version."""
    try:
        value = json.loads(path.read_bytes())
        if value["format"] != FORMAT:
            return {}
        return {run_id: _checked(row) for run_id, row in value["runs"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _plain(row: Row) -> list[Any]:
    return [getattr(row, name) for name in _NAMES]


def _checked(values: list[Any]) -> Row:
    key, *others = values
    row = Row(tuple(key), *others)
    if row.state not in (*folders.STATES, UNREADABLE) or not isinstance(row.metrics, dict):
        raise ValueError("not a row")
    return row


def _read(folder: Path, key: tuple[int, int, int], metrics: Collection[str]) -> Row:
    """A run's row, from its state and the end of its metric log."""
    try:
        state = folders.read_state(folder)
    except files.BadRunFolder as error:
        # One such folder must not hide how thousands of others stand.
        return Row(key, UNREADABLE, 0, None, None, None, None, str(error), 0, None, dict.fromkeys(metrics))
    step, step_seconds, values = _log(folders.metrics_path(folder), metrics)
    return Row(
        key=key,
        state=state.state,
        attempt=state.attempt,
        started=state.started,
        finished=state.finished,
        job=state.job,
        kind=state.kind,
        cause=state.cause,
        step=step,
        step_seconds=step_seconds,
        metrics=values,
    )


def _log(path: Path, metrics: Collection[str]) -> tuple[int, float | None, dict[str, float | None]]:
    """The last step, the seconds a step takes, and the last finite value of each metric, from the log's end."""
    values: dict[str, float | None] = dict.fromkeys(sorted(metrics))
    lines = _tail(path, _TAIL)
    if any(not any(_key(name) in line for line in lines) for name in values):
        # An evaluation may lie many steps back.
        lines = _tail(path, _LONG_TAIL)
    newest = next(_records(reversed(lines)), None)
    if newest is None:
        return 0, None, values
    for name in values:
        for record in _records(line for line in reversed(lines) if _key(name) in line):
            value = record.get(name)
            if isinstance(value, (int, float)) and math.isfinite(value):
                values[name] = float(value)
                break
    oldest = next(record for record in _records(lines) if record.get("attempt") == newest.get("attempt"))
    steps, seconds = newest["step"] - oldest["step"], newest["time"] - oldest["time"]
    return newest["step"], seconds / steps if steps > 0 and seconds > 0 else None, values


def _key(name: str) -> bytes:
    """How a metric's name stands in a line."""
    return json.dumps(name).encode()


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The complete lines that are a step's."""
    for record in files.parse_lines(lines):
        if record and isinstance(record.get("step"), int) and isinstance(record.get("time"), (int, float)):
            yield record


def _tail(path: Path, length: int) -> list[bytes]:
    """The whole lines among the file's last bytes."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - length))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return lines if size <= length else lines[1:]

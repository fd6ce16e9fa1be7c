"""Trackio's projects: PROJECT.db, a SQLite file (https://github.com/gradio-app/trackio, trackio/sqlite_storage.py)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from analysis.sources.log import BadImport, Log
from analysis.sources.notation import whole
from analysis.sources.source import LoggedRun, below, leaves, source
from analysis.spec.validation import KEY_ALONE, Objection

_FIX = "copy it again, with the file PROJECT.db-wal if there is one, or recover it with sqlite3's .recover"
_MAGIC = b"SQLite format 3\0"


@source
class TrackioFiles:
    """A run is PROJECT/NAME, and its id where another has its name. Trackio does not record how a run ended."""

    kind, files, beats = "Trackio", (".db",), ("verl's console", "CSV")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        return {path: path.stem for path in below(place, "*.db") if {"metrics", "configs"} <= tables(path)}

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        for path, project in places.items():
            columns = [name for _, name, *_ in query(path, "PRAGMA table_info(metrics)")]
            key = "run_id" if "run_id" in columns else "run_name"  # early versions have no id
            every = f"SELECT {key}, run_name FROM metrics UNION SELECT {key}, run_name FROM configs ORDER BY 1"
            called = dict(query(path, every))
            configs = dict(query(path, f"SELECT {key}, config FROM configs"))
            for run_id, run_name in called.items():
                log = Log(f"{path}: run {run_name}")
                rows = query(path, f"SELECT id, step, metrics FROM metrics WHERE {key} = ? ORDER BY id", run_id)
                for row, at, metrics in rows:
                    if (of_run := whole(at)) is None or of_run < 0:
                        log.unused["the step is not a whole number, 0 or more"] += 1
                    else:
                        log.add(of_run, leaves(_object(path, metrics)), f"row {row}")
                log.resolve(step)
                config, alone = _object(path, configs.get(run_id, "{}")), [*called.values()].count(run_name) == 1
                labels = {"trackio.name": run_name, "trackio.group": config.get("_Group") or ""}
                name = f"{project}/{run_name}" if alone else f"{project}/{run_name}/{run_id}"
                yield LoggedRun(self.kind, name, config, log, labels, key=f"{project}/{run_id}")


def tables(path: Path) -> set[str]:
    """The tables of a SQLite file; none for another file. Raises BadImport for a damaged one."""
    with path.open("rb") as file:
        known = file.read(len(_MAGIC)) == _MAGIC
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master")} if known else set()


def query(path: Path, sql: str, *values: object) -> Iterator[tuple[Any, ...]]:
    """The rows of a query to a SQLite file, which is not changed. Raises BadImport for a damaged one."""
    # What the program has not moved into the file yet is in another, beside which SQLite may have to write.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as database:
            yield from database.execute(sql, values)
    except sqlite3.DatabaseError as error:
        raise BadImport(Objection(str(path), KEY_ALONE, f"SQLite cannot read it ({error})", _FIX)) from error


def _object(path: Path, text: str) -> dict[str, Any]:
    """A JSON object of a file. Raises BadImport for another text, as a damaged file has."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadImport(Objection(str(path), KEY_ALONE, f"no JSON object, but {text[:40]!r}", _FIX))
    return value

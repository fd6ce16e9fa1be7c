"""MLflow's runs: folders mlruns/EXPERIMENT/RUN, or the SQLite file that MLflow 3 writes (mlflow.db).

A run's folder has meta.yaml, and a file for each metric, parameter and tag. A line of a metric's file is
`MILLISECONDS VALUE STEP`; without STEP, it is of step 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.sources.formats.event_files import Logged, as_log
from analysis.sources.formats.trackio_files import query, tables
from analysis.sources.log import BadImport
from analysis.sources.naming import level_of
from analysis.sources.source import LoggedRun, below, names, pass_over, source
from analysis.spec.validation import KEY_ALONE, Diagnostics
from launcher.files import load_yaml

_META = "meta.yaml"
_STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}  # meta.yaml; a database has words
_RUNS = """SELECT run_uuid, status, experiments.name FROM runs JOIN experiments USING (experiment_id)
           WHERE runs.lifecycle_stage = 'active' ORDER BY run_uuid"""
# MLflow stores an infinite value as the largest float64, of which the double is infinite again.
_ROWS = """SELECT timestamp, key, step, CASE WHEN is_nan THEN 'nan' WHEN abs(value) < 1.7976931348623157e308 THEN value
           ELSE 2 * value END FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid"""
_TEXTS = ("params", "tags")  # folders of a run, and tables of a database


@source
class MlflowFiles:
    """A run's id is its key, its parameters are its configuration, its tags its labels. Deleted runs are left out, and
    those without a metric in which others are nested."""

    kind, files, beats = "MLflow", (".db",), ("verl's console", "CSV")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        """See Source.found. A database is one place, however many runs it has."""
        found = {path: path.stem for path in below(place, "*.db") if {"runs", "params", "metrics"} <= tables(path)}
        metas = [(meta.parent, _yaml(meta)) for meta in below(place, _META) if meta.name == _META]
        runs = [path for path, meta in metas if "run_id" in meta and meta.get("lifecycle_stage") != "deleted"]
        return found | names(place, runs)

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        problems, parents, empty = Diagnostics(), set[str](), dict[Path, LoggedRun]()
        for path, name in places.items():
            for title, run_id, status, experiment, rows, params, tags in _runs(path, name, problems):
                logged, last = Logged(), 0
                for time, metric, at, value in rows:
                    if value is None:  # the last line of a file, which a crash cut off
                        logged.unused["incomplete last line"] += 1
                        continue
                    logged.part, last = logged.part + (at < last), at
                    logged.add(metric, at, float(value), time / 1000)
                config = {key: level_of(value) for key, value in params.items()}
                why = None if status == "FINISHED" else f"its status is {status}"
                labels, commit = {**tags, "mlflow.experiment": experiment}, tags.get("mlflow.source.git.commit", "")
                log = as_log(path, logged, step)
                run = LoggedRun(self.kind, title, config, log, labels, why, key=run_id, commit=commit, texts=params)
                parents.add(tags.get("mlflow.parentRunId", ""))
                if log:
                    yield run
                else:
                    empty[path if path.is_dir() else path / run_id] = run
        for path, run in empty.items():
            if run.key in parents:
                pass_over(path, "it has no metric, and other runs are nested in it")
            else:
                yield run
        problems.raise_any(BadImport)


def _runs(path: Path, name: str, problems: Diagnostics) -> Iterator[tuple[Any, ...]]:
    """Each run of a place: its name, id, status, experiment, rows, parameters and tags. Rows are (milliseconds, metric,
    step, value) in the order of their time."""
    if path.is_dir():
        meta, rows = _yaml(path / _META), sorted(_lines(path / "metrics", problems), key=lambda row: row[0])
        of_run = [_texts(path / folder) for folder in _TEXTS]
        yield name, path.name, _STATUS.get(meta.get("status", 0)), _yaml(path.parent / _META).get("name"), rows, *of_run
        return
    for run_id, status, experiment in query(path, _RUNS):
        of_run = [dict(query(path, f"SELECT key, value FROM {table} WHERE run_uuid = ?", run_id)) for table in _TEXTS]
        yield f"{name}/{run_id}", run_id, status, experiment, query(path, _ROWS, run_id), *of_run


def _lines(folder: Path, problems: Diagnostics) -> Iterator[tuple[int, str, int, float | None]]:
    """The rows of all metrics of a run; without a value where a crash cut a line off. Other bad lines are problems."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            try:
                time, value, *step = line.split()
                complete = line.endswith(b"\n")
                yield int(time), path.relative_to(folder).as_posix(), int(*step), float(value) if complete else None
            except (ValueError, TypeError):
                if line.endswith(b"\n"):
                    rule = f"{line[:80]!r} is not MILLISECONDS VALUE STEP"
                    problems.add(f"line {number}", KEY_ALONE, rule, "mend or remove this line", path)
                else:
                    yield 0, "", 0, None


def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty where the file has none or cannot be read."""
    try:
        content = load_yaml(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _texts(folder: Path) -> dict[str, str]:
    """The content of each file below a folder, by its path there: MLflow's names may have slashes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8", errors="replace") for path in files}

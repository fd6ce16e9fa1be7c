"""CSV files with a row for each step: progress.csv and monitor.csv of RL libraries, and published tables of results.

A file is a run. If it has the columns that --group, --seed or --factor name, each combination of their values is one.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.importing.found import BadImport, Found, configuration_in, stage
from analysis.importing.naming import level_of

KIND = "CSV"
SUFFIXES = (".csv", ".tsv", ".txt")
#: The columns that count steps in files of known tools; the first that a file has is taken.
STEPS = (
    "step", "global_step", "steps", "timestep", "timesteps",
    "time/total_timesteps", "total_timesteps", "misc/total_timesteps",  # Stable-Baselines3, Baselines
    "timesteps_total", "num_env_steps_sampled_lifetime", "training_iteration",  # RLlib
    "TotalEnvInteracts", "TotalEnvSteps", "Step",  # Spinning Up, garage, TensorBoard's and W&B's downloads
)  # fmt: skip
_PATTERNS = ("*.csv", "*.tsv", "progress.txt")
_MONITOR = ("r", "l", "t")  # gymnasium's and Stable-Baselines3's monitor: reward, length and end of each episode
_OF_FOLDER = ("progress", "monitor")  # names of files that belong to the run of their folder
_LISTED = 12


_Row = tuple[int, dict[str, float]]  # the step, and the numbers of its columns


@dataclass(frozen=True)
class _Table:
    """A file: its header, and its rows as (number of the line, cells)."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def is_monitor(self) -> bool:
        return self.header[:3] == _MONITOR


def find(source: Path, step: str | None) -> list[tuple[str, Path]]:
    """The files below a folder that have a column of steps, or the file itself, and the names of their runs: the path
    from the last part of `source`, for progress.csv and monitor.csv that of their folder.

    Raises BadImport for a file without such a column that is named itself.
    """
    root = source.resolve()
    if root.is_file():
        if _step_in(_header(root), step) is None:
            raise BadImport(f"SOURCE {source}: {_no_step(_header(root), step)}")
        return [(_name(root, root.parent), root)]
    files = sorted({path for pattern in _PATTERNS for path in root.rglob(pattern) if path.is_file()})
    return [(_name(path, root), path) for path in files if _step_in(_header(path), step) is not None]


def read(files: Sequence[tuple[str, Path]], step: str | None, keys: Collection[str], stage_in: Path) -> Iterator[Found]:
    """The runs of these files. keys: columns that say which run a row belongs to, if a file has them. The progress.csv
    and the monitors of one folder are one run. A blank in the name of a column becomes an underscore, and cells that
    are no numbers are left out.

    Raises BadImport with every row that cannot be read, and for a configuration file that is not YAML.
    """
    problems: list[str] = []
    by_name: dict[str, list[Path]] = {}
    for name, path in files:
        by_name.setdefault(name, []).append(path)
    runs: list[tuple[str, Path, dict[str, Any], list[dict[str, Any]]]] = []
    for name, paths in by_name.items():
        tables = [_table(path, problems) for path in paths]
        episodes = _episodes([table for table in tables if table.is_monitor], problems)
        own = [(table, *run) for table in tables if not table.is_monitor for run in _runs(table, step, keys, problems)]
        if len(own) == 1 and not own[0][1] and episodes:  # the progress and the monitors of one run
            every = sorted([*own[0][2], *episodes], key=_step)
            runs.append((name, paths[0], {}, _merged(every)))
            continue
        if episodes:
            runs.append((name, paths[0], {}, _merged(episodes)))
        for table, labels, of_run in own:
            whole = "/".join([name, *map(str, labels.values())])
            runs.append((whole, table.path, labels, _merged(of_run)))
    if problems:
        more = [f"and {len(problems) - _LISTED} more lines"] if len(problems) > _LISTED else []
        raise BadImport("\n".join([*problems[:_LISTED], *more]))
    together = Counter(path.parent for _, path, labels, _ in runs if not labels)
    for number, (name, path, labels, rows) in enumerate(runs):
        if not rows:
            continue
        beside = configuration_in([path.parent]) if together[path.parent] == 1 else {}
        config = {**beside, **labels}
        staged = stage(stage_in / f"csv-{number}", rows, ())
        yield Found.in_files(KIND, name, config, staged, labels, attempts=rows[-1]["attempt"])


def _name(path: Path, root: Path) -> str:
    alone = path.stem in _OF_FOLDER or path.stem.endswith(".monitor")
    whole = path.parent if alone else path.with_suffix("")
    return str(whole.relative_to(root.parent))


def _header(path: Path) -> tuple[str, ...]:
    """The names of the columns; empty for a file that is no text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = next((line for line in file if not line.startswith("#")), "")
    except UnicodeDecodeError:
        return ()
    return _cells(line)


def _cells(line: str) -> tuple[str, ...]:
    rows = list(csv.reader([line], delimiter=_delimiter(line)))
    return tuple(cell.strip() for cell in rows[0]) if rows else ()


def _delimiter(header: str) -> str:
    return "\t" if "\t" in header else ";" if ";" in header and "," not in header else ","


def _step_in(header: Sequence[str], step: str | None) -> str | None:
    """The column of steps; "" for a monitor, whose steps are the sums of the lengths."""
    if step is not None:
        return step if step in header else None
    return next((one for one in STEPS if one in header), "" if tuple(header[:3]) == _MONITOR else None)


def _no_step(header: Sequence[str], step: str | None) -> str:
    more = f" and {len(header) - _LISTED} more" if len(header) > _LISTED else ""
    which = f"--step {step} is no column" if step is not None else "no column is known to count steps"
    return f"{which}; the columns are {', '.join(header[:_LISTED]) or 'none'}{more}; fix: give --step COLUMN"


def _table(path: Path, problems: list[str]) -> _Table:
    """The rows of a file. A last row without an end that has too few cells, which a crash leaves, is left out."""
    text = path.read_text(encoding="utf-8-sig")
    lines = text.splitlines()
    first = next((place for place, line in enumerate(lines) if not line.startswith("#")), 0)
    header = _cells(lines[first])
    reader = csv.reader(io.StringIO("\n".join(lines[first:])), delimiter=_delimiter(lines[first]))
    rows = [(first + reader.line_num, tuple(row)) for row in reader][1:]
    rows = [(line, row) for line, row in rows if any(cell.strip() for cell in row)]
    if rows and len(rows[-1][1]) < len(header) and not text.endswith("\n"):
        rows.pop()
    problems += [
        f"{path}: line {line}: has {len(row)} cells, the first line has {len(header)}; fix: mend or remove this line"
        for line, row in rows
        if len(row) > len(header)
    ]
    return _Table(path, header, tuple(rows))


def _runs(
    table: _Table, step: str | None, keys: Collection[str], problems: list[str]
) -> Iterator[tuple[dict[str, Any], list[_Row]]]:
    """The runs of a file: what its columns say of each, and its rows. Rows of a file that is one run are in the order
    of time; others may be in any order, and are put in that of their steps."""
    column = _step_in(table.header, step) or ""
    own = [key for key in dict.fromkeys(keys) if key in table.header]
    by_run: dict[tuple[Any, ...], list[_Row]] = {}
    for line, cells in table.rows:
        fields = dict(zip(table.header, (cell.strip() for cell in cells), strict=False))
        number = _number(fields.get(column, ""))
        if number is None or not number.is_integer() or number < 0:
            problems.append(
                f"{table.path}: line {line}: {column} = {fields.get(column, '')!r}: must be a whole number, 0 or more; "
                "fix: mend or remove this line, or name another column by --step"
            )
            continue
        values = {
            key.replace(" ", "_"): value
            for key, cell in fields.items()
            if key and key != column and key not in own and (value := _number(cell)) is not None
        }
        by_run.setdefault(tuple(level_of(fields.get(key, "")) for key in own), []).append((int(number), values))
    for levels, rows in by_run.items():
        yield dict(zip(own, levels, strict=True)), sorted(rows, key=_step) if own else rows


def _step(row: _Row) -> int:
    return row[0]


def _merged(rows: Sequence[_Row]) -> list[dict[str, Any]]:
    """Rows as of metrics.jsonl; those of one step, one after the other, are one. Where the steps go back, the run began
    again, and what it writes then supersedes the earlier rows."""
    merged: list[dict[str, Any]] = []
    attempt = 1
    for step, values in rows:
        if merged and step < merged[-1]["step"]:
            attempt += 1
        if not merged or merged[-1]["step"] != step:
            merged.append({"step": step, "attempt": attempt, "time": None})
        merged[-1] |= values
    return merged


def _episodes(tables: Sequence[_Table], problems: list[str]) -> list[_Row]:
    """The episodes of all environments of a run, by the time of their end; their steps are added up."""
    ended: list[tuple[float, float, float]] = []
    for table in tables:
        for line, cells in table.rows:
            numbers = [_number(cell) for cell in cells[:3]]
            if len(numbers) < 3 or None in numbers:
                problems.append(f"{table.path}: line {line}: r, l and t must be numbers; fix: remove this line")
                continue
            reward, length, time = (number or 0.0 for number in numbers)
            ended.append((time, reward, length))
    rows, step = [], 0
    for _, reward, length in sorted(ended):
        step += int(length)
        rows.append((step, {"r": reward, "l": length}))
    return rows


def _number(cell: str) -> float | None:
    """A cell as a number; None for an empty one and for other text."""
    try:
        return float(cell) if cell.strip() else None
    except ValueError:
        return None

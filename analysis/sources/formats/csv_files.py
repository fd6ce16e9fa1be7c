"""CSV files with a row for each step: progress.csv and monitor.csv of RL libraries, and published tables of results.

A file is a run. If it has the columns that --group, --seed or --factor name, each combination of their values is one.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from analysis.sources.log import ASKED, BadImport, Log, called, is_kept, written
from analysis.sources.naming import SEED, level_of
from analysis.sources.notation import Column, settle
from analysis.sources.source import LoggedRun, as_one, below, configuration_in, names, opened, pass_over, source
from analysis.spec.cell import grouped
from analysis.spec.validation import KEY_ALONE, Diagnostics, Objection, some
from launcher.errors import missing

#: The columns that count steps in files of known tools; the first that a file has is taken.
STEPS = (
    "step", "global_step", "steps", "timestep", "timesteps",
    "time/total_timesteps", "total_timesteps", "misc/total_timesteps",  # Stable-Baselines3, Baselines
    "timesteps_total", "num_env_steps_sampled_lifetime", "training_iteration",  # RLlib
    "TotalEnvInteracts", "TotalEnvSteps", "Step", "_step",  # Spinning Up, garage, TensorBoard's and W&B's downloads
)  # fmt: skip
_MONITOR = ("r", "l", "t")  # gymnasium's and Stable-Baselines3's monitor: reward, length and end of each episode
_OF_FOLDER = ("progress", "monitor")  # names of files that belong to the run of their folder
_LISTED = 12
_PARQUET = ".parquet"
#: A chart that W&B exports has the columns RUN - METRIC, RUN - METRIC__MIN and RUN - METRIC__MAX.
_RUN, _CHARTED = "run", " - "
#: A long table has a column of metrics' names, and one of their values.
_NAME, _VALUE = (re.compile(words, re.IGNORECASE) for words in ("metric|measure|variable|key|tag|statistic", "values?"))
_GROUP = re.compile("algo|method|group|agent|policy|model|variant", re.IGNORECASE)
_DIGITS = re.compile(r"\s*[\d.]+\s*")
_ATTEMPT = re.compile("attempt|restart|resum|(episode|epoch|iteration)$", re.IGNORECASE)  # columns of parts of one run
csv.field_size_limit(1 << 24)  # characters of a cell, which may be a prompt; by default 2^17
_SAMPLE = 5000  # rows checked of those that would overwrite each other
_Row = tuple[int, dict[str, str]]  # the number of the line, and the cells by their columns
_Run = tuple[str, ...]  # the cells of the columns that tell the runs of a file apart


@dataclass(frozen=True)
class _Table:
    """A file: its header, the column of steps ("" for a monitor) and those that tell its runs apart, and the notation
    of the others that are read."""

    path: Path
    header: tuple[str, ...]
    step: str
    run_columns: tuple[str, ...]
    columns: Mapping[str, Column]
    unused: Counter[str]
    charted: Mapping[str, tuple[str, str]]  # the run and the metric of each column, where columns are runs
    named: tuple[str, str] | None  # the columns of a metric's name and of its value, in a long table
    names: Collection[str]  # of all metrics

    @property
    def is_monitor(self) -> bool:
        return self.header[:3] == _MONITOR and not self.step

    def rows(self, problems: Diagnostics | None = None, every: bool = False) -> Iterator[_Row]:
        """The rows; where columns are runs, one for each that has a cell; of a long table, with the metric as a column.
        problems: those of the file are added; every: with the columns that are not read, too."""
        unused, problems = (Counter[str](), Diagnostics()) if problems is None else (self.unused, problems)
        names = {*self.columns, *self.run_columns, *(self.named or ()), *(self.header if every else ())}
        names |= {name for name, (_, metric) in self.charted.items() if metric in self.columns}
        appended = not (self.charted or self.named or self.run_columns)  # else the file is what somebody exported
        for line, cells in _rows(self.path, self.header, names, unused, problems, appended):
            if self.named and (metric := cells.get(self.named[0], "")) in self.names:
                cells[metric] = cells.get(self.named[1], "")
            if not self.charted:
                yield line, cells
                continue
            runs: dict[str, dict[str, str]] = {}
            for name, (run, metric) in self.charted.items():
                if cell := cells.get(name):
                    runs.setdefault(run, {self.step: cells[self.step], _RUN: run})[metric] = cell
            yield from ((line, row) for row in runs.values())

    def run(self, cells: Mapping[str, str]) -> _Run:
        return tuple(cells.get(key, "") for key in self.run_columns)

    def at(self, cells: Mapping[str, str]) -> int:
        """The step of a row. Raises ValueError if it is not a whole number, 0 or more."""
        step = self.columns[self.step].number(cells.get(self.step, ""))
        if step is None or not step.is_integer() or step < 0:
            raise ValueError
        return int(step)


@source
class CsvFiles:
    """The progress.csv and the monitors of one folder are one run."""

    kind = "CSV"
    files: Collection[str] = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz")
    beats: Collection[str] = ()
    patterns: Collection[str] = ("*.csv", "*.tsv", "progress.txt", "*.csv.gz", "*.tsv.gz")

    def found(self, place: Path, step: str | None) -> dict[Path, str]:
        """See Source.found: the files that have a column of steps or no whole line."""
        root = place.resolve()
        tables = set[Path]()
        which = "no column is known to count steps" if step is None else f"--step {step} is no column"
        for path in below(place, *self.patterns):
            if _is_table(path, step):
                tables.add(path)
                continue
            rule = f"{which}; the columns are {some(_header(path), _LISTED)}"
            if path == root:
                raise BadImport(Objection("SOURCE", place, rule, "give --step COLUMN"))
            pass_over(path, rule)
        named = names(place, tables, ending=True)
        return {path: str(Path(name).parent) if _of_folder(Path(name).name) else name for path, name in named.items()}

    def read(self, places: Mapping[Path, str], step: str | None, keys: Collection[str]) -> Iterator[LoggedRun]:
        """See Source.read. Rows that would overwrite each other are refused."""
        problems = Diagnostics()
        by_name = grouped((name, path) for path, name in places.items())
        # a folder's configuration says nothing where the folder holds the files of several runs
        together = Counter(paths[0].parent for paths in by_name.values() if set(keys).isdisjoint(_header(paths[0])))
        for name, paths in by_name.items():
            for path, texts, log in _logs(paths, step, keys, problems):
                beside = configuration_in([path.parent], keys) if together[path.parent] == 1 else {}
                levels = {key: level_of(text) for key, text in texts.items()}
                title = "/".join([name, *texts.values()])
                yield LoggedRun(self.kind, title, {**beside, **levels}, log, levels, texts=texts)
        as_one(problems).raise_any(BadImport)


def _of_folder(stem: str) -> bool:
    """Whether a file belongs to the run of its folder, by its name without the ending."""
    return stem in _OF_FOLDER or stem.endswith(".monitor")


def _is_table(path: Path, step: str | None) -> bool:
    """Whether a file has a column of steps, or no whole line but comments: its run ended before it wrote one."""
    if path.suffix == _PARQUET:
        return _step_in(path, _header(path), step) is not None
    with opened(path) as file:
        empty = all(line.startswith(b"#") or not line.endswith(b"\n") for line in file)
    return empty or _step_in(path, _header(path), step) is not None


def _header(path: Path) -> tuple[str, ...]:
    """The names of the columns; empty for an empty file."""
    if path.suffix == _PARQUET:
        return tuple(_parquet(path).schema_arrow.names)
    rows = list(csv.reader([line := _first_line(path)], delimiter=_delimiter(line)))
    return tuple(cell.strip() for cell in rows[0]) if rows else ()


def _first_line(path: Path) -> str:
    with _text(path) as file:
        return next((line for line in file if not line.startswith("#")), "")


def _text(path: Path) -> TextIO:
    return io.TextIOWrapper(opened(path), encoding="utf-8-sig", errors="replace", newline="")


def _delimiter(header: str) -> str:
    return "\t" if "\t" in header else ";" if ";" in header and "," not in header else ","


def _step_in(path: Path, header: Sequence[str], step: str | None) -> str | None:
    """The column of steps, the first known one with a cell; "" for a monitor, which has the lengths of episodes."""
    if step is not None:
        return called(step, header)
    if not (known := [name for name in STEPS if name in header]):
        return "" if tuple(header[:3]) == _MONITOR else None
    rows = ((name, _rows(path, header, [name], Counter(), Diagnostics())) for name in known[:-1])
    return next((name for name, of in rows if any(cells.get(name) for _, cells in of)), known[-1])


def _rows(
    path: Path,
    header: Sequence[str],
    names: Collection[str],
    unused: Counter[str],
    problems: Diagnostics,
    appended: bool = False,
) -> Iterator[_Row]:
    """The rows of a file, in the columns of these names, without headers that come again. A last row without an end is
    not used if it has too few cells, or follows others in a file that was appended to: its last cell may be cut off."""
    if path.suffix == _PARQUET:
        batches = _parquet(path).iter_batches(columns=[name for name in header if name in names])
        for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
            yield number, {name: "" if cell is None else str(cell) for name, cell in row.items()}
        return
    if not header:
        return
    first, places = math.inf, [(name, place) for place, name in enumerate(header) if name in names]
    lines: list[str] = []  # those of a row

    def kept(file: TextIO) -> Iterator[str]:
        for line in file:
            lines.append(line)
            yield line

    with _text(path) as file:
        comments, line = next((place, line) for place, line in enumerate(file) if not line.startswith("#"))
        reader = csv.reader(kept(file), delimiter=(mark := _delimiter(line)))
        for row in _readable(reader, path, problems):
            number, ended = comments + 1 + reader.line_num, lines[-1].endswith("\n")
            cells = [line.split(mark) for line in lines[1:]]
            within = [row for row in cells if len(row) == len(header) and any(map(_DIGITS.fullmatch, row))]
            if within and "".join(lines).count('"') % 2:  # the text does not end
                rule = f"a quote opens here and none closes it, so it swallows {len(within)} or more rows"
                problems.add(f"line {number - len(lines) + 1}", KEY_ALONE, rule, "close the quote", path)
            lines.clear()
            while len(row) > len(header) and not row[-1].strip():
                row.pop()
            if not any(map(str.strip, row)):
                continue
            if not ended and (len(row) < len(header) or (appended and first < number)):
                unused["incomplete last line" if len(row) < len(header) else "last line without an end"] += 1
            elif row[0].strip() == header[0] and [cell.strip() for cell in row] == [*header]:
                unused["header again"] += 1
            elif len(row) > len(header):
                rule = f"has {len(row)} cells, the first line has {len(header)}"
                problems.add(f"line {number}", KEY_ALONE, rule, "mend or remove this line", path)
            else:
                first = min(first, number)
                yield number, {name: row[place].strip() for name, place in places if place < len(row)}


def _readable(reader: Any, path: Path, problems: Diagnostics) -> Iterator[list[str]]:
    """The rows until one that cannot be read, which is a problem."""
    try:
        yield from reader
    except csv.Error as error:
        fix = "close the quote, if one is open, or leave out the column of such texts"
        problems.add(f"line {reader.line_num}", KEY_ALONE, f"cannot be read: {error}", fix, path)


def _parquet(path: Path) -> Any:
    if absent := missing("pyarrow"):
        raise BadImport(Objection(str(path), KEY_ALONE, *absent))
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        why = f"not a whole Parquet file ({' '.join(str(error).split())})"
        raise BadImport(Objection(str(path), KEY_ALONE, why, "write it again, or move it away")) from error


def _table(path: Path, step: str | None, keys: Collection[str], problems: Diagnostics) -> _Table:
    header = _header(path)
    twice = sorted(name for name, count in Counter(written(name) for name in header).items() if name and count > 1)
    if twice:
        problems.add(twice[0], KEY_ALONE, "two columns have this name", "rename or remove one of them", path)
    run_columns = tuple(key for key in dict.fromkeys(keys) if key in header)
    of_steps, charted = _step_in(path, header, step) or "", dict[str, tuple[str, str]]()
    others = [name for name in header if name != of_steps]
    if of_steps and others and all(_CHARTED in name for name in others):
        charted = {name: (run, metric) for name in others for run, _, metric in [name.rpartition(_CHARTED)]}
    elif of_steps and others[1:] and all((seed := SEED.search(name)) and seed.end() == len(name) for name in others):
        charted = {name: (name, path.stem) for name in others}
    run_columns = (_RUN,) if charted else run_columns
    names = [*dict.fromkeys(metric for _, metric in charted.values())] if charted else others
    named, value = (next(filter(word.fullmatch, others), "") for word in (_NAME, _VALUE))
    long = (named, value) if named and value and named not in run_columns else None
    if long:
        levels = {cells.get(named, "") for _, cells in _rows(path, header, long, Counter(), Diagnostics())}
        names = sorted(levels - {*header})
    names = [name for name in names if name and name not in run_columns]
    kept = {name for name in names if not of_steps or is_kept(written(name))}
    kept = kept or {*names} if charted else kept  # which say the runs
    for read in (kept, names):
        columns = {name: Column(name) for name in (of_steps, *names) if name and (name == of_steps or name in read)}
        table = _Table(path, header, of_steps, run_columns, columns, Counter(), charted, long, names)
        of_file = Diagnostics()
        for line, cells in table.rows(of_file):
            for name, column in columns.items():
                column.see(line, cells.get(name, ""))
        if not any(columns[name].is_open for name in kept):  # else other columns may say the decimal mark
            break
    problems += of_file
    settle(columns, [table.step], "," if path.suffix == _PARQUET else _delimiter(_first_line(path)))
    return table


def _logs(
    paths: Sequence[Path], step: str | None, keys: Collection[str], problems: Diagnostics
) -> list[tuple[Path, dict[str, str], Log]]:
    """The runs of the files of one name, each with what its columns say of it."""
    tables = [_table(path, step, keys, problems) for path in paths]
    runs = [(table, run, log) for table in tables if not table.is_monitor for run, log in _runs(table, problems)]
    episodes = _episodes([table for table in tables if table.is_monitor], problems)
    if problems:
        return []
    if episodes or not runs:
        if len(runs) != 1 or runs[0][1]:
            runs.insert(0, (tables[0], (), Log(tables[0].path)))
        for at, values in episodes:  # the progress and the monitors of one run
            runs[0][2].add(at, values)
    for table in tables:
        of_table = {run: log for other, run, log in runs if other is table}
        _resolve(table, of_table, ordered=not (table.run_columns or episodes or table.named))
    return [(table.path, dict(zip(table.run_columns, run, strict=False)), log) for table, run, log in runs]


def _runs(table: _Table, problems: Diagnostics) -> list[tuple[_Run, Log]]:
    """The runs of a file. Rows of a file that is one run are in the order of time; others may be in any order."""
    read = {name: written(name) for name, column in table.columns.items() if name != table.step and not column.problem}
    logs: dict[_Run, Log] = {}
    for line, cells in table.rows():
        try:
            step = table.at(cells)
        except ValueError:
            at, fix = f"line {line}: {table.step}", "mend or remove this line, or name another column by --step"
            problems.add(at, cells.get(table.step, ""), "must be a whole number, 0 or more", fix, table.path)
            continue
        numbers = {name: table.columns[key].number(cells.get(key, "")) for key, name in read.items()}
        if (run := table.run(cells)) not in logs:
            logs[run] = Log(table.path)
            logs[run].by = table.step
        logs[run].add(step, {name: value for name, value in numbers.items() if value is not None})
    logs = logs or {(): Log(table.path)}
    for log in logs.values():
        log.recorded.update(written(name) for name in table.names if name not in table.columns)
        for name, column in table.columns.items():
            if column.problem:
                log.left_out[written(name)] = f"{table.path}: {column.problem}"
            elif column.example:
                log.read_as[written(name)] = column.example
    next(iter(logs.values())).unused += table.unused
    return list(logs.items())


def _resolve(table: _Table, logs: Mapping[_Run, Log], ordered: bool) -> None:
    """Refuse the rows of a file that would overwrite each other."""
    if ordered:
        logs[()].resolve(apart=lambda steps: _apart(table, {(): steps}))
    elif lost := sum(log.overwritten() for log in logs.values()):
        fix = _apart(table, {run: log.twice() for run, log in logs.items()})
        fix = fix or "remove the rows that do not count, or name what counts the steps by --step"
        rule = f"{lost} of {sum(map(len, logs.values()))} rows would overwrite a row of the same run and step"
        raise BadImport(Objection(str(table.path), KEY_ALONE, f"{rule}, which has other values", fix))


def _apart(table: _Table, steps: Mapping[_Run, Collection[int]]) -> str:
    """The columns that tell the rows of these steps apart: they have few values, of which each step has each once."""
    rows: dict[tuple[Any, ...], None] = {}
    for _, cells in table.rows(every=True):
        run, step = table.run(cells), table.at(cells)
        if step in steps.get(run, ()) and len(rows) < _SAMPLE:
            which = (run, cells.get(table.named[0])) if table.named else run
            rows[which, step, *(cells.get(name, "") for name in table.header)] = None
    few = [
        (place, name)
        for place, name in enumerate(table.header, start=2)
        if name not in ("", table.step, *table.run_columns, *(table.named or ()))
        and 1 < len({row[place] for row in rows}) <= len(rows) / 2
        and not _ATTEMPT.search(name)
        and written(name) not in (ASKED.get() or ())
    ]

    def option(column: str) -> str:
        key = "group" if _GROUP.search(column) and not any(map(_GROUP.search, table.run_columns)) else "factor"
        return f"--{'seed' if 'seed' in column.lower() else key} {shlex.quote(column)}"

    def tell(columns: Sequence[tuple[int, str]]) -> bool:
        return len({(*row[:2], *(row[place] for place, _ in columns)) for row in rows}) == len(rows)

    alone = [[column] for column in few if tell([column])]
    if not alone and tell(few):
        for column in few[::-1]:
            few = fewer if tell(fewer := [other for other in few if other != column]) else few
        alone = [few]
    return " or ".join("add " + " ".join(option(name) for _, name in columns) for columns in alone if columns)


def _episodes(tables: Sequence[_Table], problems: Diagnostics) -> list[tuple[int, dict[str, float]]]:
    """The episodes of all environments of a run, by the time of their end; their steps are added up. Where the times of
    a file begin again, the run was resumed."""
    ended: list[tuple[int, float, float, float]] = []
    for table in tables:
        part, before = 0, 0.0
        for line, cells in table.rows():
            try:
                episode = [table.columns[name].number(cells.get(name, "")) for name in _MONITOR]
                reward, length, time = map(float, episode)  # type: ignore[arg-type]
                part, before = part + (time < before), time
                ended.append((part, time, reward, length))
            except (TypeError, ValueError):
                rule = "r, l and t must be numbers"
                problems.add(f"line {line}", KEY_ALONE, rule, "remove this line", table.path)
    rows, step = [], 0
    for *_, reward, length in sorted(ended, key=lambda episode: episode[:2]):
        step += int(length)
        rows.append((step, {"r": reward, "l": length}))
    return rows

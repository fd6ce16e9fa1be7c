"""A run's metrics log and its histograms, read tolerantly.

They may be read while they are written to, after a power cut or after a resume. A bad line is therefore not an error:
it is left out, counted, and listed with its file and line number.

Parsed logs are kept beside the runs, for later reports: a file has a line of JSON and then the columns as they are in
memory. An entry belongs to the content of its log: a log that has grown or was changed is parsed again. Deleting the
folder loses nothing but time.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from analysis.stats.numbers import Array, parsed
from launcher.run.folder import histograms_path

Entry = TypeVar("Entry")
_NOT_METRICS = ("step", "attempt", "time")
_MOST_NAMED = 20  # bad lines named a file; the count is of all


@dataclass(frozen=True)
class BadLine:
    """A line of a metrics file that was left out. `torn`: the last one, cut off while it was written."""

    file: str
    line: int
    why: str
    torn: bool


@dataclass(frozen=True)
class Curves:
    """A run's metrics on its steps.

    steps: (n,) increasing. values[name]: (n,), NaN where the step has no such metric or recorded NaN itself; the latter
    are counted in not_finite[name], as are infinities, which stay in the values; ends[name]: the step of its last
    number then, finite or not. superseded: steps that a later attempt wrote again; repeated: lines that wrote a metric
    of a step and attempt again, of which the last counts.
    """

    steps: Array
    values: Mapping[str, Array]
    not_finite: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, float] = field(default_factory=dict)
    bad: tuple[BadLine, ...] = ()
    bad_count: int = 0
    superseded: int = 0
    repeated: int = 0


EMPTY = Curves(np.empty(0), {})


@dataclass(frozen=True, slots=True)
class StoredColumns(Mapping[str, Array]):
    """Columns of `size` numbers in a file, one after the other, each read when it is asked for. index: of each."""

    file: BinaryIO
    begin: int
    size: int
    index: Mapping[str, int]

    def __getitem__(self, name: str) -> Array:
        return np.frombuffer(os.pread(self.file.fileno(), 8 * self.size, self.begin + 8 * self.size * self.index[name]))

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)


def stored(curves: Curves, file: BinaryIO) -> Curves:
    """The curves with their columns at the end of a file."""
    columns = StoredColumns(file, file.seek(0, os.SEEK_END), curves.steps.size, _index(tuple(curves.values)))
    file.writelines(column.tobytes() for column in curves.values.values())
    file.flush()
    return replace(curves, values=columns)


@lru_cache
def _index(names: tuple[str, ...]) -> dict[str, int]:
    """Runs with the same metrics share it."""
    return {name: index for index, name in enumerate(names)}


def parse(log: BinaryIO, name: str) -> Curves:
    """Read a metrics.jsonl, called `name` in its bad lines. What is wrong is counted and left out.

    Several lines of one step and attempt are merged; of attempts, those lines count that `standing` says.
    """
    steps, begins = array("d"), list[tuple[int, int]]()  # of each line; the first line of each attempt
    blocks: dict[tuple[str, ...], _Block] = {}
    bad: list[BadLine] = []
    bad_count = 0
    for number, line in enumerate(log, start=1):
        if not line.strip():
            continue
        row: Any = None
        try:
            row = parsed(line)
            why = _bad_row(row)
        except (ValueError, RecursionError) as error:
            why = f"not JSON: {error}"
        if why is not None:
            bad_count += 1
            torn = not line.endswith(b"\n")
            if len(bad) < _MOST_NAMED:
                bad.append(BadLine(name, number, "torn: the last line is incomplete" if torn else why, torn))
            continue
        attempt = int(row.get("attempt") or 1)
        if not begins or attempt != begins[-1][1]:
            begins.append((len(steps), attempt))
        step = row["step"]
        for key in _NOT_METRICS:
            row.pop(key, None)
        _add(blocks, row, len(steps))
        steps.append(step)

    kept, places, superseded = _places(np.frombuffer(steps, dtype=np.float64), begins)
    again, not_finite, ends, values = set[int](), dict[str, int](), dict[str, float](), dict[str, Array]()
    for key, cells, lines in _metrics(blocks):
        column, count, end = cells, cells.size, -1
        if places is not None or count < kept.size:  # else a number is on each line, and all lines count
            at = lines if places is None else places[lines]
            column, recorded = np.full(kept.size + 1, math.nan), np.zeros(kept.size + 1, dtype=bool)
            column[at], recorded[at] = cells, True  # of two in one place, the last; the last place is of none
            if at.size > np.count_nonzero(recorded):
                twice = np.setdiff1d(np.arange(at.size), np.unique(at, return_index=True)[1])
                again.update(lines[twice[at[twice] >= 0]].tolist())
            column, count = column[:-1], int(np.count_nonzero(recorded[:-1]))
            end = int(np.flatnonzero(recorded[:-1]).max(initial=-1))
        if count:
            values[key] = column
            if odd := int(count - np.isfinite(column).sum()):
                not_finite[key], ends[key] = odd, float(kept[end])
    return Curves(kept, values, not_finite, ends, tuple(bad), bad_count, superseded, len(again))


_Block: TypeAlias = "tuple[array[float], array[int]]"  # numbers of lines with the same keys, row by row; these lines


def _add(blocks: dict[tuple[str, ...], _Block], row: Mapping[str, Any], line: int) -> None:
    """Add a line's numbers to the block of its keys."""
    names = tuple(row)
    if names not in blocks:
        blocks[names] = array("d"), array("I")
    cells, lines = blocks[names]
    begin = len(cells)
    try:
        cells.extend(row.values())
    except (TypeError, OverflowError):  # not all of them are numbers, or not numbers of this type
        del cells[begin:]
        numbers = {key: number for key, value in row.items() if (number := _number(value)) is not None}
        _add(blocks, numbers, line)
    else:
        lines.append(line)


def _metrics(blocks: Mapping[tuple[str, ...], _Block]) -> Iterator[tuple[str, Array, NDArray[np.uint32]]]:
    """Each metric's numbers and their lines, in the order of the lines; the metrics by name."""
    parts: dict[str, list[tuple[Array, NDArray[np.uint32]]]] = {}
    for names, (cells, lines) in blocks.items():
        columns = np.asarray(cells).reshape(len(lines), len(names)).T
        for name, column in zip(names, columns, strict=True):
            if column.size:
                parts.setdefault(name, []).append((column, np.asarray(lines)))
    for name, of_blocks in sorted(parts.items()):
        if len(of_blocks) == 1:
            yield name, np.ascontiguousarray(of_blocks[0][0]), of_blocks[0][1]
        else:
            together, of_lines = map(np.concatenate, zip(*of_blocks, strict=True))
            order = np.argsort(of_lines)
            yield name, together[order], of_lines[order]


def _places(steps: Array, begins: Sequence[tuple[int, int]]) -> tuple[Array, NDArray[np.int32] | None, int]:
    """The steps that count, as `standing` has it; the place of each line among them, -1 if it does not count, None for
    the places of the lines themselves; and how many steps of an attempt a later one superseded."""
    if len(begins) < 2 and (steps[1:] > steps[:-1]).all():  # as nearly always
        return steps, None, 0
    places = np.arange(steps.size, dtype=np.int32)
    at, attempts = zip(*begins, strict=True)
    of_lines, stands, least = np.repeat(attempts, np.diff(at, append=steps.size)), np.ones(steps.size, bool), math.inf
    for attempt in sorted({*attempts}, reverse=True):
        of_attempt = of_lines == attempt
        stands[of_attempt] = steps[of_attempt] < least
        least = min(least, steps[of_attempt].min())
    lost = {*zip(of_lines[~stands].tolist(), steps[~stands].tolist(), strict=True)}
    kept, places[stands] = np.unique(steps[stands], return_inverse=True)
    places[~stands] = -1
    return kept, places, len(lost)


def standing(by_attempt: Mapping[int, dict[int, Entry]]) -> dict[int, Entry]:
    """The entries by step. Where an attempt begins at step k, entries of older attempts from k on are superseded.

    by_attempt: attempt -> step -> entry; every attempt has an entry.
    """
    entries: dict[int, Entry] = {}
    for attempt in sorted(by_attempt):
        begin = min(by_attempt[attempt])
        older = {step: entry for step, entry in entries.items() if step < begin}
        entries = {**older, **by_attempt[attempt]} if older else by_attempt[attempt]
    return entries


def _bad_row(row: Any) -> str | None:
    if not isinstance(row, dict):
        return f"must be an object, not {type(row).__name__}"
    step, attempt = row.get("step"), row.get("attempt", 1)
    if type(step) is int is type(attempt) and step >= 0 < attempt:  # as nearly always
        return None
    for key, value, lowest in (("step", step, 0), ("attempt", attempt, 1)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{key} = {value!r}: a whole number is needed"
        if not math.isfinite(value) or value != int(value) or value < lowest:
            return f"{key} = {value!r}: must be a whole number, {lowest} or more"
    return None


def _number(value: object) -> float | None:
    """A metric's value; None for anything but a number."""
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an int of more than 308 digits
        return math.inf


@dataclass(frozen=True)
class Histogram:
    """edges (n + 1,) increasing, counts (n,)."""

    edges: Array
    counts: Array

    def density(self, edges: Array) -> Array:
        """The share of all counts per unit in the bins between these edges; counts are spread evenly within their
        bin."""
        below = np.concatenate(([0.0], np.cumsum(self.counts))) / self.counts.sum()
        return np.asarray(np.diff(np.interp(edges, self.edges, below)) / np.diff(edges))


def read_histograms(folder: Path, name: str) -> tuple[dict[int, Histogram], int]:
    """A run's histograms of that name by step, and how many lines are left out. `standing` decides which ones of
    several attempts count."""
    try:
        data = histograms_path(folder).read_bytes()
    except FileNotFoundError:
        return {}, 0
    by_attempt: dict[int, dict[int, Histogram | None]] = {}  # None: others of that step
    bad = 0
    for line in filter(bytes.strip, data.splitlines()):
        try:
            row = parsed(line)
            step, attempt = int(row["step"]), int(row.get("attempt") or 1)
            histogram = _histogram(row) if row["name"] == name else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            bad += 1
            continue
        steps = by_attempt.setdefault(attempt, {})
        steps[step] = histogram or steps.get(step)
    kept = {step: histogram for step, histogram in standing(by_attempt).items() if histogram is not None}
    return dict(sorted(kept.items())), bad


def _histogram(row: Mapping[str, Any]) -> Histogram:
    edges, counts = np.asarray(row["edges"], dtype=np.float64), np.asarray(row["counts"], dtype=np.float64)
    if edges.ndim != 1 or counts.shape != (edges.size - 1,) or not (np.diff(edges) > 0).all():
        raise ValueError("n + 1 increasing edges and n counts are needed")
    if not np.isfinite(edges).all() or not (counts >= 0).all() or not 0 < counts.sum() < np.inf:
        raise ValueError("finite edges and counts from 0, not all 0, are needed")
    return Histogram(edges, counts)


SMALL = 1 << 20  # bytes: a shorter log is parsed as fast as anything could be found
_FORMAT = 5


def curves(log: Path, shown: str, kept: Path) -> Curves:
    """The curves of a metrics log, from `kept` (a path without suffix) if that has the same content; else parsed, and
    kept.

    Raises FileNotFoundError where there is no log. A folder that cannot be written to is not an error.
    """
    stat = log.stat()
    if stat.st_size < SMALL:
        return parse(io.BytesIO(log.read_bytes()), shown)
    file = kept.with_suffix(".columns")
    stamp = [stat.st_size, stat.st_mtime_ns]
    if (cached := _restored(file, "stamp", stamp, shown)) is not None:
        return cached
    with open(log, "rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
        # The same digest: a copy of the same log, or one that was touched.
        if (cached := _restored(file, "digest", digest, shown)) is not None:
            return cached
        source.seek(0)
        parsed = parse(source, shown)
    _keep(file, parsed, {"format": _FORMAT, "digest": digest, "stamp": stamp})
    return parsed


def _restored(file: Path, key: str, value: object, shown: str) -> Curves | None:
    """The curves that a file keeps; None if it has another value of this key, or cannot be used."""
    try:
        with open(file, "rb") as source:
            about = parsed(source.readline())
            if about["format"] != _FORMAT or about[key] != value:
                return None
            names = about["names"]
            columns = np.fromfile(source, dtype="<f8").reshape(len(names) + 1, about["steps"])
    except (OSError, LookupError, TypeError, ValueError):
        return None
    bad = tuple(BadLine(**{**line, "file": shown}) for line in about["curves"]["bad"])
    return Curves(columns[0], dict(zip(names, columns[1:], strict=True)), **{**about["curves"], "bad": bad})


def _keep(file: Path, parsed: Curves, about: Mapping[str, Any]) -> None:
    rest = asdict(replace(parsed, steps=EMPTY.steps, values={}))
    del rest["steps"], rest["values"]  # which follow as columns
    told = {**about, "names": list(parsed.values), "steps": parsed.steps.size, "curves": rest}
    # A name of its own and a rename: two reports at once both write the same whole file.
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as sink:
            sink.write(json.dumps(told).encode() + b"\n")
            for column in (parsed.steps, *parsed.values.values()):
                column.astype("<f8", copy=False).tofile(sink)
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)

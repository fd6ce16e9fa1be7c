"""Parsed metrics logs, kept as Parquet beside the runs: a later report reads the columns that it needs and no text.

What is kept belongs to the log's content: a log that has grown, or was changed, is parsed again. Deleting the folder
loses time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analysis.log import Array, BadLine, Curves, parse

SMALL = 1 << 20  # bytes: a shorter log is parsed as fast as anything could be found
_FORMAT = 1
_ABOUT = b"rlsweep"


def curves(log: Path, shown: str, kept: Path) -> Curves:
    """The curves of a metrics log, from `kept` (without suffix) if that is of the same content; else parsed, and kept.

    Raises FileNotFoundError where there is no log. A folder that cannot be written to is no error.
    """
    stat = log.stat()
    if stat.st_size < SMALL:
        return parse(log.read_bytes(), shown)
    file = kept.with_suffix(".parquet")
    stamp = [stat.st_size, stat.st_mtime_ns]
    found = _open(file)
    if found is not None and found[1]["stamp"] == stamp:
        return _restored(*found, shown)
    data = log.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if found is not None and found[1]["digest"] == digest:  # a copy of the same log, or one that was touched
        return _restored(*found, shown)
    parsed = parse(data, shown)
    _keep(file, parsed, {"format": _FORMAT, "digest": digest, "stamp": stamp})
    return parsed


class _Columns(Mapping[str, Array]):
    """The columns of a Parquet file: the first one is read alone when it is asked for, the others at once when a second
    one is, for together they take as long as two or three."""

    def __init__(self, file: pq.ParquetFile, names: tuple[str, ...]) -> None:
        self._file: pq.ParquetFile | None = file
        self._names = names
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._read and self._file is not None and name in self._names:
            others = [other for other in self._names if other not in self._read]
            self._read |= _columns(self._file, others if self._read else [name])
            if len(self._read) == len(self._names):
                self._file = None  # and with it the file's bytes
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def array(kind: pa.DataType, values: NDArray[Any], valid: pa.Buffer | None = None) -> pa.Array:
    """Values (n,) as Arrow has them, without a copy. Not pyarrow.array, which first imports pandas: a report needs it
    for nothing, and it takes as long as a small report."""
    return pa.Array.from_buffers(kind, values.size, [valid, pa.py_buffer(values)])


def _columns(file: pq.ParquetFile, names: list[str]) -> dict[str, Array]:
    table = file.read(columns=names, use_threads=False).combine_chunks()
    # Not to_numpy, which imports pandas, too.
    return {name: np.asarray(np.from_dlpack(table.column(name).chunk(0)), dtype=np.float64) for name in names}


def _open(file: Path) -> tuple[pq.ParquetFile, dict[str, Any]] | None:
    try:
        # Whole, in memory: a thousand files held open would be too many.
        found = pq.ParquetFile(pa.py_buffer(file.read_bytes()))
        about = orjson.loads((found.schema_arrow.metadata or {})[_ABOUT])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None
    return (found, about) if about.get("format") == _FORMAT else None


def _restored(file: pq.ParquetFile, about: Mapping[str, Any], shown: str) -> Curves:
    bad = tuple(BadLine(shown, *line) for line in about["bad"])
    names = tuple(file.schema_arrow.names[1:])
    steps = _columns(file, ["step"])["step"]
    return Curves(steps, _Columns(file, names), about["not_finite"], bad, about["bad_count"], about["superseded"])


def _keep(file: Path, parsed: Curves, about: Mapping[str, Any]) -> None:
    bad = [(line.line, line.why, line.torn) for line in parsed.bad]
    told = {**about, "bad": bad, "bad_count": parsed.bad_count, "superseded": parsed.superseded,
            "not_finite": dict(parsed.not_finite)}  # fmt: skip
    columns = [parsed.steps, *parsed.values.values()]
    schema = pa.schema([("step", pa.float64()), *((name, pa.float64()) for name in parsed.values)],
                       metadata={_ABOUT: orjson.dumps(told)})  # fmt: skip
    # A name of its own and a rename: two reports at once both write the same whole file.
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Metrics are noise in their last digits: neither a dictionary nor compression makes them smaller.
        table = pa.Table.from_arrays([array(pa.float64(), column) for column in columns], schema=schema)
        pq.write_table(table, part, use_dictionary=False, compression="none", write_statistics=False)
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)

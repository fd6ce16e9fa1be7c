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
    """The columns of a Parquet file, each read when it is first asked for."""

    def __init__(self, file: pq.ParquetFile, names: tuple[str, ...]) -> None:
        self._file, self._names = file, names
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._read:
            if name not in self._names:
                raise KeyError(name)
            self._read[name] = _column(self._file, name)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _column(file: pq.ParquetFile, name: str) -> Array:
    return np.asarray(file.read(columns=[name], use_threads=False).column(name).to_numpy(), dtype=np.float64)


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
    return Curves(
        _column(file, "step"), _Columns(file, names), about["not_finite"], bad, about["bad_count"], about["superseded"]
    )


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
        table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)
        pq.write_table(table, part, use_dictionary=False, compression="none", write_statistics=False)
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)

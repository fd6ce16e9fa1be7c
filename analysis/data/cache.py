"""Parsed metrics logs in Arrow's format beside the runs: a later report reads only the columns that it needs.

Arrow's and not Parquet, because a column is mapped into memory as it is: a thousand runs of twenty metrics take a
quarter of a second instead of one. An entry belongs to the content of its log: a log that has grown or was changed is
parsed again. Deleting the folder loses nothing but time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from analysis.data.metric_log import EMPTY, BadLine, Curves, parse

SMALL = 1 << 20  # bytes: a shorter log is parsed as fast as anything could be found
_FORMAT = 3
_ABOUT = b"rlsweep"


def curves(log: Path, shown: str, kept: Path) -> Curves:
    """The curves of a metrics log, from `kept` (a path without suffix) if that has the same content; else parsed, and
    kept.

    Raises FileNotFoundError where there is no log. A folder that cannot be written to is not an error.
    """
    stat = log.stat()
    if stat.st_size < SMALL:
        return parse(log.read_bytes(), shown)
    file = kept.with_suffix(".arrow")
    stamp = [stat.st_size, stat.st_mtime_ns]
    cached = _open(file)
    if cached is not None and cached[1]["stamp"] == stamp:
        return _restored(*cached, shown)
    data = log.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if cached is not None and cached[1]["digest"] == digest:  # a copy of the same log, or one that was touched
        return _restored(*cached, shown)
    parsed = parse(data, shown)
    _keep(file, parsed, {"format": _FORMAT, "digest": digest, "stamp": stamp})
    return parsed


def array(kind: pa.DataType, values: NDArray[Any], valid: pa.Buffer | None = None) -> pa.Array:
    """Values (n,) as an Arrow array, without a copy. pyarrow.array would import pandas, which takes as long as a small
    report."""
    return pa.Array.from_buffers(kind, values.size, [valid, pa.py_buffer(values)])


def _open(file: Path) -> tuple[pa.RecordBatch, dict[str, Any]] | None:
    try:
        # Mapped: what no one asks for is never read. The file is closed again; the mapping lives with its columns. Not
        # Python's mmap, which keeps its file open: a thousand runs would use up what a process may open.
        with pa.memory_map(str(file)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        about = orjson.loads((batch.schema.metadata or {})[_ABOUT])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None
    return (batch, about) if about.get("format") == _FORMAT else None


def _restored(kept: pa.RecordBatch, about: Mapping[str, Any], shown: str) -> Curves:
    # Not to_numpy, which imports pandas, too.
    columns = [np.asarray(np.from_dlpack(column), dtype=np.float64) for column in kept.columns]
    values = dict(zip(kept.schema.names[1:], columns[1:], strict=True))
    bad = tuple(BadLine(**{**line, "file": shown}) for line in about["curves"]["bad"])
    return Curves(columns[0], values, **{**about["curves"], "bad": bad})


def _keep(file: Path, parsed: Curves, about: Mapping[str, Any]) -> None:
    rest = asdict(replace(parsed, steps=EMPTY.steps, values={}))
    told = {**about, "curves": {key: value for key, value in rest.items() if key not in ("steps", "values")}}
    columns = [parsed.steps, *parsed.values.values()]
    schema = pa.schema([("step", pa.float64()), *((name, pa.float64()) for name in parsed.values)],
                       metadata={_ABOUT: orjson.dumps(told)})  # fmt: skip
    # A name of its own and a rename: two reports at once both write the same whole file.
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = pa.RecordBatch.from_arrays([array(pa.float64(), column) for column in columns], schema=schema)
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(kept)
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)

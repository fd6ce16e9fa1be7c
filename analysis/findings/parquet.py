"""Every summary of every metric that was recorded, as tidy Parquet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.data.cache import array
from analysis.data.run_values import value_of
from analysis.findings.study import Study, range_of


def results(study: Study) -> bytes:
    """Parquet: run, group, seed, metric, summary, value; one row for each run and summary, for every metric that was
    recorded."""
    runs, settings = study.sweep.runs, study.settings
    rows: list[tuple[str, str, int, str, str, float | None]] = []
    for metric in sorted({name for run in runs for name in run.curves.values}):
        common = study.ranges.get(metric) or range_of(study.sweep, settings, metric)
        direction = settings.direction_of(metric)
        for run in runs:
            if metric not in run.curves.values:
                continue
            for summary in ("auc", "best", "final") if direction else ("auc", "final"):
                value = value_of(common, run.id, summary, window=settings.window, direction=direction or "higher")
                rows.append((run.id, run.group, run.seed, metric, summary, value.value))
    for block in study.blocks:
        if block.measure.summary == "time_to":
            name = f"time_to {block.measure.threshold!r}"
            rows += [
                (run.id, run.group, run.seed, block.measure.metric, name, block.values[run.id].value) for run in runs
            ]
    ids, groups, seeds, metrics, summaries, values = zip(*rows, strict=True) if rows else [()] * 6
    kind = pa.int64() if max(seeds, default=0) < 2**63 else pa.uint64()  # an older version allowed such seeds
    table = pa.table(
        {"run": _texts(ids), "group": _texts(groups), "seed": array(kind, np.array(seeds, kind.to_pandas_dtype())),
         "metric": _texts(metrics), "summary": _texts(summaries), "value": _or_null(values)}
    )  # fmt: skip
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return bytes(out.getvalue().to_pybytes())


def _or_null(column: Sequence[float | None]) -> pa.Array:
    known = np.array([value is not None for value in column], dtype=bool)
    values = np.array([np.nan if value is None else value for value in column], dtype=np.float64)
    return array(pa.float64(), values, pa.py_buffer(np.packbits(known, bitorder="little")))


def _texts(column: Sequence[str]) -> pa.Array:
    encoded = [text.encode() for text in column]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))

"""What a report holds, the files that show it, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.data.metric_log import array
from analysis.data.responses import Responses
from analysis.data.run_values import value_of
from analysis.figures.canvas import Sketch
from analysis.figures.traces import to_csv
from analysis.findings.study import Study, range_of
from analysis.findings.verdicts import Verdict
from analysis.report.headline import Answer
from analysis.sections import PageSection
from analysis.tables.table import Table, to_latex, to_markdown
from analysis.tables.table import to_csv as table_to_csv

FORMATS = {"tables": ("md", "tex", "csv"), "figures": ("svg", "csv", "pdf", "png")}  # the last two: on request


@dataclass(frozen=True)
class Report:
    """index: the page's path. answer: its first lines. tables and figures: all of them, those of the sections too.
    verdicts: on the hypotheses. responses: None where no run recorded any."""

    index: Path
    study: Study
    answer: Answer
    tables: tuple[Table, ...]
    verdicts: tuple[Verdict, ...]
    figures: tuple[Sketch, ...]
    sections: tuple[PageSection, ...]
    responses: Responses | None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.study.sweep.plan.get("experiment") or self.study.sweep.folder.name)

    @property
    def command(self) -> str | None:
        """The command that made the runs, which a plan may have as a list of words; None if it has none."""
        command = self.study.sweep.plan.get("command")
        return command if command is None or isinstance(command, str) else " ".join(map(str, command))


def files_of(shown: Sequence[Table], drawn: Sequence[Sketch], further: Sequence[str]) -> dict[str, bytes]:
    """Each table, and each figure as SVG with its values as CSV, by path below the report. further: formats of the
    figures beside these, "pdf" and "png"."""
    files: dict[str, bytes] = {}
    for table in shown:
        files[f"tables/{table.name}.md"] = to_markdown(table).encode()
        files[f"tables/{table.name}.tex"] = to_latex(table).encode()
        files[f"tables/{table.name}.csv"] = table_to_csv(table).encode()
    for figure in drawn:
        files[f"figures/{figure.name}.svg"] = figure.svg
        files[f"figures/{figure.name}.csv"] = to_csv(figure.traces).encode()
        files |= {f"figures/{figure.name}.{suffix}": figure.rendered(suffix) for suffix in further}
    return files


def write_all(out: Path, files: Mapping[str, bytes]) -> None:
    """Write each file aside and rename it, so that a reader never sees half a file. A file with this content is not
    touched."""
    for name, content in files.items():
        path = out / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
        aside.write_bytes(content)
        os.replace(aside, path)


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
                value = value_of(common, run.id, summary, settings.window, direction)
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

"""The report of an experiment: one page that says what was found and how surely, with tables, figures and data beside
it."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from analysis import formats
from analysis.declared import declared
from analysis.drawing import Figure, colours
from analysis.figures import figures
from analysis.picture import KINDS
from analysis.read import read_sweep
from analysis.report.answer import Answer, answer
from analysis.report.page import page
from analysis.settings import settings
from analysis.study import Study, range_of, study
from analysis.tables import Table, tables
from analysis.values import value_of
from analysis.verdicts import Verdict, judge

FORMAT = 1
_OPTIONAL = (
    *(f"figures/{kind}_*" for kind in ("curve", *KINDS)),
    "figures/differences.*",
    "tables/efficiency.*",
    "tables/hypotheses.*",
)


@dataclass(frozen=True)
class Report:
    """What was written: index is the page, `answer` its first lines, tables as shown, verdicts on the hypotheses."""

    index: Path
    study: Study
    answer: Answer
    tables: tuple[Table, ...]
    verdicts: tuple[Verdict, ...]


def write(folder: Path) -> Report:
    """Write FOLDER/report from FOLDER/plan.json and the run folders beside it. Same input, same bytes.

    Raises analysis.read.BadPlan when FOLDER has no plan, or one that asks for something unknown.
    """
    sweep = read_sweep(folder)
    asked = settings(sweep.plan.get("analysis"), str(folder / "plan.json"), sweep.groups, sweep.baseline)
    found = study(sweep, asked)
    when = declared(folder, (sweep.plan.get("analysis") or {}).get("hypotheses") or {})
    judged = tuple(replace(judge(one, found), declared=when[one.id]) for one in asked.hypotheses)
    drawn = figures(found)
    shown = tables(found, judged)
    said = answer(found)
    out = folder / "report"
    files: dict[str, bytes] = {}
    for table in shown:
        files[f"tables/{table.name}.md"] = formats.to_markdown(table).encode()
        files[f"tables/{table.name}.tex"] = formats.to_latex(table).encode()
        files[f"tables/{table.name}.csv"] = formats.to_csv(table).encode()
    for figure in drawn:
        for suffix, content in figure.files.items():
            files[f"figures/{figure.name}.{suffix}"] = content
    files["results.parquet"] = _results(found)
    files["report.json"] = to_json(found, said, judged, shown, drawn)
    files["index.html"] = page(found, said, shown, drawn, colours(sweep.groups)).encode()
    for name, content in files.items():
        _replace(out / name, content)
    for pattern in _OPTIONAL:  # what an earlier plan had and this one has not
        for old in sorted(out.glob(pattern)):
            if str(old.relative_to(out)) not in files:
                old.unlink()
    return Report(out / "index.html", found, said, tuple(shown), judged)


def to_json(
    found: Study, said: Answer, judged: Sequence[Verdict], shown: Sequence[Table], drawn: Sequence[Figure]
) -> bytes:
    """Everything in the report, for machines; a number that does not exist is null."""
    plan = found.sweep.plan
    content = {
        "format": FORMAT,
        "experiment": plan.get("experiment"),
        "command": plan.get("command"),
        "answer": _plain(said),
        "settings": _plain(found.settings),
        "comparisons": [
            {
                "metric": block.measure.metric,
                "summary": block.measure.summary,
                "direction": block.measure.better,
                "threshold": block.measure.threshold,
                "start": block.start,
                "stop": block.stop,
                "primary": block is found.primary,
                "family": _plain(block.family),
                "groups": _plain(block.estimates),
                "pairs": _plain(block.comparisons),
                "runs": {run_id: _plain(value) for run_id, value in sorted(block.values.items())},
            }
            for block in found.blocks
        ],
        "hypotheses": _plain(judged),
        "tables": {table.name: _plain(table.records) for table in shown},
        "figures": {figure.name: {"title": figure.title, "caption": figure.caption} for figure in drawn},
        "bad_lines": [
            _plain(bad) for run in {run.id: run for run in found.sweep.runs}.values() for bad in run.curves.bad
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _results(found: Study) -> bytes:
    """Tidy Parquet: run, group, seed, metric, summary, value; one row a run and summary, for every metric that was
    recorded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    runs = found.sweep.runs
    rows: list[tuple[str, str, int, str, str, float | None]] = []
    for metric in sorted({name for run in runs for name in run.curves.values}):
        common = found.ranges.get(metric) or range_of(found.sweep, found.settings, metric)
        direction = found.settings.direction_of(metric)
        for run in runs:
            if metric not in run.curves.values:
                continue
            for summary in ("auc", "best", "final") if direction else ("auc", "final"):
                value = value_of(common, run.id, summary, window=found.settings.window, direction=direction or "higher")
                rows.append((run.id, run.group, run.seed, metric, summary, value.value))
    for block in found.blocks:
        if block.measure.summary == "time_to":
            name = f"time_to {block.measure.threshold!r}"
            rows += [
                (run.id, run.group, run.seed, block.measure.metric, name, block.values[run.id].value) for run in runs
            ]
    columns = list(zip(*rows, strict=True)) or [()] * 6
    text, whole, number = pa.string(), pa.int64(), pa.float64()
    kinds = {"run": text, "group": text, "seed": whole, "metric": text, "summary": text, "value": number}
    table = pa.table(
        {name: pa.array(list(column), kind) for (name, kind), column in zip(kinds.items(), columns, strict=True)}
    )
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return bytes(np.frombuffer(out.getvalue(), dtype=np.uint8).tobytes())


def _replace(path: Path, content: bytes) -> None:
    """Write aside and rename, so that a reader never sees half a file; leave a file alone that is the same already."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    aside.write_bytes(content)
    os.replace(aside, path)

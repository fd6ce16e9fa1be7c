"""The report of an experiment: one page that says what was found and how surely, with tables, figures and data beside
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson

from analysis.declared import declared
from analysis.drawing import Figure, colours
from analysis.figures import figures
from analysis.picture import KINDS
from analysis.read import read_sweep
from analysis.report.answer import Answer, answer
from analysis.report.files import files_of, plain, write_all
from analysis.report.missing import missing
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
    "tables/missing.*",
)


@dataclass(frozen=True)
class Report:
    """What was written: index is the page, `answer` its first lines, tables and figures as shown, verdicts on the
    hypotheses."""

    index: Path
    study: Study
    answer: Answer
    tables: tuple[Table, ...]
    verdicts: tuple[Verdict, ...]
    figures: tuple[Figure, ...] = ()


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
    lacking = missing(sweep)
    shown = [*tables(found, judged), *([lacking] if lacking else [])]
    said = answer(found)
    out = folder / "report"
    files = files_of(shown, drawn)
    files["results.parquet"] = _results(found)
    files["report.json"] = to_json(found, said, judged, shown, drawn)
    files["index.html"] = page(found, said, shown, drawn, colours(sweep.groups)).encode()
    write_all(out, files)
    for pattern in _OPTIONAL:  # what an earlier plan had and this one has not
        for old in sorted(out.glob(pattern)):
            if str(old.relative_to(out)) not in files:
                old.unlink()
    return Report(out / "index.html", found, said, tuple(shown), judged, tuple(drawn))


def to_json(
    found: Study, said: Answer, judged: Sequence[Verdict], shown: Sequence[Table], drawn: Sequence[Figure]
) -> bytes:
    """Everything in the report, for machines; a number that does not exist is null."""
    plan = found.sweep.plan
    content = {
        "format": FORMAT,
        "experiment": plan.get("experiment"),
        "command": plan.get("command"),
        "answer": plain(said),
        "settings": plain(found.settings),
        "comparisons": [
            {
                "metric": block.measure.metric,
                "summary": block.measure.summary,
                "direction": block.measure.better,
                "threshold": block.measure.threshold,
                "start": block.start,
                "stop": block.stop,
                "primary": block is found.primary,
                "family": plain(block.family),
                "groups": plain(block.estimates),
                "pairs": plain(block.comparisons),
                "runs": {run_id: plain(value) for run_id, value in sorted(block.values.items())},
            }
            for block in found.blocks
        ],
        "hypotheses": plain(judged),
        "tables": {table.name: plain(table.records) for table in shown},
        "figures": {figure.name: {"title": figure.title, "caption": figure.caption} for figure in drawn},
        "bad_lines": [
            plain(bad) for run in {run.id: run for run in found.sweep.runs}.values() for bad in run.curves.bad
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


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

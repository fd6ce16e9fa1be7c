"""The report of an experiment: one page that says what was found and how surely, with tables, figures and data beside
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from analysis.data.sweep import read_sweep
from analysis.figures.canvas import Figure, colours
from analysis.figures.figures import figures
from analysis.findings.parquet import results
from analysis.findings.preregistration import declared
from analysis.findings.responses import Responses
from analysis.findings.responses import responses as responses_of
from analysis.findings.study import Study, study
from analysis.findings.verdicts import Verdict, judge
from analysis.report.files import FORMATS, files_of, plain, write_all
from analysis.report.headline import Answer, answer
from analysis.report.missing import missing
from analysis.report.page import page
from analysis.report.responses import spoken, to_csv
from analysis.sections import sections
from analysis.spec.settings import settings
from analysis.tables.comparison import Table, tables

FORMAT = 1
_RESPONSES = "tables/responses.csv"


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

    Raises analysis.data.sweep.BadPlan when FOLDER has no plan, or one that asks for something unknown.
    """
    sweep = read_sweep(folder)
    asked = settings(sweep.plan.get("analysis"), str(folder / "plan.json"), sweep.groups, sweep.baseline)
    found = study(sweep, asked)
    when = declared(folder, (sweep.plan.get("analysis") or {}).get("hypotheses") or {})
    judged = tuple(replace(judge(one, found), declared=when[one.id]) for one in asked.hypotheses)
    parts = sections(found)
    drawn = [*figures(found), *(figure for part in parts for figure in part.figures)]
    lacking = missing(found)
    shown = [*tables(found, judged), *(table for part in parts for table in part.tables)]
    shown += [lacking] if lacking else []
    said = answer(found)
    answered = responses_of(sweep)
    out = folder / "report"
    summaries = results(found)  # while the figures are rendered
    files = files_of(shown, drawn) | {"results.parquet": summaries}
    files["report.json"] = to_json(found, said, judged, shown, drawn, answered)
    heard = spoken(answered, sweep) if answered else None
    files["index.html"] = page(found, said, shown, drawn, parts, colours(sweep.groups), heard).encode()
    if answered:
        files[_RESPONSES] = to_csv(answered).encode()
    former = written(out) | {_RESPONSES}
    write_all(out, files)
    for name in sorted(former - set(files)):  # what an earlier plan had and this one has not
        (out / name).unlink(missing_ok=True)
    return Report(out / "index.html", found, said, tuple(shown), judged, tuple(drawn))


def to_json(
    found: Study,
    said: Answer,
    judged: Sequence[Verdict],
    shown: Sequence[Table],
    drawn: Sequence[Figure],
    answered: Responses | None,
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
        "notes": {table.name: plain(table.notes) for table in shown if table.notes},
        "figures": {figure.name: {"title": figure.title, "caption": figure.caption} for figure in drawn},
        "responses": {"step": answered.step, "contrasts": plain(answered.contrasts)} if answered else None,
        "bad_lines": [
            plain(bad) for run in {run.id: run for run in found.sweep.runs}.values() for bad in run.curves.bad
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def written(out: Path) -> set[str]:
    """The tables and figures of the report that stands in a folder, by their paths; none where there is no report."""
    try:
        content = orjson.loads((out / "report.json").read_bytes())
        names = [(kind, Path(name).name, formats) for kind, formats in FORMATS.items() for name in content[kind]]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {f"{kind}/{name}.{suffix}" for kind, name, formats in names for suffix in formats}

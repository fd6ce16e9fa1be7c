"""The page: the report as one HTML file that needs no network and no other file.

Without JavaScript everything is shown; the script adds hiding, sorting, searching and the values under the pointer. A
language model wrote the responses, so they are made safe to display.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from analysis.data.responses import Responses, visible
from analysis.figures.canvas import colours
from analysis.figures.traces import SUMMARY, summary, to_json
from analysis.findings.study import AXES, Study
from analysis.report.files import Report
from analysis.spec.validation import counted
from analysis.stats.numbers import format_level, format_number
from analysis.tables import wording
from analysis.tables.table import Entry, Table, csv_of, table

if TYPE_CHECKING:
    import jinja2

MOST = 1200  # characters of a text on the page; tables/responses.csv has all
_LONG = 400  # characters or
_LINES = 8  # lines, beyond which a text scrolls in its place


def text(whole: str) -> tuple[str, int, bool]:
    """A text for the page, cut if it is long, with a visible mark for each character that is invisible or changes the
    direction of what follows; how many characters are left out; and whether it scrolls."""
    part = whole[:MOST]
    return visible(part), len(whole) - len(part), len(part) > _LONG or part.count("\n") >= _LINES


def to_csv(evaluation: Responses) -> str:
    """Every response, a row each, as it was written, but for an apostrophe before what a spreadsheet would run."""
    records = [
        {
            "step": evaluation.step,
            "prompt_id": response.id,
            "group": response.group,
            "seed": response.seed,
            "factors": wording.factors(response.cell),
            "run": response.run,
            "reward": response.reward,
            "prompt": response.prompt,
            "answer": response.answer,
            "response": response.response,
        }
        for response in evaluation.recorded
    ]
    return csv_of(list(records[0]), records, csv.QUOTE_NONNUMERIC)  # unquoted, a carriage return would end the row


_HERE = Path(__file__).parent


def page(report: Report) -> Iterator[str]:
    """The page, in parts. All text is escaped except the SVG of figures, the style and the script."""
    study, drawn, sweep = report.study, report.figures, report.study.sweep
    recorded = {metric for run in sweep.runs for metric in run.curves.values}
    names = {figure.name for figure in drawn}
    absent = [
        metric for asked in study.settings.drawn for metric in asked.metrics
        if (asked.name not in names if asked.kind == "histogram" else metric not in recorded)
    ]  # fmt: skip
    tables = {table.name: table for table in report.tables}
    curves = [figure for figure in drawn if figure.kind in ("curves", "band", "levels")]
    times = [figure for figure in drawn if figure.kind == "times" and "efficiency" in tables]  # beside that table
    elsewhere = [*curves, *times, *(figure for part in report.sections for figure in part.figures)]
    relations = [figure for figure in drawn if figure not in elsewhere and figure.kind != "differences"]
    labels, look = sweep.labels, colours(sweep.groups)
    level = format_level(study.settings.alpha)
    data = dict[str, orjson.Fragment]()
    for figure in drawn:
        traces = {**to_json(figure.traces, labels), "bounds": figure.bounds.format(level)}
        data[figure.name] = orjson.Fragment(orjson.dumps(traces))
    return _template().generate(
        vars(report),
        style=(_HERE / "style.css").read_text(encoding="utf-8"),
        script=(_HERE / "script.js").read_text(encoding="utf-8"),
        contents=_contents(report, tables, bool(relations)),
        labels=labels,
        health=_health(report),
        data=orjson.dumps({"figures": data}).decode().replace("<", "\\u003c"),  # which cannot end its HTML element
        values={figure.name: {"columns": SUMMARY, "rows": summary(figure.traces, labels)} for figure in drawn},
        name=report.name,
        command=report.command,
        tables=tables,
        curves=curves,
        no_curve=_no_curve(study),
        relations=relations,
        times=times,
        unrecorded=list(dict.fromkeys(absent)) if recorded else [],
        passing=AXES[study.settings.axis],
        standard=wording.standard(study),
        window=wording.declared_window(study.settings.window),
        groups=[
            {"name": group, "label": label, "colour": look[group][0].replace("#000000", "currentColor")}
            for group, label in labels.items()
        ],
        seeds=sorted({run.seed for run in sweep.runs}),
    )


def _no_curve(study: Study) -> str:
    """Why there is no learning curve at all."""
    declared = [study.ranges[metric] for metric in study.settings.metrics]
    if any(metric in run.curves.values for run in study.sweep.runs for metric in study.settings.metrics):
        apart = any(common.curves and common.start > common.stop for common in declared)
        return (
            "The runs have no range of steps in common." if apart else
            "No run with a full result has recorded a declared metric: the reasons are under Missing and Runs."
        )  # fmt: skip
    return "No run has recorded a declared metric."


def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals |= {"counted": counted, "factors": wording.factors, "number": format_number, "shown": text}
    return environment.get_template("page.html.j2")


def _contents(report: Report, tables: Mapping[str, Table], relations: bool) -> list[tuple[str, str]]:
    """The page's headings, as (id, title)."""
    headings = [
        ("answer", "Answer"),
        ("gaps", "Missing" if report.answer.gaps else ""),
        *((name, tables[name].title) for name in ("main", "hypotheses", "efficiency") if name in tables),
        *((part.id, part.title) for part in report.sections),
        ("curves", "Learning curves"),
        ("relations", "Trade-offs and distributions" if relations else ""),
        ("responses", "Responses" if report.responses else ""),
        ("metrics", tables["metrics"].title),
        ("cost", tables["cost"].title),
        ("health", "Health"),
        ("runs", tables["runs"].title),
        ("again", "Make it again"),
        ("method", "How it was computed"),
    ]
    return [(name, title) for name, title in headings if title]


def _health(report: Report) -> Table:
    has_factors = any(warning.factors for warning in report.answer.warnings)
    entries: list[Entry] = []
    for one in report.answer.warnings:
        place = (report.study.sweep.label(one.group), str(one.seed), *([one.factors] if has_factors else []))
        entries.append((one.group, (*place, one.warning, one.seen), {"seed": one.seed}))
    columns = ("method", "seed", *(["factors"] if has_factors else []), "warning", "seen")
    return table("health", "Health", columns, entries)

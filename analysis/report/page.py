"""The page: the report as one HTML file that needs nothing else, neither network nor neighbours.

Without JavaScript everything is shown; the script adds what hides, sorts, searches and points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from analysis.figures.canvas import Figure
from analysis.figures.traces import SUMMARY, summary, to_json
from analysis.findings.study import AXES, Study
from analysis.report.headline import Answer
from analysis.sections import Section
from analysis.tables.comparison import Table

_HERE = Path(__file__).parent


def page(
    study: Study,
    said: Answer,
    shown: Sequence[Table],
    drawn: Sequence[Figure],
    parts: Sequence[Section],
    look: Mapping[str, tuple[str, Any]],
    heard: Mapping[str, Any] | None,
) -> str:
    """Render the template; all text is escaped but the figures' own SVG, the style and the script. heard: the
    responses."""
    plan = study.sweep.plan
    groups = [{"name": g, "label": study.sweep.label(g), "colour": page_colour(look[g][0])} for g in study.sweep.groups]
    recorded = {metric for run in study.sweep.runs for metric in run.curves.values}
    names = {figure.name for figure in drawn}
    absent = [
        metric for asked in study.settings.drawn for metric in asked.metrics
        if (asked.name not in names if asked.kind == "histogram" else metric not in recorded)
    ]  # fmt: skip
    courses = [figure for figure in drawn if figure.name.startswith(("curve_", "band_"))]
    seeds = sorted({run.seed for run in study.sweep.runs})
    tables = {table.name: table for table in shown}
    beside = "efficiency" in tables  # the table that the curves of times stand with
    times = [figure for figure in drawn if beside and figure.name.startswith("reach_")]
    elsewhere = [*courses, *times, *(figure for part in parts for figure in part.figures)]
    relations = [figure for figure in drawn if figure not in elsewhere and figure.name != "differences"]
    command = plan.get("command")
    return render(
        "page.html.j2",
        study=study,
        contents=_contents(tables, parts, bool(relations), bool(said.gaps), heard is not None),
        heard=heard,
        health=_health(study, said),
        data=data_of(study, drawn),
        values=values_of(study, drawn),
        name=str(plan.get("experiment") or study.sweep.folder.name),
        command=command if command is None or isinstance(command, str) else " ".join(map(str, command)),
        answer=said,
        tables=tables,
        figures=drawn,
        courses=courses,
        relations=relations,
        parts=parts,
        times=times,
        unrecorded=list(dict.fromkeys(absent)) if recorded else [],
        passing=AXES[study.settings.axis],
        groups=groups,
        seeds=seeds,
    )


def render(template: str, **content: Any) -> str:
    """A template of this folder with the style and the script."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    return environment.get_template(template).render(style=style, script=script, **content)


def _contents(
    tables: Mapping[str, Table], parts: Sequence[Section], relations: bool, gaps: bool, heard: bool
) -> list[tuple[str, str]]:
    """The page's headings, as (id, title)."""
    found = [("answer", "Answer"), *([("gaps", "Missing")] if gaps else []), ("main", tables["main"].title)]
    found += [(name, tables[name].title) for name in ("hypotheses", "efficiency") if name in tables]
    found += [(part.id, part.title) for part in parts]
    found += [("curves", "Learning curves"), *([("relations", "Trade-offs and distributions")] if relations else [])]
    found += [("responses", "Responses")] if heard else []
    found += [("metrics", tables["metrics"].title), ("cost", tables["cost"].title), ("health", "Health")]
    return [*found, ("runs", tables["runs"].title), ("again", "Make it again"), ("method", "How it was computed")]


def _health(study: Study, said: Answer) -> Table:
    records = tuple({"seed": seed} for _, seed, _, _ in said.warnings)
    named = {study.sweep.label(group): group for group in study.sweep.groups}
    groups = tuple(named[row[0]] for row in said.warnings)
    return Table("health", "Health", ("method", "seed", "warning", "seen"), said.warnings, records, (), groups)


def data_of(study: Study, drawn: Sequence[Figure]) -> str:
    """What the script shows under the pointer, as JSON that cannot end its element."""
    labels = {group: study.sweep.label(group) for group in study.sweep.groups}
    figures = {figure.name: to_json(figure.traces, labels) for figure in drawn}
    level = f"{100 * (1 - study.settings.alpha):g}%"
    return orjson.dumps({"level": level, "figures": figures}).decode().replace("<", "\\u003c")


def values_of(study: Study, drawn: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """For each figure by name, the columns and rows that say what is drawn to who does not see it."""
    labels = {group: study.sweep.label(group) for group in study.sweep.groups}
    return {figure.name: {"columns": SUMMARY, "rows": summary(figure.traces, labels)} for figure in drawn}


def page_colour(colour: str) -> str:
    """The baseline's black in the page's ink."""
    return "currentColor" if colour == "#000000" else colour

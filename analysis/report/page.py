"""The page: the report as one HTML file that needs nothing else, neither network nor neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.drawing import Figure
from analysis.report.answer import Answer
from analysis.study import AXES, Study
from analysis.tables import Table

_HERE = Path(__file__).parent


def page(
    study: Study, said: Answer, shown: Sequence[Table], drawn: Sequence[Figure], look: Mapping[str, tuple[str, Any]]
) -> str:
    """Render the template; all text is escaped but the figures' own SVG, the style and the script."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    plan = study.sweep.plan
    groups = [
        {"name": g, "label": study.sweep.label(g), "colour": _page_colour(look[g][0])} for g in study.sweep.groups
    ]
    recorded = {metric for run in study.sweep.runs for metric in run.curves.values}
    names = {figure.name for figure in drawn}
    absent = [
        metric for asked in study.settings.drawn for metric in asked.metrics
        if (asked.name not in names if asked.kind == "histogram" else metric not in recorded)
    ]  # fmt: skip
    courses = [figure for figure in drawn if figure.name.startswith(("curve_", "band_"))]
    seeds = sorted({run.seed for run in study.sweep.runs})
    return environment.get_template("page.html.j2").render(
        study=study,
        plan=plan,
        name=str(plan.get("experiment") or study.sweep.folder.name),
        command=plan.get("command"),
        answer=said,
        tables={table.name: table for table in shown},
        figures=drawn,
        courses=courses,
        relations=[figure for figure in drawn if figure not in courses and figure.name != "differences"],
        unrecorded=list(dict.fromkeys(absent)) if recorded else [],
        passing=AXES[study.settings.axis],
        groups=groups,
        seeds=seeds,
        total=sum(count for _, count in said.counts),
        style=(_HERE / "style.css").read_text(encoding="utf-8"),
        script=(_HERE / "script.js").read_text(encoding="utf-8"),
    )


def _page_colour(colour: str) -> str:
    return "currentColor" if colour == "#000000" else colour

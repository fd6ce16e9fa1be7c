"""The report of an experiment: a page with the findings and their certainty; files with tables, figures and data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from analysis.data.responses import responses
from analysis.figures.figures import figures
from analysis.findings.study import Block, Comparison, Estimate, Outcome, Study, registered, study
from analysis.findings.verdicts import judge
from analysis.report.files import FORMATS, files_of, results, write_all
from analysis.report.files import Report as Report
from analysis.report.headline import answer
from analysis.report.page import page, to_csv
from analysis.sections import sections
from analysis.sections.win_rates import read_judged
from analysis.spec.metric_catalog import CLOCKS, WIN_RATE, describe
from analysis.spec.validation import KEY_ALONE, BadPlan, Objection, some
from analysis.tables import wording
from analysis.tables.comparison import tables
from analysis.tables.levels import levels

FORMAT = 1
_LISTED = 20  # metrics named
_KEY = re.compile(rb'^ {2}( {2})?"([^"]+)": [{\[]', re.MULTILINE)  # of report.json, or of an object there
_RESPONSES = "tables/responses.csv"
_WRITTEN = (
    orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
)  # fmt: skip


def write(
    folder: Path,
    figure_formats: Sequence[str] = (),
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    direction: str | None = None,
) -> Report:
    """Write FOLDER/report from FOLDER/plan.json and the run folders beside it. Same input, same bytes.

    figure_formats: in which figures are written beside SVG, "pdf" and "png". baseline, metrics,
    direction: others than the plan's; the first metric is the primary one.

    Raises analysis.data.sweep.BadPlan when FOLDER has no plan, or one that asks for something unknown, or for a metric
    that no run has recorded, or files of a judge that cannot be read.
    """
    sweep, by = read_judged(folder, baseline)
    if metrics or direction:
        sweep = sweep.about(metrics, direction)
    compared = study(sweep, sweep.asked())
    _check_recorded(compared)
    numbers = results(compared)  # before there are figures: both take much memory
    record = registered(sweep)
    judged = [(h, judge(h, compared)) for h in compared.settings.hypotheses]
    verdicts = tuple(replace(v, declared=record.declaration_of(h.id) if record else None) for h, v in judged)
    parts = tuple(sections(compared, by))
    lost = list[str]()
    further = [figure for part in parts for figure in part.figures]
    drawn = [*figures(compared, lost, further), *further]
    shown = [*tables(compared, verdicts), *(table for part in parts for table in part.tables)]
    out = folder / "report"
    report = Report(
        index=out / "index.html",
        study=compared,
        answer=replace(said := answer(compared), limits=(*said.limits, *lost)),
        tables=tuple(shown),
        verdicts=verdicts,
        figures=tuple(drawn),
        sections=parts,
        responses=responses(sweep),
    )
    files = files_of(report.tables, report.figures, figure_formats)
    files["results.csv"] = numbers
    files["report.json"] = partial(to_json, report)
    files["index.html"] = partial(page, report)
    if report.responses:
        files[_RESPONSES] = to_csv(report.responses).encode()
    former = written(out) | {_RESPONSES, "results.parquet"}  # older versions wrote the latter
    write_all(out, files)
    for name in sorted(former - set(files)):  # what an earlier plan had and this one has not
        (out / name).unlink(missing_ok=True)
    return report


def _check_recorded(compared: Study) -> None:
    """Refuse a primary metric that no run has recorded although one is done, and none where the plan declares none."""
    sweep, metric = compared.sweep, compared.settings.metric
    declared = bool((sweep.plan.get("analysis") or {}).get("primary", {}).get("metric"))
    if any(estimate.recorded for estimate in compared.primary.estimates) or metric == WIN_RATE:
        return
    known = {name for run in sweep.runs for name in run.curves.values} - {*CLOCKS.values()}
    if declared and (describe(metric).label != metric or not (known and any(run.done for run in sweep.runs))):
        return  # the plan has compared it with what the trainer writes, or it may still come
    near = sorted(known, key=lambda name: (-SequenceMatcher(None, metric if declared else "", name).ratio(), name))
    rule = f"{'no run has recorded it' if declared else 'no metric is declared'}; the recorded metrics are "
    rule += some(near, _LISTED)
    fix = f"rlsweep report {sweep.place} --metric {near[0] if declared else 'NAME'}"
    if metric in sweep.plan.get("not_read", ()):
        rule, fix = "the import did not read it", f"repeat it with --metric {metric} first: {sweep.plan['command']}"
    elif not known:
        fix = 'let the program log: rlsweep.log(step, {"NAME": x})'
    asked = metric if declared else KEY_ALONE
    raise BadPlan(str(Objection("analysis.primary.metric", asked, rule, fix, str(sweep.folder / "plan.json"))))


def decided(compared: Study) -> str:
    """For a gate: better if every comparison of the primary measure is decided for the better, worse if one is decided
    for the worse, else undecided."""
    measure, outcomes = compared.primary.measure, [pair.outcome for pair in compared.primary.comparisons]
    better, worse = (Outcome.HIGHER, Outcome.LOWER)[:: int(measure.sign)]
    if measure.better is None or not outcomes:
        return "undecided"
    return "worse" if worse in outcomes else "better" if {*outcomes} == {better} else "undecided"


def to_json(report: Report) -> bytes:
    """Everything in the report, for machines; a number that does not exist is null."""
    compared, plan = report.study, report.study.sweep.plan
    answered, runs = report.responses, {run.id: run for run in compared.sweep.runs}.values()

    def with_gaps(of: Estimate | Comparison, **more: object) -> dict[str, object]:
        return _fields(of) | {"gaps": [text for gap in of.gaps for text in wording.gaps([gap])]} | more

    def comparison(block: Block) -> dict[str, object]:
        measure = block.measure
        words = [wording.outcome(pair, measure, compared.sweep, compared.settings.alpha) for pair in block.every]
        return {
            "metric": measure.metric,
            "summary": measure.summary,
            "direction": measure.better,
            "threshold": measure.threshold,
            "start": block.start,
            "stop": block.stop,
            "primary": block is compared.primary,
            "groups": [with_gaps(e, label=compared.sweep.label(e.group)) for e in block.estimates],
            "pairs": [with_gaps(p, verdict=word) for p, word in zip(block.every, words, strict=True)],
            "runs": dict(sorted(block.values.items())),
        }

    content = {
        "format": FORMAT,
        "experiment": plan.get("experiment"),
        "command": plan.get("command"),
        "answer": report.answer,
        "settings": compared.settings.model_dump(),
        "comparisons": [comparison(block) for block in compared.blocks],
        "levels": levels(compared),
        "hypotheses": wording.verdicts_of(report.verdicts, compared.sweep, compared.settings),
        "tables": {table.name: table.records for table in report.tables},
        "notes": {table.name: table.notes for table in report.tables if table.notes},
        "figures": {figure.name: {"title": figure.title, "caption": figure.caption} for figure in report.figures},
        "responses": {"step": answered.step, "contrasts": answered.contrasts} if answered else None,
        "bad_lines": [bad for run in runs for bad in run.curves.bad],
    }
    return orjson.dumps(content, _fields, _WRITTEN)


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a dataclass, without what it has cached."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def written(out: Path) -> set[str]:
    """The tables and figures of the report in a folder, by their paths; empty where there is no report."""
    try:
        content = (out / "report.json").read_bytes()
    except OSError:
        return set()
    names, kind = set(), ""
    for match in _KEY.finditer(content):  # as objects, a long report takes many times its file
        indent, key = match[1], match[2].decode()
        kind = kind if indent else key
        names |= {f"{kind}/{Path(key).name}.{suffix}" for suffix in FORMATS.get(kind, ()) if indent}
    return names

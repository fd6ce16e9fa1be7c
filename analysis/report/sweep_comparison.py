"""The report on two sweeps side by side: a folder of its own, with the same files as a report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from analysis.data.sweep import BadPlan, Sweep, read_sweep
from analysis.figures.canvas import Figure, colours
from analysis.figures.figures import differences
from analysis.findings.study import Block, Comparison, Estimate
from analysis.findings.sweep_comparison import Beside, beside
from analysis.numbers import format_estimate
from analysis.report.files import files_of, plain, write_all
from analysis.report.headline import averaged
from analysis.report.missing import lacking, told
from analysis.report.page import data_of, page_colour, render, values_of
from analysis.sections.unpaired import unpaired_table
from analysis.spec.metric_catalog import capital
from analysis.spec.settings import settings
from analysis.tables.comparison import Table, better, comparison_cells

FORMAT = 1
_MOST = 200  # letters of a setting on the page; the CSV has all


def write_sides(a: Path, b: Path, out: Path | None = None) -> tuple[Path, list[str]]:
    """Compare the sweeps in folders a and b, by the settings of a: the page's path, and what it says first.

    out: by default compare-A-B beside a, by the folders' names. Raises BadPlan when a folder has no plan, when one asks
    for something unknown, or when both are the same folder.
    """
    if a.resolve() == b.resolve():
        raise BadPlan(f"{a}: both folders are the same; give two experiments to compare")
    sweeps = read_sweep(a), read_sweep(b)
    asked = settings(sweeps[0].plan.get("analysis"), str(a / "plan.json"), sweeps[0].groups, sweeps[0].baseline)
    found = beside(*sweeps, asked)
    drawn = differences(found.study, "A")
    table = comparison(found)
    apart = unpaired_table(found.study)
    tables = [table, *([apart] if apart.rows else []), *([configuration(found)] if found.differences else [])]
    out = out or a.parent / f"compare-{a.name}-{b.name}"
    files = files_of(tables, drawn)
    files["report.json"] = _json(found, tables)
    files["index.html"] = _page(found, tables, drawn).encode()
    write_all(out, files)
    shown = {table.name for table in tables}
    gone = [
        old
        for name in ("unpaired", "configuration")
        if name not in shown
        for old in sorted((out / "tables").glob(f"{name}.*"))
    ]
    for old in [*gone, *([] if drawn else sorted((out / "figures").glob("differences.*")))]:
        old.unlink()
    title = f"{capital(found.study.primary.measure.title)}, B minus A:"
    return out / "index.html", [title, *(_says(found) or ["No method is in both sweeps: there is nothing to compare."])]


def comparison(found: Beside) -> Table:
    """Each group of both sweeps, B minus A, and on its own each group of one only."""
    rows, records, groups = [], [], []
    for block in found.study.blocks:
        by_group = {estimate.group: estimate for estimate in block.estimates}
        for compared in block.comparisons:
            one, other = by_group[compared.baseline], by_group[compared.group]
            rows.append(_row(found, block, compared, one, other))
            records.append(_record(block, compared, one, other))
            groups.append(compared.group)
    alpha = found.study.settings.alpha
    notes = (
        f"Difference: B minus A over the seeds that both have, with its {100 * (1 - alpha):g}% t interval. A seed of "
        "which both have the same run is no pair.",
        "Everything is measured on the steps that all runs of both sweeps have in common, by the settings of A.",
        "Adjusted p: over the methods of one measure; measures are not adjusted for one another.",
    )
    columns = ("measure", "method", "seeds", "A", "B", "difference", "better in", "p paired t", "p sign-flip",
               "p adjusted", "verdict")  # fmt: skip
    return Table("comparison", "B against A", columns, tuple(rows), tuple(records), notes, tuple(groups))


def _row(found: Beside, block: Block, compared: Comparison, one: Estimate, other: Estimate) -> tuple[str, ...]:
    result = compared.result
    planned = max(one.planned, other.planned)
    return (
        capital(block.measure.title),
        found.a.label(compared.group.partition("/")[2]),
        str(result.n) if result.n == planned else f"{result.n} of {planned}",
        format_estimate(one.mean, one.interval) or "-",
        format_estimate(other.mean, other.interval) or "-",
        *comparison_cells(block, compared, found.study.settings.alpha),
    )


def _record(block: Block, compared: Comparison, one: Estimate, other: Estimate) -> Mapping[str, Any]:
    result = compared.result
    low, high = result.interval or (None, None)
    return {
        "metric": block.measure.metric, "summary": block.measure.summary, "threshold": block.measure.threshold,
        "group": compared.group.partition("/")[2], "pairs": result.n, "mean_a": one.mean, "mean_b": other.mean,
        "difference": result.mean_difference, "low": low, "high": high, "better": result.better, "p_t": result.p_t,
        "p_signflip": result.p_signflip, "p_adjusted": compared.adjusted, "verdict": compared.verdict,
        "gaps": "; ".join(compared.gaps),
    }  # fmt: skip


def configuration(found: Beside) -> Table:
    """The settings that differ, by their keys; values as JSON writes them."""
    rows, records = [], []
    for one in found.differences:
        everywhere = len(one.where) > 1 and set(one.where) == set(found.paired)
        where = "every method" if everywhere else ", ".join(one.where)
        rows.append((where, one.key, _short(one.a), _short(one.b)))
        records.append({"of": where, "key": one.key, "a": one.a, "b": one.b})
    notes = ("As frozen in the plans and in the runs' configurations; a dash where a side does not have the key.",)
    return Table("configuration", "What differs", ("of", "key", "A", "B"), tuple(rows), tuple(records), notes)


def _short(text: str) -> str:
    return text if 0 < len(text) <= _MOST else f"{text[:_MOST]}…" if text else "-"


def _says(found: Beside) -> list[str]:
    """The primary measure, a sentence a method, that one sweep is longer, and what is averaged."""
    block = found.study.primary
    lines = []
    for compared in block.comparisons:
        name, result = found.a.label(compared.group.partition("/")[2]), compared.result
        shown = format_estimate(result.mean_difference, result.interval, signed=True)
        unit = f" {block.measure.unit}" if block.measure.unit else ""
        count = f", {better(result, block.measure)} seeds" if block.measure.better is None else (
            f", better in {result.better} of {result.n} seeds"
        )  # fmt: skip
        lines.append(f"{name}: {shown}{unit}{count}; {compared.verdict}." if shown else f"{name}: {compared.verdict}.")
    ends = [max((float(run.curves.steps[-1]) for run in sweep.runs if run.curves.steps.size), default=0.0)
            for sweep in (found.a, found.b)]  # fmt: skip
    if lines and ends[0] != ends[1]:
        lines.append(
            f"Measured on the steps that all runs have: those of A go to step {ends[0]:g}, those of B to step "
            f"{ends[1]:g}. The values are not those of each sweep's own report."
        )
    return lines + averaged(found.study) if lines else []


def _described(found: Beside, side: str, sweep: Sweep) -> dict[str, Any]:
    runs = len({run.id for run in sweep.runs})
    lost = [(run, why) for run, why in lacking(found.study) if run.group.startswith(f"{side}/")]
    command = sweep.plan.get("command")
    return {
        "side": side,
        "name": str(sweep.plan.get("experiment") or sweep.folder.name),
        "folder": sweep.folder.name,
        "plan": hashlib.sha256(orjson.dumps(dict(sweep.plan), option=orjson.OPT_SORT_KEYS)).hexdigest()[:12],
        "runs": runs,
        "usable": runs - len({run.id for run, _ in lost}),
        "seeds": ", ".join(str(seed) for seed in sorted({run.seed for run in sweep.runs})),
        "command": command if command is None or isinstance(command, str) else " ".join(map(str, command)),
        "gaps": [told(sweep.label(run.group.partition("/")[2]), run, why) for run, why in lost],
    }


def _page(found: Beside, tables: list[Table], drawn: list[Figure]) -> str:
    look = colours(found.study.sweep.groups)
    groups = [
        {"name": f"B/{group}", "label": found.a.label(group), "colour": page_colour(look[f"B/{group}"][0])}
        for group in found.paired
    ]
    sides = [_described(found, "A", found.a), _described(found, "B", found.b)]
    return render(
        "sides.html.j2",
        sides=sides,
        title=capital(found.study.primary.measure.title),
        says=_says(found),
        shared=len(found.shared),
        paired=len(found.paired),
        alone={
            side: ", ".join(sweep.label(group) for group in found.alone[side])
            for side, sweep in (("A", found.a), ("B", found.b))
        },
        groups=groups,
        tables={table.name: table for table in tables},
        figures=drawn,
        values=values_of(found.study, drawn),
        data=data_of(found.study, drawn),
    )


def _json(found: Beside, tables: list[Table]) -> bytes:
    content = {
        "format": FORMAT,
        "sides": [_described(found, "A", found.a), _described(found, "B", found.b)],
        "settings": plain(found.study.settings),
        "shared_runs": list(found.shared),
        "paired_groups": list(found.paired),
        "only_in": plain(found.alone),
        "tables": {table.name: plain(table.records) for table in tables},
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

"""The report on two sweeps side by side: a folder of its own, with the same files as a report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from analysis.data.cells import named
from analysis.data.sweep import BadPlan, Cell, Sweep
from analysis.figures.canvas import Figure
from analysis.figures.figures import differences
from analysis.findings.common_cells import LeftOutBecause
from analysis.findings.study import Block
from analysis.findings.sweep_comparison import SweepComparison, compare_sweeps
from analysis.findings.worst_case import WorstCase, worst_cases
from analysis.judging.results import read_judged
from analysis.numbers import format_estimate
from analysis.report.content import command_of
from analysis.report.files import files_of, plain, write_all
from analysis.report.headline import averaged
from analysis.report.missing import gap_of, lacking
from analysis.report.page import choices, data_of, render, values_of
from analysis.sections.unpaired import unpaired_table
from analysis.spec.metric_catalog import capital
from analysis.spec.settings import settings
from analysis.tables import wording
from analysis.tables.comparison import COLUMNS, better, comparison_cells, figures, worst
from analysis.tables.levels import collapse_lines, selection_lines
from analysis.tables.table import Entry, Table, share, table

FORMAT = 1
_WHY = {
    LeftOutBecause.ONLY_A: "only in A",
    LeftOutBecause.ONLY_B: "only in B",
    LeftOutBecause.SAME_RUNS: "the same runs in both",
}
_CELLS = 6  # of a method, whose differences are listed one by one
_MOST = 200  # letters of a setting on the page; the CSV has all


def write_comparison(a: Path, b: Path, out: Path | None = None) -> tuple[Path, list[str]]:
    """Compare the sweeps in folders a and b, by the settings of a; returns the page's path and its first lines.

    out: by default compare-A-B beside a, by the folders' names. Raises BadPlan when a folder has no plan, when a plan
    asks for something unknown, or when both folders are the same.
    """
    if a.resolve() == b.resolve():
        raise BadPlan(f"{a}: both folders are the same; give two experiments to compare")
    sweeps = read_judged(a)[0], read_judged(b)[0]
    asked = settings(sweeps[0].plan.get("analysis"), str(a / "plan.json"), sweeps[0].groups, sweeps[0].baseline)
    compared = compare_sweeps(*sweeps, asked)
    drawn = differences(compared.study, "A")
    tables = [comparison(compared), unpaired_table(compared.study), configuration(compared)]
    tables = [tables[0], *(table for table in tables[1:] if table.rows)]
    out = out or a.parent / f"compare-{a.name}-{b.name}"
    files = files_of(tables, drawn)
    files["report.json"] = _json(compared, tables)
    files["index.html"] = _page(compared, tables, drawn).encode()
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
    title = f"{capital(compared.study.primary.measure.title)}, B minus A:"
    lines = _says(compared) or ["No method is in both sweeps: there is nothing to compare."]
    return out / "index.html", [title, *lines]


def comparison(found: SweepComparison) -> Table:
    """Each group of both sweeps, B minus A."""
    entries: list[Entry] = []
    excluded = _excluded_bounds(found)
    for block in found.study.blocks:
        cases = worst_cases(found.study, block)
        excluded += _overturned(found, block, cases)
        for compared in block.comparisons:
            a, b = block.estimate(compared.baseline), block.estimate(compared.group)
            measure, name = block.measure, compared.group.partition("/")[2]
            cells = comparison_cells(found.study, measure, compared)
            row = (
                capital(measure.title), found.a.label(name), share(compared.n, compared.planned),
                *(format_estimate(estimate.mean, estimate.interval) or "-" for estimate in (a, b)), *cells,
            )  # fmt: skip
            record = {
                "metric": measure.metric, "summary": measure.summary, "threshold": measure.threshold, "group": name,
                "mean_a": a.mean, "mean_b": b.mean, **figures(compared, measure), "verdict": cells[-1],
                "gaps": "; ".join(map(wording.gap, compared.gaps)), **worst(cases.get(compared.group)),
            }  # fmt: skip
            entries.append((compared.group, row, record))
    notes = (
        "A, B and the difference, which is B minus A, are of the cells that both have. A seed of which both have the "
        "same run is left out.",
        wording.standard(found.study),
        "Everything is measured on the steps that all compared runs have in common, by the settings of A.",
        *_left_out(found),
        *selection_lines(found.study, found.study.blocks),
        *_seeds_apart(found, found.study.blocks),
        *excluded,
    )
    columns = ("measure", "method", "seeds", "A", "B", *COLUMNS[found.study.settings.pairing])
    return table("comparison", "B against A", columns, entries, notes)


def _excluded_bounds(found: SweepComparison) -> list[str]:
    """How far the excluded runs could move the differences on the primary measure."""
    block = found.study.primary
    return wording.excluded_bounds(worst_cases(found.study, block), block.measure, found.study.sweep)


def _seeds_apart(found: SweepComparison, blocks: Sequence[Block]) -> list[str]:
    """The compared methods of a sweep whose seeds fall into two clusters."""
    compared = {f"{side}/{group}" for side in ("A", "B") for group in found.paired}
    kept = [replace(b, estimates=tuple(e for e in b.estimates if e.group in compared)) for b in blocks]
    return wording.seeds_apart(kept, found.study.sweep)


def _overturned(found: SweepComparison, block: Block, cases: Mapping[str, WorstCase]) -> list[str]:
    """The outcomes on a measure that the excluded runs could change."""
    return wording.overturned(cases, block.measure, found.study.sweep, found.study.settings.alpha)


def configuration(found: SweepComparison) -> Table:
    """The settings that differ, by their keys; values as JSON writes them."""
    entries: list[Entry] = []
    for difference in found.differences:
        everywhere = len(difference.where) > 1 and set(difference.where) == set(found.paired)
        where = "every method" if everywhere else ", ".join(difference.where)
        record = {"of": where, "key": difference.key, "a": difference.a, "b": difference.b}
        entries.append(("", (where, difference.key, _short(difference.a), _short(difference.b)), record))
    notes = ("As frozen in the plans and in the runs' configurations; a dash where a side does not have the key.",)
    return table("configuration", "What differs", ("of", "key", "A", "B"), entries, notes)


def _short(text: str) -> str:
    return text if 0 < len(text) <= _MOST else f"{text[:_MOST]}…" if text else "-"


def _says(found: SweepComparison) -> list[str]:
    """A sentence for each method on the primary measure, one if a sweep is longer than the other, and what is
    averaged."""
    block = found.study.primary
    lines = []
    for compared in block.comparisons:
        name, result = found.a.label(compared.group.partition("/")[2]), compared.result
        shown = format_estimate(result.mean_difference, compared.interval, signed=True)
        unit = f" {block.measure.unit}" if block.measure.unit else ""
        word, unit_of = (
            "better in " if block.measure.better else "",
            " seeds" if compared.contrast.paired else " of runs",
        )
        count = f", {word}{better(result, block.measure)}{unit_of}"
        outcome = wording.outcome(compared, block.measure, found.study.sweep, found.study.settings.alpha)
        lines.append(f"{name}: {shown}{unit}{count}; {outcome}." if shown else f"{name}: {outcome}.")
        if by_cell := found.by_cell(compared.group.partition("/")[2]):
            lines.append(f"{name} by cell: {_by_cell(by_cell, block.measure.sign)}.")
    ends = [max((float(run.curves.steps[-1]) for run in sweep.runs if run.curves.steps.size), default=0.0)
            for sweep in (found.a, found.b)]  # fmt: skip
    if lines and ends[0] != ends[1]:
        lines.append(
            f"Measured on the steps that all runs have: those of A go to step {ends[0]:g}, those of B to step "
            f"{ends[1]:g}. The values are not those of each sweep's own report."
        )
    lines += _left_out(found) if lines else []
    over = [*_overturned(found, block, worst_cases(found.study, block))]
    over += [*_seeds_apart(found, [block]), *selection_lines(found.study, [block]), *averaged(found.study)]
    return [*lines, *over, *collapse_lines(found.study)] if lines else []


def _by_cell(differences: Mapping[Cell, float], sign: float) -> str:
    """Each cell's difference; of many cells the two with which B gains and loses most."""
    cells = sorted(differences, key=lambda cell: -sign * differences[cell])
    shown = [f"{format_estimate(differences[cell], None, signed=True)} at {wording.factors(cell)}" for cell in cells]
    if len(shown) <= _CELLS:
        return ", ".join(shown)
    return f"from {shown[0]} to {shown[-1]}, of {len(shown)} cells"


def _left_out(found: SweepComparison) -> list[str]:
    """A sentence for each reason for which cells are not compared: with the cells, and the methods that they are of."""
    groups: dict[tuple[LeftOutBecause, str], list[str]] = {}
    for out in found.left_out:
        groups.setdefault((out.why, named(out.cells, out.planned)), []).append(found.a.label(out.group))
    return [f"Not compared, {_WHY[why]}: {cells} ({', '.join(labels)})." for (why, cells), labels in groups.items()]


def _described(found: SweepComparison, side: str, sweep: Sweep) -> dict[str, Any]:
    runs = len({run.id for run in sweep.runs})
    lost = [(run, why) for run, why in lacking(found.study) if run.group.startswith(f"{side}/")]
    compared = {run.id for run in found.study.sweep.runs}
    lost += [(run, run.problem) for run in sweep.runs if run.problem and f"{side}:{run.id}" not in compared]
    return {
        "side": side,
        "name": str(sweep.plan.get("experiment") or sweep.folder.name),
        "folder": sweep.folder.name,
        "plan": hashlib.sha256(orjson.dumps(dict(sweep.plan), option=orjson.OPT_SORT_KEYS)).hexdigest()[:12],
        "runs": runs,
        "usable": runs - len({run.id.removeprefix(f"{side}:") for run, _ in lost}),
        "seeds": ", ".join(str(seed) for seed in sorted({run.seed for run in sweep.runs})),
        "command": command_of(sweep.plan),
        "gaps": [gap_of(run, why, sweep.label(run.group.removeprefix(f"{side}/"))) for run, why in lost],
    }


def _page(found: SweepComparison, tables: list[Table], drawn: list[Figure]) -> str:
    labels = {f"B/{group}": found.a.label(group) for group in found.paired}
    sides = [_described(found, "A", found.a), _described(found, "B", found.b)]
    return render(
        "sweep_comparison.html.j2",
        sides=sides,
        title=capital(found.study.primary.measure.title),
        says=_says(found),
        shared=len(found.shared),
        paired=len(found.paired),
        alone={
            side: ", ".join(sweep.label(group) for group in found.alone[side])
            for side, sweep in (("A", found.a), ("B", found.b))
        },
        groups=choices(found.study, labels),
        tables={table.name: table for table in tables},
        figures=drawn,
        values=values_of(found.study, drawn),
        data=data_of(found.study, drawn),
    )


def _json(found: SweepComparison, tables: list[Table]) -> bytes:
    content = {
        "format": FORMAT,
        "sides": [_described(found, "A", found.a), _described(found, "B", found.b)],
        "settings": plain(found.study.settings),
        "shared_runs": list(found.shared),
        "paired_groups": list(found.paired),
        "only_in": plain(found.alone),
        "left_out": plain(found.left_out),
        "tables": {table.name: plain(table.records) for table in tables},
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

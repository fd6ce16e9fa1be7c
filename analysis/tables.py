"""The tables of a report: built once, written as Markdown, LaTeX (booktabs), CSV and aligned text.

The displayed cells are rounded; CSV holds the numbers themselves, in columns of their own.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.compare import PairedResult
from analysis.metrics import capital, caveats, describe
from analysis.numbers import format_estimate, format_number, format_p
from analysis.read import Run
from analysis.study import Block, Comparison, Estimate, Measure, Study

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """name: of its files.

    columns: headings; rows: displayed cells; records: the raw numbers, one a row. notes stand below.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # the group of each row, where rows belong to groups


_COLUMNS = (
    "measure", "method", "seeds", "value", "difference", "better in", "p paired t", "p sign-flip", "p adjusted",
    "verdict",
)  # fmt: skip


def tables(study: Study) -> list[Table]:
    """All tables of the report, the main comparison first."""
    return [main(study), metrics(study), cost(study), runs(study)]


def main(study: Study) -> Table:
    """Each group against the baseline: the primary measure, then the others of its metric, then time-to."""
    chosen = [study.primary]
    for block in study.blocks[1:]:
        if block.measure.metric == study.settings.metric or block.measure.summary == "time_to":
            chosen.append(block)
    table = _comparison("main", "Main comparison", study, chosen)
    level = f"{100 * (1 - study.settings.alpha):g}%"
    notes = [
        f"Value: mean over seeds. Difference: group minus baseline over the same seeds, with its {level} t interval.",
        f"The first measure is the declared question; the others are secondary. {_adjusted(study)}",
    ]
    return _with_notes(table, tuple(notes) + table.notes)


def metrics(study: Study) -> Table:
    """Every declared metric: final value and area under the curve."""
    chosen = [block for block in study.blocks if block.measure.summary in ("final", "auc")]
    chosen.sort(key=lambda block: study.settings.metrics.index(block.measure.metric))
    table = _comparison("metrics", "All declared metrics", study, chosen)
    return _with_notes(table, ("Secondary: these comparisons were not declared as the question.", *table.notes))


def _comparison(name: str, title: str, study: Study, blocks: Sequence[Block]) -> Table:
    rows, records, groups = [], [], []
    notes: dict[str, None] = {}
    gaps: dict[tuple[str, str], list[str]] = {}
    begin = min((float(run.curves.steps[0]) for run in study.sweep.runs if run.curves.steps.size), default=0.0)
    for block in blocks:
        label = capital(describe(block.measure.metric).label)
        notes.update(dict.fromkeys(caveats([block.measure.metric])))
        if block.measure.origin:
            notes[f"{capital(block.measure.title)}: threshold {block.measure.origin}; {_range(block)}."] = None
        without = [study.sweep.label(estimate.group) for estimate in block.estimates if not estimate.recorded]
        if without:
            notes[f"{label}: not recorded by {', '.join(without)}."] = None
        if block.measure.summary == "auc" and block.start > begin and any(e.seeds for e in block.estimates):
            notes[f"{label}: the area is from step {block.start:g}, the first at which every run has it."] = None
        by_group = {comparison.group: comparison for comparison in block.comparisons}
        for estimate in block.estimates:
            comparison = by_group.get(estimate.group)
            rows.append(_row(study, block, estimate, comparison))
            records.append(_record(study, block, estimate, comparison))
            groups.append(estimate.group)
            if estimate.gaps:
                gaps.setdefault((estimate.group, "; ".join(estimate.gaps)), []).append(block.measure.title)
            for text in comparison.notes if comparison else ():
                notes[f"{block.measure.title}: {text}."] = None
    for (group, why), measures in gaps.items():
        having = sum(estimate.recorded for block in blocks for estimate in block.estimates if estimate.group == group)
        text = f"{study.sweep.label(group)}: {why}."
        notes[text if len(measures) == having else f"{capital(', '.join(measures))}: {text}"] = None
    return Table(name, title, _COLUMNS, tuple(rows), tuple(records), tuple(notes), tuple(groups))


def _row(study: Study, block: Block, estimate: Estimate, comparison: Comparison | None) -> tuple[str, ...]:
    alpha = study.settings.alpha
    n = len(estimate.seeds)
    seeds = "-" if not estimate.recorded else str(n) if n == estimate.planned else f"{n} of {estimate.planned}"
    value = format_estimate(estimate.mean, estimate.interval) or "-"
    if estimate.reached is not None:
        value += f" (reached {estimate.reached[0]} of {estimate.reached[1]})"
    row = (capital(block.measure.title), study.sweep.label(estimate.group), seeds, value)
    if comparison is None:
        return (*row, "", "", "", "", "", "baseline" if estimate.group == study.sweep.baseline else "")
    result = comparison.result
    return (
        *row,
        format_estimate(result.mean_difference, result.interval, signed=True) or "-",
        better(result, block.measure),
        format_p(result.p_t, alpha) or "-",
        format_p(result.p_signflip, alpha) or "-",
        format_p(comparison.adjusted, alpha) or "-",
        comparison.verdict,
    )


def better(result: PairedResult, measure: Measure) -> str:
    """In how many seeds the group is better than the baseline (higher, where neither way is better)."""
    if result.n == 0:
        return "-"
    return f"{result.better} of {result.n}" + ("" if measure.better else " higher")


def _record(study: Study, block: Block, estimate: Estimate, comparison: Comparison | None) -> Record:
    low, high = estimate.interval or (None, None)
    result = comparison.result if comparison else None
    d_low, d_high = (result.interval if result else None) or (None, None)
    return {
        "metric": block.measure.metric,
        "summary": block.measure.summary,
        "threshold": block.measure.threshold,
        "unit": block.measure.unit,
        "group": estimate.group,
        "label": study.sweep.label(estimate.group),
        "seeds": len(estimate.seeds),
        "seeds_planned": estimate.planned,
        "reached": estimate.reached[0] if estimate.reached else None,
        "runs": estimate.reached[1] if estimate.reached else None,
        "mean": estimate.mean,
        "low": low,
        "high": high,
        "pairs": result.n if result else None,
        "difference": result.mean_difference if result else None,
        "difference_low": d_low,
        "difference_high": d_high,
        "d_z": result.d_z if result else None,
        "better": result.better if result else None,
        "p_t": result.p_t if result else None,
        "p_signflip": result.p_signflip if result else None,
        "p_wilcoxon": result.p_wilcoxon if result else None,
        "p_adjusted": comparison.adjusted if comparison else None,
        "floor": result.floor if result else None,
        "seeds_needed": result.seeds_needed if result else None,
        "verdict": comparison.verdict if comparison else None,
        "reason": result.reason if result else None,
    }


COSTS = {
    "train_seconds": ("training time", "s"),
    "steps": ("steps", "steps"),
    "samples": ("responses", "responses"),
    "tokens": ("tokens", "tokens"),
}


def cost(study: Study) -> Table:
    """What each group cost, as its runs reported: mean a run, and the sum."""
    rows, records = [], []
    for group in study.sweep.groups:
        members = [run for run in study.sweep.runs if run.group == group]
        reported = [run for run in members if run.summary]
        counted = str(len(reported)) if len(reported) == len(members) else f"{len(reported)} of {len(members)}"
        row = [study.sweep.label(group), counted]
        record: dict[str, Any] = {"group": group, "runs": len(reported), "planned": len(members)}
        for key in COSTS:
            numbers = [number for run in reported if (number := _number(run.summary.get(key))) is not None]
            total = sum(numbers) if numbers else None
            mean = total / len(numbers) if total is not None else None
            record |= {f"{key}_mean": mean, f"{key}_total": total}
            row += [format_number(mean, 3) or "-", format_number(total, 3) or "-"]
        rows.append(tuple(row))
        records.append(record)
    heads = [text for label, unit in COSTS.values() for text in (f"{_heading(label, unit)} a run", f"{label} in all")]
    notes = ("As the runs reported at their end; a run that did not end well reported nothing and is not counted.",)
    return Table("cost", "Cost", ("method", "runs", *heads), tuple(rows), tuple(records), notes, study.sweep.groups)


def runs(study: Study) -> Table:
    """Every planned run: id, group, seed, factors, state, steps, commit, folder, and what is wrong with it."""
    rows, records = [], []
    for run in study.sweep.runs:
        cell = ", ".join(f"{label} = {level}" for label, level in run.cell)
        steps = int(run.curves.steps[-1]) if run.curves.steps.size else 0
        commit = str(run.provenance.get("commit") or "")[:12] + (" + changes" if run.provenance.get("dirty") else "")
        rows.append(
            (run.id, study.sweep.label(run.group), str(run.seed), cell, run.state, str(run.attempt), str(steps), commit,
             run.folder, remark(run))
        )  # fmt: skip
        records.append(
            {"id": run.id, "group": run.group, "seed": run.seed, "factors": cell, "state": run.state, "attempt":
            run.attempt,
             "steps": steps, "commit": commit, "folder": run.folder, "remark": remark(run)}
        )  # fmt: skip
    columns = ("run", "method", "seed", "factors", "state", "attempt", "steps", "commit", "folder", "remark")
    return Table(
        "runs", "The runs", columns, tuple(rows), tuple(records), (), tuple(run.group for run in study.sweep.runs)
    )


def remark(run: Run) -> str:
    """What a reader must know about a run: why it has no result, and what its files lacked."""
    parts = [run.problem] if run.problem else []
    if run.curves.bad_count:
        named = "; ".join(f"line {bad.line} {bad.why}" for bad in run.curves.bad[:3])
        parts.append(f"{run.curves.bad_count} bad lines left out ({named})")
    if run.curves.superseded:
        parts.append(f"{run.curves.superseded} steps superseded by a later attempt")
    if run.curves.not_finite:
        parts.append("not finite: " + ", ".join(f"{key} {n} times" for key, n in sorted(run.curves.not_finite.items())))
    return "; ".join(parts)


def _adjusted(study: Study) -> str:
    found = study.primary.family
    if found is None:
        return ""
    how = {
        "max_t": "max-T with shared sign flips (exact)",
        "holm": f"Holm's adjustment of the {found.test} p",
        "bh": f"Benjamini and Hochberg's adjustment of the {found.test} p",
    }[found.method]
    size = len(study.primary.comparisons)
    over = f"the {size} comparisons" if size > 1 else "the one comparison"
    return f"Adjusted p: {how} over {over} of one measure; measures are not adjusted for one another."


def _range(block: Block) -> str:
    return f"budget {block.stop:g} steps"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value else None


def _heading(label: str, unit: str) -> str:
    return label if label == unit else f"{label} ({unit})" if unit == "s" else label


def _with_notes(table: Table, notes: tuple[str, ...]) -> Table:
    return Table(table.name, table.title, table.columns, table.rows, table.records, notes, table.groups)


# ---------------------------------------------------------------- formats


def to_markdown(table: Table) -> str:
    """GitHub's table, with title and notes."""

    def line(cells: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for cell in cells)
            + " |"
        )

    lines = [f"## {table.title}", "", line(table.columns), "|" + " --- |" * len(table.columns), *map(line, table.rows)]
    if table.notes:
        lines += ["", *(f"* {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """The raw numbers, full precision; an empty field where there is none."""
    out = io.StringIO()
    fields = list(table.records[0]) if table.records else list(table.columns)
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.records)
    return out.getvalue()


def to_text(table: Table) -> str:
    """Aligned columns for a terminal that is none."""
    widths = [max(len(row[i]) for row in (table.columns, *table.rows)) for i in range(len(table.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in
             (table.columns, tuple("-" * width for width in widths), *table.rows)]  # fmt: skip
    return "\n".join([table.title, *lines])


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$", '"': "''", "'": "'",
    "\N{MINUS SIGN}": "$-$", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{INFINITY}": r"$\infty$", "\N{EN DASH}": "--", "\N{EM DASH}": "---", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{LESS-THAN OR EQUAL TO}": r"$\le$", "\N{GREATER-THAN OR EQUAL TO}": r"$\ge$", "\N{RIGHTWARDS ARROW}": r"$\to$",
    "\N{NO-BREAK SPACE}": "~", "\N{GREEK SMALL LETTER OMICRON}": "o", "\n": " ", "\t": " ",
}  # fmt: skip
_GREEK = {
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\epsilon$", "ζ": r"$\zeta$",
    "η": r"$\eta$", "θ": r"$\theta$", "ι": r"$\iota$", "κ": r"$\kappa$", "λ": r"$\lambda$", "μ": r"$\mu$",
    "ν": r"$\nu$", "ξ": r"$\xi$", "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "υ": r"$\upsilon$",
    "φ": r"$\phi$", "χ": r"$\chi$", "ψ": r"$\psi$", "ω": r"$\omega$", "Γ": r"$\Gamma$", "Δ": r"$\Delta$",
    "Θ": r"$\Theta$", "Λ": r"$\Lambda$", "Ξ": r"$\Xi$", "Π": r"$\Pi$", "Σ": r"$\Sigma$", "Φ": r"$\Phi$",
    "Ψ": r"$\Psi$", "Ω": r"$\Omega$",
}  # fmt: skip


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it is; a character that pdfLaTeX has no font for becomes its code point, U+4E2D."""
    out = []
    for place, char in enumerate(text):
        if char == "-" and re.match(r"-\.?\d", text[place:]) and (place == 0 or not text[place - 1].isalnum()):
            out.append("$-$")
        elif char in _LATEX or char in _GREEK:
            out.append(_LATEX.get(char) or _GREEK[char])
        elif " " <= char <= "~" or (
            "\u00c0" <= char <= "\u017e" and char not in "\u00d7\u00f7\u0132\u0133\u0138\u0149\u0166\u0167"
        ):
            out.append(char)
        else:
            out.append(f"U+{ord(char):04X}")
    return "".join(out)


def to_latex(table: Table) -> str:
    """A tabular with booktabs rules, to be read with \\input; text columns left, the others right."""
    left = {"measure", "method", "verdict", "run", "factors", "state", "commit", "folder", "remark"}
    spec = "".join("l" if column in left else "r" for column in table.columns)
    lines = [
        f"% {latex_escape(table.title)}; needs \\usepackage{{booktabs}}",
        *(f"% {latex_escape(note)}" for note in table.notes),
        f"\\begin{{tabular}}{{{spec}}}",
        "\\toprule",
        " & ".join(map(latex_escape, table.columns)) + " \\\\",
        "\\midrule",
    ]
    # {} first, so that a cell beginning with [ is not taken for the optional argument of the \\ before it
    lines += ["{}" + " & ".join(map(latex_escape, row)) + " \\\\" for row in table.rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"

"""The tables of a report: displayed cells, rounded, and beside them the numbers themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.data.sweep import Run
from analysis.findings import added_seeds, ratios
from analysis.findings.study import AXES, Block, Comparison, Estimate, Measure, Study
from analysis.findings.verdicts import Verdict
from analysis.numbers import format_estimate, format_number, format_p
from analysis.spec.metric_catalog import capital, caveats, describe
from analysis.stats.compare import PairedResult
from analysis.stats.resolution import DRAWS, EXACT_UP_TO

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


def tables(study: Study, judged: Sequence[Verdict] = ()) -> list[Table]:
    """All tables of the report, the main comparison first."""
    found = [main(study), metrics(study), efficiency(study), hypotheses(study, judged), cost(study), runs(study)]
    return [table for table in found if table.rows]


def chosen(study: Study) -> list[Block]:
    """The primary measure, then the others of its metric and the times."""
    others = [
        b for b in study.blocks[1:] if b.measure.metric == study.settings.metric or b.measure.summary == "time_to"
    ]
    return [study.primary, *others]


def main(study: Study) -> Table:
    """Each group against the baseline, on the chosen measures."""
    table = _comparison("main", "Main comparison", study, chosen(study))
    level = f"{100 * (1 - study.settings.alpha):g}%"
    notes = [
        f"Value: mean over seeds. Difference: group minus baseline over the same seeds, with its {level} t interval.",
        f"The first measure is the declared question; the others are secondary. {_adjusted(study)}",
    ]
    if any(_exceeded(block, study) for block in chosen(study)):
        notes.append(
            f"Best value: the best mean over {study.settings.window} steps. The final value is a mean over fewer, and "
            "may be better."
        )
    return _with_notes(table, tuple(notes) + added_seeds.said(study.sweep) + table.notes)


def _exceeded(block: Block, study: Study) -> bool:
    """Whether a group's best value is worse than its final one."""
    if block.measure.summary != "best":
        return False
    sign = -1.0 if block.measure.better == "lower" else 1.0
    final = {
        estimate.group: estimate.mean
        for other in study.blocks
        if other.measure.summary == "final" and other.measure.metric == block.measure.metric
        for estimate in other.estimates
    }
    return any(
        estimate.mean is not None
        and (end := final.get(estimate.group)) is not None
        and sign * (end - estimate.mean) > 0
        for estimate in block.estimates
    )


def metrics(study: Study) -> Table:
    """Every declared metric: final value and area under the curve."""
    wanted = [block for block in study.blocks if block.measure.summary in ("final", "auc")]
    wanted.sort(key=lambda block: study.settings.metrics.index(block.measure.metric))
    table = _comparison("metrics", "All declared metrics", study, wanted)
    asked = study.primary.measure.title
    but = f"All but the {asked}" if study.primary in wanted else "All"
    return _with_notes(
        table, (f"{but} are secondary: these comparisons were not declared as the question.", *table.notes)
    )


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
    return (*row, *comparison_cells(block, comparison, alpha))


def comparison_cells(block: Block, comparison: Comparison, alpha: float) -> tuple[str, ...]:
    """Difference, better in, p paired t, p sign-flip, p adjusted and verdict, as a table shows them."""
    result = comparison.result
    return (
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


def efficiency(study: Study) -> Table:
    """How much sooner than the baseline each group reaches each threshold; no row where no time is asked for."""
    rows, records, groups = [], [], []
    sweep, baseline = study.sweep, study.sweep.baseline
    against = f"efficiency against {sweep.label(baseline)}" if baseline is not None else ""
    for block in study.blocks:
        if block.measure.summary != "time_to" or baseline is None:
            continue
        by_group = {comparison.group: comparison for comparison in block.comparisons}
        for estimate in block.estimates:
            reached, of = estimate.reached or (0, 0)
            comparison = by_group.get(estimate.group)
            found = ratios.of_comparison(comparison, study.settings.alpha, True) if comparison else None
            rows.append(
                (capital(block.measure.title), sweep.label(estimate.group), f"{reached} of {of}",
                 format_estimate(estimate.mean, estimate.interval) or "-", str(found.n) if found else "",
                 found.text if found else "", (found.reason or "") if found else "baseline")
            )  # fmt: skip
            low, high = (found.interval if found else None) or (None, None)
            records.append(
                {"metric": block.measure.metric, "threshold": block.measure.threshold, "unit": block.measure.unit,
                 "group": estimate.group, "reached": reached, "runs": of, "restricted_mean": estimate.mean,
                 "pairs": found.n if found else None, "efficiency": found.value if found else None,
                 "low": low, "high": None if high == math.inf else high, "bound": found.bound if found else None,
                 "reason": found.reason if found else None}
            )  # fmt: skip
            groups.append(estimate.group)
    level = f"{100 * (1 - study.settings.alpha):g}%"
    notes = (
        f"Efficiency: the baseline's time over the group's, the geometric mean over pairs of seeds, with the {level} t "
        "interval of its logarithm: above 1 the group is sooner.",
        "A time that is cut at the budget makes it a bound: at least so much where the baseline's are cut, at most "
        "where the group's are, nothing where both are.",
    )
    columns = ("measure", "method", "reached", "time", "pairs", against, "remark")
    return Table("efficiency", "Efficiency", columns, tuple(rows), tuple(records), notes, tuple(groups))


def hypotheses(study: Study, judged: Sequence[Verdict]) -> Table:
    """The declared hypotheses with what the runs say of them."""
    looked = added_seeds.said(study.sweep)
    judged = [replace(v, declared=f"{v.declared}; seeds were added later" if looked else v.declared) for v in judged]
    rows = [
        (v.id, v.claim, v.verdict, v.quantity, v.shown or "-", str(v.n), v.decided, v.declared) for v in judged
    ]  # fmt: skip
    records = []
    for v in judged:
        low, high = v.interval or (None, None)
        records.append(
            {"hypothesis": v.id, "claim": v.claim, "verdict": v.verdict, "quantity": v.quantity, "estimate": v.estimate,
             "low": low, "high": None if high == math.inf else high, "seeds": v.n, "decided_by": v.decided,
             "declared": v.declared}
        )  # fmt: skip
    notes = (
        "Supported: the whole interval over seeds is on the claim's side; contradicted: it is wholly on the other; "
        "equivalent: two one-sided t tests find the difference smaller than the declared margin; inconclusive: none of "
        "these; not evaluable: there is no interval. t intervals rest on normality; hypotheses are not adjusted for "
        "one another.",
        "Where one group of m is enough to contradict, each is asked at the level alpha / m; where one of two metrics "
        "is enough to be ahead, each at alpha / 2. At least k of m hypotheses hold if k do at alpha / (m - k + 1), "
        "and do not if more than m - k fail at alpha / k. Greater and less go by the adjusted p of their measure.",
    )
    columns = ("hypothesis", "claim", "verdict", "quantity", "estimate", "seeds", "decided by", "declared")
    return Table("hypotheses", "Hypotheses", columns, tuple(rows), tuple(records), notes + looked)


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
    heads = [f"{_heading(label, unit)} {count}" for label, unit in COSTS.values() for count in ("a run", "in all")]
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
        count = run.curves.bad_count
        parts.append(f"{count} bad {'line' if count == 1 else 'lines'} left out ({named})")
    if run.curves.superseded:
        parts.append(f"{run.curves.superseded} steps superseded by a later attempt")
    if run.curves.repeated:
        count = run.curves.repeated
        parts.append(f"{count} {'line repeats its step' if count == 1 else 'lines repeat their step'}: the last counts")
    if run.curves.not_finite:
        parts.append("not finite: " + ", ".join(f"{key} {n} times" for key, n in sorted(run.curves.not_finite.items())))
    return "; ".join(parts)


def _adjusted(study: Study) -> str:
    found = study.primary.family
    if found is None:
        return ""
    flips = "exact" if found.n <= EXACT_UP_TO else f"{DRAWS} of them drawn"
    how = {
        "max_t": f"step-down max-T with shared sign flips ({flips})",
        "holm": f"Holm's adjustment of the {found.test} p",
        "bh": f"Benjamini and Hochberg's adjustment of the {found.test} p, which bounds the share of false findings,",
    }[found.method]
    size = len(study.primary.comparisons)
    over = f"the {size} comparisons" if size > 1 else "the one comparison"
    return f"Adjusted p: {how} over {over} of one measure; measures are not adjusted for one another."


def _range(block: Block) -> str:
    return f"budget {block.budget:g} {AXES[block.measure.axis]}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value else None


def _heading(label: str, unit: str) -> str:
    return label if label == unit else f"{label} ({unit})" if unit == "s" else label


def _with_notes(table: Table, notes: tuple[str, ...]) -> Table:
    return Table(table.name, table.title, table.columns, table.rows, table.records, notes, table.groups)

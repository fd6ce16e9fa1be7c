"""The tables that every report has: comparisons, efficiency, hypotheses, costs, and the runs with their health."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from analysis.data.sweep import Run
from analysis.findings import ratios
from analysis.findings.study import Block, Comparison, Estimate, Measure, Study, collapse, registered
from analysis.findings.verdicts import Verdict
from analysis.spec.metric_catalog import capital, caveats, describe
from analysis.spec.validation import counted, some
from analysis.stats import compare
from analysis.stats.contrast import Contrast
from analysis.stats.numbers import decimals_of_means, format_estimate, format_number, format_p
from analysis.tables import wording
from analysis.tables.levels import averaged_over, level_lines, scale_lines, selection_lines, uneven_lines
from analysis.tables.table import Entry, Record, Table, ends, share, table
from launcher.run.lifecycle import HOUR_S, compute_unit


def used_by(runs: Iterable[Run]) -> tuple[float | None, float | None, float | None]:
    """Device-hours: mean of the done runs, with all of their attempts; sum of all attempts; sum of the attempts that
    did not finish their run. A run given twice counts once. None: not recorded; as the mean also if no run is done."""
    measured = {run.id: run for run in runs if run.device_seconds is not None}.values()
    done = [run.device_seconds or 0.0 for run in measured if run.done]
    if not measured:
        return None, None, None
    every = sum(run.device_seconds or 0.0 for run in measured)
    unfinished = sum(run.unfinished_seconds for run in measured)
    return sum(done) / len(done) / HOUR_S if done else None, every / HOUR_S, unfinished / HOUR_S


_MOST_RUNS = 4  # that a check names; it counts the others

#: (check, first words of the warnings with which a run fails it (docs/metrics.md, "Health"), metrics of which a run has
#: at least one if it measured the check). Without metrics every run is checked, and fails if it diverged or logged a
#: number that is not finite.
_CHECKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("all values are finite", (), ()),
    ("the gradient norm does not jump", ("grad_norm",), ("actor/grad_norm",)),
    ("the policy keeps some entropy", ("entropy",), ("analysis/entropy_full_mean",)),
    ("rewards differ, and the policy earns some", ("reward std",), ("analysis/reward_sum_std",)),
    ("the loss falls (SFT and DPO)", ("loss",), ("actor/sft_loss", "actor/dpo_loss")),
    ("the KL to the initial policy is bounded", ("actor/kl_init",), ("actor/kl_init",)),
    ("responses stay diverse", ("eval/distinct_2",), ("eval/distinct_2",)),
    ("responses are not empty and do not repeat", ("eval/empty", "eval/repetition"), ("eval/empty", "eval/repetition")),
    (
        "importance weights have no extremes",
        ("largest weight", "rollout/probs_diff_max"),
        ("qstar/weight_max", "rollout/probs_diff_max"),
    ),
    ("q* balances policy and target", ("alpha_mean", "ess_ratio"), ("qstar/alpha_mean", "qstar/ess_ratio")),
)


def checks(study: Study) -> Table:
    """The ten checks of health over all runs; no row if no run reported its health, as imported ones do not."""
    every = {run.id: run for run in study.sweep.runs}.values()
    runs = [run for run in every if run.state == "diverged" or isinstance(run.summary.get("warnings"), dict)]
    entries: list[Entry] = []
    for check, warnings, metrics in _CHECKS if runs else ():
        checked = [run for run in runs if not metrics or any(metric in run.curves.values for metric in metrics)]
        failed = [run for run in checked if not _passed(run, warnings, metrics)]
        passed = not failed if checked else None
        answer = {True: "yes", False: "no", None: "not measured"}[passed]
        places = [(study.sweep.label(run.group), wording.factors(run.cell), f"seed {run.seed}") for run in failed]
        named = [" ".join(filter(None, place)) for place in places]
        row = (check, answer, str(len(checked)), some(named, _MOST_RUNS, "; ", "; ") if named else "")
        entries.append(("", row, {"check": check, "passed": passed, "runs": len(checked), "failed": len(failed)}))
    columns = ("check", "passed", "runs that measured it", "not passed by")
    return table("checks", "Ten checks of health", columns, entries)


def _passed(run: Run, warnings: tuple[str, ...], metrics: tuple[str, ...]) -> bool:
    if not metrics:
        return run.state != "diverged" and not run.curves.not_finite
    if "analysis/reward_sum_std" in metrics and collapse(run):
        return False
    return not any(count and name.startswith(warnings) for name, count in (run.summary.get("warnings") or {}).items())


#: The headings of `comparison_cells`.
COLUMNS = ("difference", "better in", "p adjusted", "verdict")


def tables(study: Study, verdicts: Sequence[Verdict] = ()) -> list[Table]:
    """All tables of the report that have a row, the main comparison first. verdicts: on the declared hypotheses."""
    every = [
        main(study), metrics(study), efficiency(study), hypotheses(study, verdicts), cost(study),
        checks(study), runs(study), brief(study),
    ]  # fmt: skip
    return [table for table in every if table.rows]


def main(study: Study) -> Table:
    """The main comparison: each group and its difference to the baseline, on the primary measure, the others of its
    metric, and every time to a threshold."""
    metric = study.settings.metric
    blocks = [b for b in study.blocks if b.measure.metric == metric or b.measure.summary == "time_to"]
    notes = [
        f"Value: mean over seeds. {wording.standard(study)}",
        wording.first_measure(registered(study.sweep)),
        *wording.interim_lines(study),
        *wording.pairing_gain(study),
        *scale_lines(study),
    ]
    if times := [block for block in blocks if block.measure.summary == "time_to"]:
        level = wording.levels([e for block in times for e in block.estimates], study.settings.alpha)
        notes.append(
            f"Times: the {level} interval of a mean between 0 and the budget, which holds "
            f"whether or not runs reach the threshold. {wording.NO_INTERVAL_OF_TIMES}"
        )
    if lines := level_lines(study):
        notes.append(f"The first measure by level: {' '.join(lines)}")
    return comparison_table("main", "Main comparison", study, blocks, notes)


def brief(study: Study) -> Table:
    """The primary measure in four columns, for a paper."""
    block, alpha = study.primary, study.settings.alpha
    entries: list[Entry] = []
    for estimate in block.estimates:
        comparison = block.comparison(estimate.group)
        _, method, seeds, value, difference, *_ = _row(study, block, estimate, comparison, _decimals(block))
        p = comparison.adjusted if comparison else None
        shown = f"{difference} (p {wording.equals(p, alpha)})" if p is not None else difference
        entries.append((estimate.group, (method, seeds, value, shown), _record(study, block, estimate, comparison)))
    level = wording.levels([*block.estimates, *block.comparisons], alpha)
    adjusted = f"p adjusted for {counted(len(block.every), 'comparison')}"
    note = f"Mean and difference to the baseline with {level} intervals, {adjusted}."
    notes = (note, capital(wording.measured(study, block.measure.metric)))
    columns = ("method", "seeds", block.measure.with_unit, "difference")
    return table("paper", capital(block.measure.title), columns, entries, notes)


def metrics(study: Study) -> Table:
    """`comparison_table` of the final value and the area under the curve of every declared metric."""
    blocks = [block for block in study.blocks if block.measure.summary in ("final", "auc")]
    which = f"All but the {study.primary.measure.title}" if study.primary in blocks else "All"
    note = f"{which} are secondary: these comparisons were not declared as the question."
    return comparison_table("metrics", "All declared metrics", study, blocks, [note])


def comparison_table(name: str, title: str, study: Study, blocks: Sequence[Block], first: Sequence[str]) -> Table:
    """A row for each group on each of these measures: its value, and its comparison with the baseline. name: of the
    table's files; first: the first notes, before those that say what is missing or particular."""
    entries: list[Entry] = []
    notes = [*first]
    gaps: dict[tuple[str, str], list[str]] = {}
    first_step = min((float(run.curves.steps[0]) for run in study.sweep.runs if run.curves.steps.size), default=0.0)
    for block in blocks:
        label, measure = capital(describe(block.measure.metric).label), capital(block.measure.title)
        notes += caveats([block.measure.metric])
        if block.measure.origin:
            notes.append(f"{measure}: threshold {block.measure.origin}; budget {block.budget:g} {block.measure.unit}.")
        if without := [study.sweep.label(estimate.group) for estimate in block.estimates if not estimate.recorded]:
            notes.append(f"{label}: not recorded by {', '.join(without)}.")
        if block.measure.summary == "auc" and block.start > first_step and any(e.seeds for e in block.estimates):
            notes.append(f"{label}: the area is from step {block.start:g}, the first at which every run has it.")
        if count := sum(value.at_first for value in block.values.values()):
            text = f"{counted(count, 'run')} reached it in the first window that every run has, or before"
            notes.append(f"{measure}: {text}; that is the earliest time that can be told.")
        if text := wording.measured(study, block.measure.metric):
            notes.append(f"{label}: {text}")
        notes += [*wording.sources(study, block), *uneven_lines(study, block)]
        decimals = _decimals(block)
        for estimate in block.estimates:
            comparison = block.comparison(estimate.group)
            row = _row(study, block, estimate, comparison, decimals)
            entries.append((estimate.group, row, _record(study, block, estimate, comparison)))
            for text in wording.gaps(estimate.gaps):
                gaps.setdefault((estimate.group, text), []).append(block.measure.title)
            notes += [f"{measure}: {text}." for text in (comparison.notes if comparison else ())]
    notes += selection_lines(study, blocks)
    for (group, why), measures in gaps.items():
        recorded = sum(block.estimate(group).recorded for block in blocks)
        text = f"{study.sweep.label(group)}: {why}."
        notes.append(text if len(measures) == recorded else f"{capital(', '.join(measures))}: {text}")
    return table(name, title, ("measure", "method", "seeds", "value", *COLUMNS), entries, dict.fromkeys(notes))


def _decimals(block: Block) -> int | None:
    """How many decimals the values are shown with, so that they differ by the differences shown; None without any."""
    needed = []
    for c in block.comparisons:
        group, base = (block.estimate(name) for name in (c.group, c.baseline))
        if group.mean is not None and base.mean is not None:
            means = [(group.mean, group.interval), (base.mean, base.interval)]
            needed.append(decimals_of_means(means, (c.difference, c.interval)))
    return max(needed, default=None)


def _row(
    study: Study, block: Block, estimate: Estimate, comparison: Comparison | None, decimals: int | None
) -> tuple[str, ...]:
    """The cells of a group: measure, method, seeds, value, and those of COLUMNS."""
    seeds = share(len(estimate.seeds), estimate.planned) if estimate.recorded else "-"
    value = format_estimate(estimate.mean, estimate.interval, decimals=decimals) or "-"
    if estimate.reached is not None:
        value += f" (reached {estimate.reached[0]} of {estimate.reached[1]})"
    row = (capital(block.measure.title), study.sweep.label(estimate.group), seeds, value)
    if comparison is None:
        return (*row, "", "", "", "baseline" if estimate.group == study.sweep.baseline else "")
    return (*row, *comparison_cells(study, block.measure, comparison))


def comparison_cells(study: Study, measure: Measure, comparison: Comparison) -> tuple[str, ...]:
    """The cells of a comparison, in the order of COLUMNS."""
    alpha = study.settings.alpha
    return (
        format_estimate(comparison.mean_difference, comparison.interval, signed=True) or "-",
        better(comparison.contrast, measure),
        format_p(comparison.adjusted, alpha) or "-",
        wording.outcome(comparison, measure, study.sweep, alpha),
    )


def better(contrast: Contrast, measure: Measure) -> str:
    """How often the group is better than the baseline: "4 of 5" seeds, or, if seeds are not paired, "80% of pairs" of a
    value of each, a tie counting half. " higher" follows if neither direction is better; "-" without values."""
    if contrast.n == 0:
        return "-"
    higher = "" if measure.better else " higher"
    if contrast.paired:
        return f"{_better(contrast, measure)} of {contrast.n}{higher}"
    return f"{_improvement(contrast, measure) or 0.0:.0%} of pairs{higher}"


def _better(contrast: Contrast, measure: Measure) -> int:
    """In how many pairs the group is better; higher, if neither direction is."""
    return contrast.above if measure.sign > 0 else contrast.n - contrast.ties - contrast.above


def _improvement(contrast: Contrast, measure: Measure) -> float | None:
    """In which share of all pairs of a value of the group and one of the baseline the group's is better (higher, if
    neither direction is better), a tie counting half; None without values."""
    higher = compare.superiority(contrast.a, contrast.b)
    return higher if higher is None or measure.sign > 0 else 1 - higher


def figures(comparison: Comparison | None, measure: Measure) -> Record:
    """The numbers of a comparison, by the columns of a CSV file; all None without one. pairs, d_z and better are None
    if seeds are not paired, baseline_seeds if they are. improvement: as `_improvement`."""
    contrast, p = (comparison.contrast, comparison.p) if comparison else (None, None)
    pairs, samples = (contrast, None) if contrast and contrast.paired else (None, contrast)
    return {
        "pairs": pairs.n if pairs else None,
        "baseline_seeds": samples.b.size if samples else None,
        "difference": comparison.mean_difference if comparison else None,
        **ends(comparison.interval if comparison else None, "difference_low", "difference_high"),
        "level": comparison.level if comparison else None,
        "test": contrast.test if contrast else None,
        "d_z": contrast.d_z if contrast and p is not None and measure.summary != "time_to" else None,
        "better": _better(pairs, measure) if pairs else None,
        "improvement": _improvement(contrast, measure) if contrast else None,
        "p": p,
        "p_adjusted": comparison.adjusted if comparison else None,
    }


def _record(study: Study, block: Block, estimate: Estimate, comparison: Comparison | None) -> dict[str, Any]:
    measure, (reached, of) = block.measure, estimate.reached or (None, None)
    return {
        "metric": measure.metric, "summary": measure.summary, "threshold": measure.threshold, "unit": measure.unit,
        "group": estimate.group, "label": study.sweep.label(estimate.group), "seeds": len(estimate.seeds),
        "seeds_planned": estimate.planned, "averaged_over": ", ".join(averaged_over(study, block, estimate.group)),
        "reached": reached, "runs": of, "mean": estimate.mean, **ends(estimate.interval),
        **figures(comparison, measure),
        "verdict": wording.outcome(comparison, measure, study.sweep, study.settings.alpha) if comparison else None,
        "reason": wording.remark(comparison) if comparison else None,
    }  # fmt: skip


def efficiency(study: Study) -> Table:
    """The baseline's mean time to each threshold over each group's; no row without a threshold or a baseline."""
    sweep, entries = study.sweep, list[Entry]()
    timed = [block for block in study.blocks if block.measure.summary == "time_to" and sweep.baseline is not None]
    for block, estimate in [(of, estimate) for of in timed for estimate in of.estimates]:
        reached, of = estimate.reached or (0, 0)
        comparison = block.comparison(estimate.group)
        ratio = ratios.of_comparison(comparison, block.budget, inverse=True) if comparison else ratios.Ratio(0)
        remark = wording.grounds([ratio.ground], sweep) if ratio.ground else None
        shown = wording.bounded(ratio.value, ratio.interval, ratio.bound) or "-"
        row = (
            capital(block.measure.title), sweep.label(estimate.group), f"{reached} of {of}",
            format_estimate(estimate.mean, estimate.interval) or "-",
            *((str(ratio.n), shown, remark or "") if comparison else ("", "", "baseline")),
        )  # fmt: skip
        record = {
            "metric": block.measure.metric, "threshold": block.measure.threshold, "unit": block.measure.unit,
            "group": estimate.group, "reached": reached, "runs": of, "restricted_mean": estimate.mean,
            "pairs": ratio.n if comparison else None, "efficiency": ratio.value, **ends(ratio.interval),
            "bound": ratio.bound, "reason": remark,
        }  # fmt: skip
        entries.append((estimate.group, row, record))
    notes = (
        "Efficiency: the baseline's mean time over the group's: above 1 the group is sooner. If every run reached the "
        "threshold, its interval holds every factor that the test of the times does not reject, and assumes that no "
        "other run would exceed the budget; none is shown where it can reject none.",
        "If times are cut at the budget, its interval is extended to what the intervals of both mean times allow, "
        "which hold all the same: the difference of two times may be decided where their ratio is not.",
        "A time that is cut at the budget makes it a bound: at least so much where the baseline's are cut, at most "
        "where the group's are, nothing where both are.",
    )
    against = "" if sweep.baseline is None else f"efficiency against {sweep.label(sweep.baseline)}"
    columns = ("measure", "method", "reached", "time", "pairs", against, "remark")
    return table("efficiency", "Efficiency", columns, entries, notes)


def hypotheses(study: Study, verdicts: Sequence[Verdict]) -> Table:
    """A row for each declared hypothesis: its verdict, the estimate, and what decided."""
    sweep = study.sweep
    entries: list[Entry] = []
    for v in verdicts:
        h, quantity, decided = v.hypothesis, wording.quantity(v, sweep), wording.decided(v, sweep, study.settings)
        declared = wording.declared(v)
        row = (h.id, h.claim, v.verdict, quantity, wording.estimate(v) or "-", str(v.n), decided, declared)
        record = {
            "hypothesis": h.id, "claim": h.claim, "verdict": v.verdict, "quantity": quantity, "estimate": v.estimate,
            **ends(v.interval), "seeds": v.n, "decided_by": decided, "declared": declared,
        }  # fmt: skip
        entries.append(("", row, record))
    notes = (
        f"{wording.standard(study)} A hypothesis about two groups is decided as their comparison is.",
        "Supported: the whole interval is on the claim's side; contradicted: it is wholly on the other; equivalent: it "
        "is within the declared margin; inconclusive: none of these; not judged: a range or a variation is "
        "described, because its t or chi-square interval rests on normal seeds; not evaluable: there is no test. "
        "Hypotheses are not adjusted for one another.",
        "Where one group of m is enough to contradict, each is asked at the level alpha / m; where one of two metrics "
        "is enough to be ahead, each at alpha / 2. At least k of m hypotheses hold if k do at alpha / (m - k + 1), "
        "and do not if more than m - k fail at alpha / k.",
    )
    columns = ("hypothesis", "claim", "verdict", "quantity", "estimate", "seeds", "decided by", "declared")
    return table("hypotheses", "Hypotheses", columns, entries, notes)


#: Keys of a run's summary that `cost` sums, with their headings.
COSTS = {"train_seconds": "training time (s)", "steps": "steps", "samples": "responses", "tokens": "tokens"}


def cost(study: Study) -> Table:
    """The cost of each group: mean of a run, and sum. Device-hours are of all attempts (`used_by`); the other costs are
    what the runs reported at their end."""
    entries: list[Entry] = []
    for group in study.sweep.groups:
        members = study.sweep.runs_of(group)
        reported = [run for run in members if run.summary]
        row = [study.sweep.label(group), share(len(reported), len(members))]
        record: dict[str, Any] = {"group": group, "runs": len(reported), "planned": len(members)}
        for key in COSTS:
            told = [run.summary.get(key) for run in reported]  # may hold NaN, which is n != n
            numbers = [float(n) for n in told if isinstance(n, (int, float)) and not isinstance(n, bool) and n == n]
            total = sum(numbers) if numbers else None
            mean = total / len(numbers) if total is not None else None
            record |= {f"{key}_mean": mean, f"{key}_total": total}
            row += [format_number(mean, 3) or "-", format_number(total, 3) or "-"]
        values = used_by(members)
        record |= dict(zip(("device_hours_mean", "device_hours_total", "device_hours_unfinished"), values, strict=True))
        row += [format_number(value, 3) or "-" for value in values]
        entries.append((group, row, record))
    heads = [f"{label} {count}" for label in COSTS.values() for count in ("a run", "in all")]
    hours = compute_unit(run.provenance for run in study.sweep.runs)
    heads += [f"{hours} a run", f"{hours} in all", "of them in unfinished attempts"]
    notes = (
        "Training time, steps, responses and tokens: as the runs reported at their end; a run that did not end well "
        "reported nothing and is not counted.",
        f"{capital(hours)}: from the start to the end of each attempt, times its devices (without one, its nodes); "
        "a run: of those that are done; in all: of every attempt, also those that failed or were interrupted "
        "(unfinished).",
    )
    return table("cost", "Cost", ("method", "runs", *heads), entries, notes)


def runs(study: Study) -> Table:
    """Every planned run: id, group, seed, factors, state, steps, commit, folder, and what is wrong with it."""
    entries: list[Entry] = []
    for run in study.sweep.runs:
        record = {
            "id": run.id, "group": run.group, "label": study.sweep.label(run.group), "seed": run.seed,
            "factors": wording.factors(run.cell), "state": run.state, "attempt": run.attempt,
            "steps": int(run.curves.steps[-1]) if run.curves.steps.size else 0,
            "commit": str(run.provenance.get("commit") or "")[:12]
            + (" + changes" if run.provenance.get("dirty") else ""),
            "folder": run.folder, "remark": remark(run),
        }  # fmt: skip
        row = [str(value) for key, value in record.items() if key != "group"]
        entries.append((run.group, row, record))
    columns = ("run", "method", "seed", "factors", "state", "attempt", "steps", "commit", "folder", "remark")
    return table("runs", "The runs", columns, entries)


def remark(run: Run) -> str:
    """Why a run has no result, and what is wrong with its metrics, in words; "" if nothing is."""
    curves = run.curves
    parts = [run.problem] if run.problem else []
    if curves.bad_count:
        named = "; ".join(f"line {bad.line} {bad.why}" for bad in curves.bad[:3])
        parts.append(f"{counted(curves.bad_count, 'bad line')} left out ({named})")
    if curves.superseded:
        parts.append(f"{curves.superseded} steps superseded by a later attempt")
    if curves.repeated:
        several = "line repeats its step" if curves.repeated == 1 else "lines repeat their step"
        parts.append(f"{curves.repeated} {several}: the last counts")
    if curves.not_finite:
        parts.append("not finite: " + ", ".join(f"{key} {n} times" for key, n in sorted(curves.not_finite.items())))
    return "; ".join(parts)

"""Tables about the runs: their compute, what a paper's checklist asks about it and about the statistics, and ten checks
of health."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.data.sweep import Run
from analysis.findings.outcomes import collapse
from analysis.findings.study import Study
from analysis.numbers import format_level, format_number
from analysis.spec.validation import counted, some
from analysis.tables import wording
from analysis.tables.table import Entry, Table, table
from analysis.tables.wording import seeds_in_words
from launcher.run.compute import HOUR_S, unit

_MOST_MACHINES = 4  # named one by one


@dataclass(frozen=True)
class Used:
    """Hours of some runs, times their devices. a_run: the mean of those that are done, with all of their attempts;
    in_all: of every attempt; unfinished: of attempts that did not finish their run. None: not recorded."""

    a_run: float | None
    in_all: float | None
    unfinished: float | None


def used_by(runs: Iterable[Run]) -> Used:
    """The compute of runs, each counted once."""
    measured = {run.id: run for run in runs if run.device_seconds is not None}.values()
    done = [run.device_seconds or 0.0 for run in measured if run.done]
    if not measured:
        return Used(None, None, None)
    return Used(
        a_run=sum(done) / len(done) / HOUR_S if done else None,
        in_all=sum(run.device_seconds or 0.0 for run in measured) / HOUR_S,
        unfinished=sum(run.unfinished_seconds for run in measured) / HOUR_S,
    )


def checklist(study: Study) -> Table:
    """The answers to a paper's checklist on statistical significance and compute resources."""
    entries: list[Entry] = [("", (item, text), {"item": item, "answer": text}) for item, text in _answers(study)]
    notes = ("The words of the items are those of the NeurIPS paper checklist.",)
    return table("checklist", "For a paper's checklist", ("item", "answer"), entries, notes)


def _answers(study: Study) -> Iterator[tuple[str, str]]:
    sweep, settings = study.sweep, study.settings
    seeds = sorted({run.seed for run in sweep.runs})
    imported = bool(sweep.plan.get("imported"))
    fixes = "what it fixes is not known" if imported else "initial weights, order of the prompts, every draw"
    same = "a seed is declared to be" if imported else "a seed is"
    paired = f"{same} the same under each method, so differences are paired"
    paired = paired if settings.pairing == "seed" else "seeds are not paired"
    yield "factors of variability", f"the seed of a run ({fixes}): {seeds_in_words(seeds)}; {paired}"
    intervals = f"{format_level(settings.alpha)} intervals over seeds, by {wording.TESTS[settings.test]}"
    yield "error bars: method and assumptions", f"{intervals}; of one method's mean: t intervals over its seeds"
    runs = {run.id: run for run in sweep.runs}
    done = [run for run in runs.values() if run.done]
    attempts = sum(run.attempt for run in runs.values())
    yield "runs", f"{counted(len(done), 'run')} done of {len(runs)} planned, in {counted(attempts, 'attempt')}"
    if machines := _machines(runs.values()):
        yield "type of compute workers", machines
    if peak := _peak_memory(runs.values()):
        yield "memory", f"at most {format_number(peak / 1e9, 3)} GB in a run"
    used, hours = used_by(runs.values()), unit(run.provenance for run in runs.values())
    if used.a_run is not None:
        by_method = [
            f"{sweep.label(group)} {format_number(mean, 2)}"
            for group in sweep.groups
            if (mean := used_by(sweep.runs_of(group)).a_run) is not None
        ]
        yield "compute per run", f"{format_number(used.a_run, 2)} {hours} ({', '.join(by_method)})"
    if used.in_all is not None:
        unknown = sum(run.device_seconds is None and run.attempt > 0 for run in runs.values())
        more = f"; of {counted(unknown, 'run')} it was not recorded" if unknown else ""
        yield (
            "compute in total",
            f"{format_number(used.in_all, 3)} {hours}, with {format_number(used.unfinished or 0.0, 3)} of "
            f"attempts that failed or were interrupted{more}. Other experiments and archived runs are not in it.",
        )


def _machines(runs: Iterable[Run]) -> str:
    """The machines that the runs were on: their GPUs, or else their processors."""
    kinds: dict[str, None] = {}
    for run in runs:
        devices = run.provenance.get("devices")
        gpus = devices.get("gpus") if isinstance(devices, Mapping) else None
        cores = run.provenance.get("cpu_count")
        if gpus:
            kinds[f"GPU: {len(gpus)} x {gpus[0]}"] = None
        elif cores:
            kinds[f"CPU: {counted(int(cores), 'core')}, {run.provenance.get('platform') or 'unknown'}"] = None
    return some([*kinds], _MOST_MACHINES, "; ", "; and ") if kinds else ""


def _peak_memory(runs: Iterable[Run]) -> float | None:
    """The largest `cost/peak_memory_bytes` of any run; None if no run recorded it."""
    peaks = [
        float(np.nanmax(values))
        for run in runs
        if (values := run.curves.values.get("cost/peak_memory_bytes")) is not None and np.isfinite(values).any()
    ]
    return max(peaks, default=None)


_MOST_RUNS = 4  # named one by one

#: Each check with the beginnings of the warnings that runs report of it (docs/metrics.md, "Health"), and the metrics
#: without which it was not made.
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
    """The ten checks; no row if no run reported its health, as imported ones do not."""
    every = {run.id: run for run in study.sweep.runs}.values()
    runs = [run for run in every if run.state == "diverged" or isinstance(run.summary.get("warnings"), dict)]
    entries: list[Entry] = []
    for check, warnings, metrics in _CHECKS if runs else ():
        checked = [run for run in runs if not metrics or any(metric in run.curves.values for metric in metrics)]
        failed = [run for run in checked if not _passed(run, warnings, metrics)]
        passed = not failed if checked else None
        answer = {True: "yes", False: "no", None: "not measured"}[passed]
        places = [(study.sweep.label(run.group), wording.factors(run.cell), f"seed {run.seed}") for run in failed]
        named = [" ".join(filter(None, place)) for place in places[:_MOST_RUNS]]
        named += [f"{len(places) - _MOST_RUNS} more"] if len(places) > _MOST_RUNS else []
        row = (check, answer, str(len(checked)), "; ".join(named))
        entries.append(("", row, {"check": check, "passed": passed, "runs": len(checked), "failed": len(failed)}))
    columns = ("check", "passed", "runs that measured it", "not passed by")
    return table("checks", "Ten checks of health", columns, entries)


def _passed(run: Run, warnings: tuple[str, ...], metrics: tuple[str, ...]) -> bool:
    if not metrics:
        return run.state != "diverged"
    if "analysis/reward_sum_std" in metrics and collapse(run):
        return False
    return not any(count and name.startswith(warnings) for name, count in (run.summary.get("warnings") or {}).items())

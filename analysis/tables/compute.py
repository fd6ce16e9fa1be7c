"""Tables about the runs: their compute, and ten checks of health."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.data.sweep import Run
from analysis.findings.outcomes import collapse
from analysis.findings.study import Study
from analysis.tables import wording
from analysis.tables.table import Entry, Table, table
from launcher.run.lifecycle import HOUR_S


def used_by(runs: Iterable[Run]) -> tuple[float | None, float | None, float | None]:
    """Hours of runs, each counted once, times their devices: the mean of those that are done, with all of their
    attempts; of every attempt; and of attempts that did not finish their run. None: not recorded."""
    measured = {run.id: run for run in runs if run.device_seconds is not None}.values()
    done = [run.device_seconds or 0.0 for run in measured if run.done]
    if not measured:
        return None, None, None
    every = sum(run.device_seconds or 0.0 for run in measured)
    unfinished = sum(run.unfinished_seconds for run in measured)
    return sum(done) / len(done) / HOUR_S if done else None, every / HOUR_S, unfinished / HOUR_S


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

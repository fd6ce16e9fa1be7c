"""Win rates: what judges say of the methods' responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.data.sweep import Sweep, read_sweep
from analysis.findings.study import Measure, Study, block, range_of
from analysis.judging.results import Judged, State, judged, with_win_rates
from analysis.judging.settings import Kind
from analysis.spec.metric_catalog import WIN_RATE
from analysis.stats import bradley_terry
from analysis.stats.numbers import format_estimate, format_level, format_number
from analysis.stats.ratings import ELO
from analysis.tables.comparison import comparison_table
from analysis.tables.table import Entry, Table, ends, table

_DECIDED = {
    Kind.MODEL: "The model judges both orders of a pair, and the pair's result is the mean of both. A pair with an "
    "answer that cannot be read in one of the orders is left out; ties of equal texts then weigh less by that share.",
    Kind.SCORE: "No judge was asked: the response with the higher score wins.",
}


def read_judged(folder: Path, baseline: str | None) -> tuple[Sweep, tuple[Judged, ...]]:
    """An experiment, or what it is with another baseline, with its win rates as a metric, and what its judges say.
    Raises BadPlan, also for files of a judge that cannot be read."""
    sweep = read_sweep(folder)
    sweep = sweep if baseline is None else sweep.against(baseline)
    by = judged(sweep)
    return with_win_rates(sweep, by), by


def win_rate_tables(study: Study, judged: Sequence[Judged]) -> list[Table]:
    """For each judge the win rates and the strengths, then the judges themselves."""
    made: list[Table] = []
    for number, results in enumerate(judged):
        suffix = "" if number == 0 else f"_{results.judge.name}"
        if results.against(study.sweep) is not None:
            made.append(_rates(study, results, f"win_rates{suffix}", number == 0))
        made.append(_strengths(study, results, f"strengths{suffix}"))
    return [*made, _judges(judged)] if judged else []


def _rates(study: Study, results: Judged, name: str, first: bool) -> Table:
    sweep = with_win_rates(study.sweep, (results,))
    common = range_of(sweep, study.settings, WIN_RATE)
    measured = block(sweep, study.settings, common, Measure(WIN_RATE, "final", "higher"), sweep.baseline)
    rated = replace(study, sweep=sweep, ranges={**study.ranges, WIN_RATE: common})
    other = sweep.label(str(results.against(sweep)))
    notes = [
        f"The share of pairs that a method's response wins against that of {other} to the same prompt, of the same "
        f"seed and cell, after step {results.step}; a tie is half a win. Value: mean over seeds.",
        _DECIDED[results.judge.kind],
    ]
    if first:
        notes.append(f"These are the values of {WIN_RATE}, because this judge was asked first.")
    notes += [f"{note}." for note in results.notes]
    return comparison_table(name, f"Win rates by {results.title}", rated, [measured], notes)


def _strengths(study: Study, results: Judged, name: str) -> Table:
    sweep, level = study.sweep, format_level(study.settings.alpha)
    scored = [outcome.pair for outcome in results.outcomes if outcome.score is not None]
    compared = {side.group for pair in scored for side in (pair.own, pair.other)}
    groups = [group for group in sweep.groups if group in compared]
    entries: list[Entry] = []
    if not groups:
        return table(name, "", (), ())
    wins = results.wins(groups)
    fit = bradley_terry(wins, 0, study.settings.alpha)
    for i, group in enumerate(groups):
        value, interval = fit.values[i], fit.intervals[i]
        elo = None if interval is None else (ELO * interval[0], ELO * interval[1])
        won, lost = float(wins[:, i].sum()), float(wins[:, :, i].sum())
        shown = "0 (reference)" if i == 0 else format_estimate(value, interval, signed=True) or "-"
        points = "0" if i == 0 else format_estimate(None if value is None else ELO * value, elo, signed=True) or "-"
        seeds = int((wins[:, i] + wins[:, :, i]).sum(axis=1).astype(bool).sum())
        row = (sweep.label(group), str(seeds), format_number(won), format_number(lost), shown, points)
        record = {
            "group": group, "seeds": seeds, "won": won, "lost": lost, "strength": value, **ends(interval),
            "elo": None if value is None else ELO * value, **ends(elo, "elo_low", "elo_high"),
        }  # fmt: skip
        entries.append((group, row, record))
    notes = (
        f"The model of Bradley and Terry over all methods: strength is the logarithm of the odds to win against "
        f"{sweep.label(groups[0])}. A tie is half a win. {level} intervals by a jackknife over seeds, not over pairs.",
        "Elo: the same on Elo's scale, where 400 points are odds of 10 to 1. A method without a value won, or lost, "
        "every comparison.",
    )
    columns = ("method", "seeds", "won", "lost", "strength", "Elo")
    return table(name, f"Strengths by {results.title}", columns, entries, notes)


def _judges(judged: Sequence[Judged]) -> Table:
    entries: list[Entry] = []
    for results in judged:
        counts = {state: results.count(state) for state in State}
        ties = sum(outcome.score == 0.5 for outcome in results.outcomes if outcome.state is State.JUDGED)
        shown = ["-" if share is None else f"{share:.1%}" for share in (results.changed, results.first_shown)]
        row = (results.title, str(len(results.outcomes)), *(str(count) for count in counts.values()), str(ties), *shown)
        record = {
            "judge": results.judge.name, "kind": str(results.judge.kind), "title": results.title, "step": results.step,
            "prompts": results.prompts, "pairs": len(results.outcomes), "judged": counts[State.JUDGED],
            "equal": counts[State.EQUAL], "unreadable": counts[State.UNREADABLE], "not_judged": counts[State.OPEN],
            "ties": ties, "changed_with_order": results.changed, "first_shown": results.first_shown,
        }  # fmt: skip
        entries.append(("", row, record))
    notes = ["Equal texts are ties that nobody is asked about. Ties: of the judged pairs."]
    if any(results.changed is not None for results in judged):
        notes.append(
            "Changed with the order: share of the judged pairs whose two verdicts do not name the same response. First "
            "shown: share of the verdicts without ties that prefer the response that stood first; 50% without a bias."
        )
    if any(results.count(State.OPEN) for results in judged):
        notes.append(
            "Pairs are not judged yet: the command that asked this judge goes on with them. Until then, of two runs "
            "only the prompts before the first one that is not judged count."
        )
    columns = ("judge", "pairs", *(str(state) for state in State), "ties", "changed with the order", "first shown")
    return table("judges", "The judges", columns, entries, notes)

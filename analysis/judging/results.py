"""What the judges of an experiment say of each pair of responses and of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from analysis.data.sweep import Sweep
from analysis.judging import journal
from analysis.judging.journal import Verdict
from analysis.judging.pairs import Pair, PairsToJudge, pairs
from analysis.judging.settings import BadJudge, Judge, Kind, judges
from analysis.spec.metric_catalog import WIN_RATE
from analysis.stats.numbers import Array
from launcher.run import evaluations
from launcher.run.folder import run_folder

_WON = {"first": 1.0, "second": 0.0, "tie": 0.5}  # the score of the response that is shown first
_REWARD = "reward"
_KEPT = ("test", 0)  # split and sample of the responses that responses.jsonl keeps


class State(StrEnum):
    """What is known of a pair."""

    JUDGED = "judged"
    EQUAL = "equal texts"
    UNREADABLE = "unreadable"
    OPEN = "not judged"


@dataclass(frozen=True)
class JudgedPair:
    """A pair as judged. score: 1 where the method's own response won, 0 where it lost, 0.5 for a tie, the mean of
    both orders; None where there is none, or where it does not count: of two runs, only the prompts before the
    first one that is not judged yet count, because the ties of equal texts are known for all. verdicts: in both orders
    of a model, the own response first and second. weight: of a tie of equal texts, the share of its runs' other pairs
    that could be read, so that unreadable ones move no rate towards 0.5; of others 1."""

    pair: Pair
    state: State
    score: float | None = None
    verdicts: tuple[Verdict, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True)
class Judged:
    """A judge and its outcomes. title: for a heading. step: of the last evaluation that is judged. notes: what a
    reader must know. first_shown: the share of verdicts without ties that prefer the response that was shown first."""

    judge: Judge
    title: str
    step: int
    prompts: int
    outcomes: tuple[JudgedPair, ...]
    notes: tuple[str, ...] = ()
    first_shown: float | None = None

    def count(self, state: State) -> int:
        return sum(outcome.state is state for outcome in self.outcomes)

    @property
    def changed(self) -> float | None:
        """Share of pairs, with a verdict in both orders, whose verdict changes with the order."""
        both = [outcome.verdicts for outcome in self.outcomes if len(outcome.verdicts) == 2]
        return float(np.mean([_WON[second] != 1 - _WON[first] for first, second in both])) if both else None

    def against(self, sweep: Sweep) -> str | None:
        """The group that win rates are against."""
        return self.judge.choice.against or sweep.baseline

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are judged, the last first."""
        return tuple(sorted({outcome.pair.step for outcome in self.outcomes}, reverse=True))

    def win_rates(self, against: str | None, step: int | None = None) -> dict[tuple[str, str], float]:
        """By (group, run id): the share of its pairs with the run of its seed in the group `against` that it wins after
        a step (None: the last), a tie half; of that group's own runs 0.5."""
        won: dict[tuple[str, str], list[tuple[float, float]]] = {}
        rates: dict[tuple[str, str], float] = {}
        at = self.step if step is None else step
        for outcome in self.outcomes:
            own, other = outcome.pair.own, outcome.pair.other
            if outcome.score is not None and other.group == against and outcome.pair.step == at:
                won.setdefault((own.group, own.run), []).append((outcome.weight * outcome.score, outcome.weight))
                rates[other.group, other.run] = 0.5
        return rates | {run: float(np.divide(*np.sum(each, axis=0))) for run, each in won.items()}

    def wins(self, groups: Sequence[str]) -> Array:
        """(seeds, groups, groups): how often one won over the other after the last step, a tie half; for
        stats.bradley_terry."""
        seeds = sorted({outcome.pair.own.seed for outcome in self.outcomes if outcome.score is not None})
        counts = np.zeros((len(seeds), len(groups), len(groups)))
        for outcome in self.outcomes:
            if outcome.score is not None and outcome.pair.step == self.step:
                own, other = outcome.pair.own, outcome.pair.other
                at, i, j = seeds.index(own.seed), groups.index(own.group), groups.index(other.group)
                counts[at, i, j] += outcome.weight * outcome.score
                counts[at, j, i] += outcome.weight * (1 - outcome.score)
        return counts


def judged(sweep: Sweep) -> tuple[Judged, ...]:
    """The judges of an experiment with what they said, in their order; none where none was asked. Raises BadJudge."""
    by = {Kind.MODEL: _by_model, Kind.SCORE: _by_score}
    return tuple(by[judge.kind](sweep, judge) for judge in judges(sweep.folder))


def with_win_rates(sweep: Sweep, by: Sequence[Judged]) -> Sweep:
    """The sweep with the metric eval/win_rate, at the steps of the evaluations, of each run that the first judge has
    judged."""
    if not by:
        return sweep
    first, against = by[0], by[0].against(sweep)
    rates = {step: {run: rate for (_, run), rate in first.win_rates(against, step).items()} for step in first.steps}
    runs = []
    for run in sweep.runs:
        of_run = {step: rate[run.id] for step, rate in rates.items() if run.id in rate}
        if of_run and run.curves.steps.size:
            values = np.array([of_run.get(int(step), np.nan) for step in run.curves.steps])
            run = replace(run, curves=replace(run.curves, values={**run.curves.values, WIN_RATE: values}))
        runs.append(run)
    return replace(sweep, runs=tuple(runs))


# ---------------------------------------------------------------- kinds of judges


def _by_model(sweep: Sweep, judge: Judge) -> Judged:
    chosen, identity = pairs(sweep, judge.choice), str(judge.asked["identity"])
    content = journal.read(journal.path(sweep.folder.parent, identity))
    outcomes: list[JudgedPair] = []
    hosts: set[str] = set()
    unfinished: set[tuple[str, str, int]] = set()
    read: dict[tuple[str, str, int], list[bool]] = {}
    for pair in chosen.pairs:
        entries = [content.entry(pair.key(identity, swapped)) for swapped in (False, True)]
        verdicts = tuple(entry.verdict for entry in entries if entry.verdict is not None)
        hosts |= {entry.host for entry in entries if entry.host}
        state, score = State.OPEN, None
        if pair.equal:
            state, score, verdicts = State.EQUAL, 0.5, ()
        elif len(verdicts) == 2:
            state, score = State.JUDGED, (_WON[verdicts[0]] + 1 - _WON[verdicts[1]]) / 2
        elif all(entry.decided(int(judge.asked["attempts"])) for entry in entries):
            state = State.UNREADABLE
        else:
            unfinished.add(pair.runs)
        if state in (State.JUDGED, State.UNREADABLE):
            read.setdefault(pair.runs, []).append(state is State.JUDGED)
        outcomes.append(JudgedPair(pair, state, None if pair.runs in unfinished else score, verdicts))
    weights = {runs: float(np.mean(each)) for runs, each in read.items()}
    for place, of in enumerate(outcomes):
        if of.state is State.EQUAL and of.pair.runs in weights:
            weight = weights[of.pair.runs]
            outcomes[place] = replace(of, score=of.score if weight else None, weight=weight)
    decided = [v == "first" for of in outcomes if of.state is State.JUDGED for v in of.verdicts if v != "tie"]
    bad = f"{content.bad} lines of the journal cannot be read and are left out" if content.bad else ""
    return Judged(
        judge=judge,
        title=" at ".join(filter(None, (str(judge.asked["model"]), ", ".join(sorted(hosts))))),
        step=chosen.steps[0],
        prompts=chosen.prompts,
        outcomes=tuple(outcomes),
        notes=tuple(filter(None, (*_notes(chosen), bad))),
        first_shown=float(np.mean(decided)) if decided else None,
    )


def _by_score(sweep: Sweep, judge: Judge) -> Judged:
    chosen = pairs(sweep, judge.choice)
    score = scores(sweep, chosen, str(judge.asked["score"]))
    outcomes = []
    for pair in chosen.pairs:
        own, other = (score[side.run, side.id, pair.step] for side in (pair.own, pair.other))
        won = 0.5 if pair.equal or not (own > other or own < other) else float(own > other)
        outcomes.append(JudgedPair(pair, State.EQUAL if pair.equal else State.JUDGED, won))
    title = f"the score {judge.asked['score']}"
    return Judged(judge, title, chosen.steps[0], chosen.prompts, tuple(outcomes), notes=_notes(chosen))


def scores(sweep: Sweep, chosen: PairsToJudge, name: str) -> dict[tuple[str, str, int], float]:
    """By (run id, prompt id, step), a score of each response of these pairs that the runs have kept: the reward, or a
    further number of an evaluation. Raises BadJudge where a run has no such score."""
    shown = [(side, pair.step) for pair in chosen.pairs for side in (pair.own, pair.other)]
    if name == _REWARD:
        return {(side.run, side.id, step): side.reward for side, step in shown}
    kept: dict[tuple[str, str, int], float] = {}
    known = {_REWARD}
    for run, step in dict.fromkeys((side.run, step) for side, step in shown):
        try:
            rows = evaluations.read(run_folder(sweep.folder.parent, run), step)
        except (OSError, ValueError) as error:
            raise BadJudge(f"--by {name}: {error}. Fix: use --by {_REWARD}, which responses.jsonl has") from error
        for row in rows:
            known |= row.numbers.keys()
            if (row.split, row.sample) == _KEPT and name in row.numbers:
                kept[run, row.prompt, step] = row.numbers[name]
    for side, step in shown:
        if (side.run, side.id, step) not in kept:
            raise BadJudge(
                f"--by {name}: run {side.run} has no such score of its response to prompt {side.id}. "
                f"Fix: use one of the scores that the runs have: {', '.join(sorted(known))}"
            )
    return kept


def _notes(chosen: PairsToJudge) -> tuple[str, ...]:
    long = f"{chosen.too_long} pairs are left out because their texts are too long" if chosen.too_long else ""
    gaps = f"Runs without responses: {'; '.join(chosen.gaps)}" if chosen.gaps else ""
    return tuple(filter(None, (long, gaps)))

"""What the judges of an experiment say: of each pair of responses, of each run, and of each other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis.data.sweep import BadPlan, Sweep, read_sweep
from analysis.judging import journal, rating
from analysis.judging.declared import Declared, Kind, judges
from analysis.judging.journal import Verdict
from analysis.judging.pairs import Pair, Place, pairs
from analysis.judging.scores import scores
from analysis.judging.settings import BadJudge
from analysis.spec.metric_catalog import WIN_RATE
from analysis.stats import cohens_kappa, fleiss_kappa

Array = NDArray[np.float64]
_OWN, _OTHER, _TIE = range(3)


class State(StrEnum):
    """What is known of a pair."""

    JUDGED = "judged"
    EQUAL = "equal texts"
    UNREADABLE = "unreadable"
    OPEN = "not judged"


@dataclass(frozen=True)
class Outcome:
    """A pair as judged. score: 1 where the method's own response won, 0 where it lost, 0.5 for a tie, the mean of
    several verdicts; None where there is none, or where it does not count: of two runs, only the prompts before the
    first one that is not judged yet count, because the ties of equal texts are known for all. verdicts: in both orders
    of a model, the own response first and second."""

    pair: Pair
    state: State
    score: float | None = None
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True)
class Agreement:
    """Two judges, or raters, on the pairs that both judged: how many, the share with one result, and Cohen's kappa; of
    several raters Fleiss'. kappa: None where chance alone agrees fully."""

    names: tuple[str, ...]
    pairs: int
    same: float
    kappa: float | None


@dataclass(frozen=True)
class Judged:
    """A judge and its outcomes. title: for a heading. step: of the last evaluation that is judged. raters: agreement
    between them. notes: what a reader must know."""

    judge: Declared
    title: str
    step: int
    prompts: int
    outcomes: tuple[Outcome, ...]
    raters: tuple[Agreement, ...] = ()
    notes: tuple[str, ...] = ()
    first_shown: float | None = None

    def count(self, state: State) -> int:
        """How many pairs have this state."""
        return sum(outcome.state is state for outcome in self.outcomes)

    @property
    def changed(self) -> float | None:
        """Share of pairs, with a verdict in both orders, whose verdict changes with the order."""
        both = [one.verdicts for one in self.outcomes if len(one.verdicts) == 2]
        return float(np.mean([_turned(second) != first for first, second in both])) if both else None

    def against(self, sweep: Sweep) -> str | None:
        """The group that win rates are against."""
        return self.judge.choice.against or sweep.baseline

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are judged, the last first."""
        return tuple(sorted({one.pair.step for one in self.outcomes}, reverse=True))

    def win_rates(self, against: str | None, step: int | None = None) -> dict[tuple[str, str], float]:
        """By (group, run id): the share of its pairs with the run of its seed in the group `against` that it wins after
        a step (None: the last), a tie half; of that group's own runs 0.5."""
        won: dict[tuple[str, str], list[float]] = {}
        rates: dict[tuple[str, str], float] = {}
        for one in self.outcomes:
            own, other = one.pair.own, one.pair.other
            if one.score is not None and other.group == against and one.pair.step == (step or self.step):
                won.setdefault((own.group, own.run), []).append(one.score)
                rates[other.group, other.run] = 0.5
        return rates | {run: float(np.mean(each)) for run, each in won.items()}

    def wins(self, groups: Sequence[str]) -> Array:
        """(seeds, groups, groups): how often one won over the other after the last step, a tie half; for
        stats.bradley_terry."""
        seeds = sorted({one.pair.own.seed for one in self.outcomes if one.score is not None})
        counts = np.zeros((len(seeds), len(groups), len(groups)))
        for one in self.outcomes:
            if one.score is not None and one.pair.step == self.step:
                own, other = one.pair.own, one.pair.other
                at, i, j = seeds.index(own.seed), groups.index(own.group), groups.index(other.group)
                counts[at, i, j] += one.score
                counts[at, j, i] += 1 - one.score
        return counts


def judged(sweep: Sweep) -> tuple[Judged, ...]:
    """The judges of an experiment with what they said, in their order; none where none was asked. Raises BadJudge."""
    made = []
    for judge in judges(sweep.folder):
        by = {Kind.MODEL: _by_model, Kind.SCORE: _by_score, Kind.RATERS: _by_raters}[judge.kind]
        made.append(by(sweep, judge))
    return tuple(made)


def read_judged(folder: Path) -> tuple[Sweep, tuple[Judged, ...]]:
    """An experiment with its win rates as a metric, and what its judges say. Raises BadPlan, also for files of a judge
    that cannot be read."""
    sweep = read_sweep(folder)
    try:
        by = judged(sweep)
    except BadJudge as error:
        raise BadPlan(str(error)) from error
    return with_win_rates(sweep, by), by


def with_win_rates(sweep: Sweep, by: Sequence[Judged]) -> Sweep:
    """The sweep with the metric eval/win_rate, at the steps of the evaluations, of each run that the first judge has
    judged."""
    if not by:
        return sweep
    rates = {step: by[0].win_rates(by[0].against(sweep), step) for step in by[0].steps}
    runs = []
    for run in sweep.runs:
        own = {step: rate[run.group, run.id] for step, rate in rates.items() if (run.group, run.id) in rate}
        if own and run.curves.steps.size:
            values = np.array([own.get(int(step), np.nan) for step in run.curves.steps])
            run = replace(run, curves=replace(run.curves, values={**run.curves.values, WIN_RATE: values}))
        runs.append(run)
    return replace(sweep, runs=tuple(runs))


def agreements(by: Sequence[Judged]) -> tuple[Agreement, ...]:
    """Of every two judges, and of the raters of each."""
    return tuple(
        [_agreement((one.judge.name, two.judge.name), _results(one), _results(two))
         for one, two in itertools.combinations(by, 2)]
    ) + tuple(agreement for one in by for agreement in one.raters)  # fmt: skip


# ---------------------------------------------------------------- kinds of judges


def _by_model(sweep: Sweep, judge: Declared) -> Judged:
    chosen = pairs(sweep, judge.choice)
    content = journal.read(journal.path(sweep.folder.parent, judge.identity))
    outcomes, hosts = [], set()
    unfinished: set[tuple[str, str, int]] = set()
    first: list[bool] = []
    for pair in chosen.pairs:
        runs = pair.own.run, pair.other.run, pair.step
        if pair.equal:
            outcomes.append(Outcome(pair, State.EQUAL, None if runs in unfinished else 0.5))
            continue
        asked = [content.of(pair.key(judge.identity, swapped)) for swapped in (False, True)]
        verdicts = tuple(one.verdict for one in asked if one.verdict is not None)
        hosts |= {one.host for one in asked if one.host}
        if len(verdicts) == 2:
            score = float(np.mean([_won(verdicts[0]), 1 - _won(verdicts[1])]))
            outcomes.append(Outcome(pair, State.JUDGED, None if runs in unfinished else score, verdicts))
            first += [verdict == "first" for verdict in verdicts if verdict != "tie"]
        elif all(one.verdict or one.unread >= judge.attempts for one in asked):
            outcomes.append(Outcome(pair, State.UNREADABLE))
        else:
            outcomes.append(Outcome(pair, State.OPEN))
            unfinished.add(runs)
    at = f" at {', '.join(sorted(hosts))}" if hosts else ""
    notes = _notes(chosen.too_long, chosen.gaps)
    if content.bad:
        notes += (f"{content.bad} lines of the journal cannot be read and are left out",)
    return Judged(
        judge, f"{judge.asked['model']}{at}", chosen.step, chosen.prompts, tuple(outcomes), notes=notes,
        first_shown=float(np.mean(first)) if first else None,
    )  # fmt: skip


def _by_score(sweep: Sweep, judge: Declared) -> Judged:
    chosen = pairs(sweep, judge.choice)
    score = scores(sweep, chosen, str(judge.asked["score"]))
    outcomes = [
        Outcome(pair, State.EQUAL if pair.equal else State.JUDGED,
                0.5 if pair.equal else _compared(score[pair.own.run, pair.own.answer.id, pair.step],
                                                 score[pair.other.run, pair.other.answer.id, pair.step]))
        for pair in chosen.pairs
    ]  # fmt: skip
    title = f"the score {judge.asked['score']}"
    return Judged(
        judge, title, chosen.step, chosen.prompts, tuple(outcomes), notes=_notes(chosen.too_long, chosen.gaps)
    )


def _by_raters(sweep: Sweep, judge: Declared) -> Judged:
    places: dict[Place, Pair] = {}
    given: dict[Place, dict[str, float]] = {}
    first: list[bool] = []
    stale, step = 0, 0
    for own in rating.answers(sweep.folder):
        chosen = pairs(sweep, own.choice)
        step = chosen.step
        by_content: dict[str, list[Pair]] = {}
        for pair in chosen.pairs:
            by_content.setdefault(rating.content_of(pair), []).append(pair)
        for item, verdict in own.verdicts:
            won = _won(verdict)
            first += [verdict == "first"] if verdict != "tie" else []
            stale += item.content not in by_content
            for pair in by_content.get(item.content, ()):  # of the same texts, such as those of two seeds
                places[pair.place] = pair
                given.setdefault(pair.place, {})[own.rater] = 1 - won if item.swapped else won
    names = sorted({rater for by_rater in given.values() for rater in by_rater})
    outcomes = [Outcome(places[place], State.JUDGED, float(np.mean([*one.values()]))) for place, one in given.items()]
    title = f"the rater {names[0]}" if len(names) == 1 else f"{len(names)} raters: {', '.join(names)}"
    notes = (f"{stale} answers to responses that the runs no longer have are left out",) if stale else ()
    prompts = len({prompt for *_, prompt, _ in given})
    return Judged(
        judge, title, step, prompts, tuple(outcomes), _between(names, [*given.values()]),
        notes, float(np.mean(first)) if first else None,
    )  # fmt: skip


def _between(names: Sequence[str], given: Sequence[Mapping[str, float]]) -> tuple[Agreement, ...]:
    """The agreement of every two raters, and of all on the pairs that all rated."""
    by_rater = {name: {str(i): one[name] for i, one in enumerate(given) if name in one} for name in names}
    made = [_agreement((one, two), by_rater[one], by_rater[two]) for one, two in itertools.combinations(names, 2)]
    rated = [one for one in given if len(one) == len(names)]
    if len(names) > 2 and rated:
        counts = np.zeros((len(rated), 3))
        for i, one in enumerate(rated):
            for score in one.values():
                counts[i, _category(score)] += 1
        same = float((counts.max(axis=1) == len(names)).mean())
        made.append(Agreement(tuple(names), len(rated), same, fleiss_kappa(counts)))
    return tuple(made)


def _notes(too_long: int, gaps: Sequence[str]) -> tuple[str, ...]:
    notes = [f"{too_long} pairs are left out because their texts are too long"] if too_long else []
    return (*notes, *([f"Runs without responses: {'; '.join(gaps)}"] if gaps else []))


# ---------------------------------------------------------------- verdicts


def _won(verdict: Verdict) -> float:
    return {"first": 1.0, "second": 0.0, "tie": 0.5}[verdict]


def _turned(verdict: Verdict) -> Verdict:
    return {"first": "second", "second": "first", "tie": "tie"}[verdict]  # type: ignore[return-value]


def _compared(own: float, other: float) -> float:
    return 1.0 if own > other else 0.0 if own < other else 0.5


def _category(score: float) -> int:
    return _OWN if score > 0.5 else _OTHER if score < 0.5 else _TIE


def _results(one: Judged) -> dict[str, float]:
    """By pair, the result of each that was read; not of equal texts, which nobody was asked about."""
    return {
        " ".join(map(str, outcome.pair.place)): outcome.score
        for outcome in one.outcomes
        if outcome.state is State.JUDGED and outcome.score is not None
    }


def _agreement(names: tuple[str, ...], one: Mapping[str, float], two: Mapping[str, float]) -> Agreement:
    counts = np.zeros((3, 3))
    for key in one.keys() & two.keys():
        counts[_category(one[key]), _category(two[key])] += 1
    n = int(counts.sum())
    return Agreement(names, n, float(counts.diagonal().sum()) / n if n else 0.0, cohens_kappa(counts))

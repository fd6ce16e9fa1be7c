"""Which responses are compared: those of two methods to the same prompt, of the same seed and cell, at
evaluations that every run has."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.data.responses import Response, Responses, responses
from analysis.data.sweep import Cell, Sweep
from analysis.judging.settings import BadJudge
from analysis.spec.settings import PairSelection

_Run = tuple[str, int, Cell, str]  # group, seed, cell and id


@dataclass(frozen=True)
class Pair:
    """A response of a method, and one of the method that it is compared with, both after step `step`."""

    own: Response
    other: Response
    step: int

    @property
    def prompt(self) -> str:
        """The prompt's text."""
        return self.own.prompt

    def shown(self, swapped: bool) -> tuple[str, str]:
        """Both responses. swapped: the other one is shown first."""
        own, other = self.own.response, self.other.response
        return (other, own) if swapped else (own, other)

    @property
    def equal(self) -> bool:
        """Whether both wrote the same, which is a tie that nobody is asked about."""
        return self.own.response == self.other.response

    @property
    def runs(self) -> tuple[str, str, int]:
        """The ids of both runs, and the step."""
        return self.own.run, self.other.run, self.step

    @property
    def characters(self) -> int:
        """The number of characters of the prompt and both responses."""
        return len(self.prompt) + sum(map(len, self.shown(False)))

    def key(self, judge: str, swapped: bool) -> str:
        """32 hexadecimal digits of a hash of what this judge is asked. swapped: the other response is shown first."""
        return hashlib.sha256(json.dumps([judge, self.prompt, *self.shown(swapped)]).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class PairsToJudge:
    """The pairs of an experiment, sorted by step (the last first) and then by prompt, so that even the first few pairs
    cover all methods and seeds.

    prompts: how many have a pair after the last step. contrasts: (method, other), each once. too_long: pairs that are
    left out for their length. gaps: what has no responses, in words.
    """

    steps: tuple[int, ...]
    prompts: int
    contrasts: tuple[tuple[str, str], ...]
    pairs: tuple[Pair, ...]
    too_long: int
    gaps: tuple[str, ...]


def pairs(sweep: Sweep, choice: PairSelection) -> PairsToJudge:
    """The pairs that a judge compares. Raises BadJudge where there are none."""
    newest = responses(sweep)
    if newest is None:
        raise BadJudge(
            f"{sweep.folder}: the runs have no responses of a common evaluation. Fix: run them with trainer.eval_every "
            "and trainer.eval_responses above 0, and wait until they have ended"
        )
    contrasts, steps = tuple(_contrasts(sweep, choice)), _steps(newest, choice.points)
    made: list[Pair] = []
    for step in steps:
        recorded = newest if step == newest.step else responses(sweep, step)
        made += _pairs(recorded.recorded if recorded is not None else (), contrasts, choice.prompts, step)
    kept = [pair for pair in made if choice.max_characters is None or pair.characters <= choice.max_characters]
    if not kept:
        raise BadJudge(
            f"{sweep.folder}: no prompt has responses of two methods to compare, of one seed and cell"
            f"{f'; {len(made)} pairs are too long' if made else ''}. Fix: "
            + ("raise judge.max_characters" if made else "run the methods with the same seeds")
        )
    last = {pair.own.id for pair in made if pair.step == steps[0]}
    return PairsToJudge(steps, len(last), contrasts, tuple(kept), len(made) - len(kept), newest.lacking)


def _steps(newest: Responses, points: int) -> tuple[int, ...]:
    """The steps whose responses are judged, the last first: of the common evaluations with the most responses, `points`
    at equal distances."""
    most = max(newest.counts.values())
    full = [step for step, count in sorted(newest.counts.items()) if count == most]
    return tuple(sorted({full[math.ceil((number + 1) * len(full) / points) - 1] for number in range(points)}))[::-1]


def _contrasts(sweep: Sweep, choice: PairSelection) -> Iterator[tuple[str, str]]:
    if len(sweep.groups) < 2:
        raise BadJudge(f"{sweep.folder}: there is one method, and a comparison needs two. Fix: add a group")
    if choice.design == "all":
        yield from ((own, other) for other, own in itertools.combinations(sweep.groups, 2))
        return
    against = choice.against or sweep.baseline
    if against is None:
        raise BadJudge(f"{sweep.folder}: the experiment has no baseline. Fix: give judge.against, or judge.design=all")
    if against not in sweep.groups:
        known = ", ".join(sweep.groups)
        raise BadJudge(f"{sweep.folder}: judge.against = {against}: there is no such group. Fix: choose one of {known}")
    yield from ((group, against) for group in sweep.groups if group != against)


def _pairs(
    recorded: Sequence[Response], contrasts: Sequence[tuple[str, str]], most: int | None, step: int
) -> Iterator[Pair]:
    """The pairs of one evaluation on its first prompts, at most so many."""
    by_run: dict[_Run, dict[str, Response]] = {}
    for response in recorded:
        run = by_run.setdefault((response.group, response.seed, response.cell, response.run), {})
        run.setdefault(response.id, response)
    together = [runs for method, other in contrasts for runs in _runs(by_run, method, other)]
    prompts = sorted({prompt for own, other in together for prompt in own.keys() & other.keys()})
    for prompt in prompts[:most]:
        yield from (Pair(own[prompt], other[prompt], step) for own, other in together if prompt in own.keys() & other)


def _runs(
    by_run: Mapping[_Run, dict[str, Response]], method: str, other: str
) -> Iterator[tuple[dict[str, Response], dict[str, Response]]]:
    """The responses of two runs of one seed whose cells have the same levels of the factors that both have."""
    for run, theirs in itertools.product(*([run for run in by_run if run[0] == group] for group in (method, other))):
        levels, others = dict(run[2]), dict(theirs[2])
        alike = all(levels[label] == others[label] for label in levels.keys() & others.keys())
        if run[1] == theirs[1] and alike and run[3] != theirs[3]:
            yield by_run[run], by_run[theirs]


def unique(chosen: Sequence[Pair], judge: str) -> dict[str, tuple[Pair, bool]]:
    """What a judge is asked about pairs, by key, both orders of a pair one after the other: (pair, swapped). Equal
    texts, such as those of two seeds, are asked about once."""
    return {pair.key(judge, swapped): (pair, swapped) for pair in chosen if not pair.equal for swapped in (False, True)}

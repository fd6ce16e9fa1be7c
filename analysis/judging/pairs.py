"""Which responses a judge compares: those of two methods to the same prompt, from runs of the same seed and matching
cells, at evaluations that all runs recorded."""

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
    """Two responses to one prompt, after training step `step`: of a method, and of the one it is compared with."""

    own: Response
    other: Response
    step: int

    def shown(self, swapped: bool) -> tuple[str, str]:
        """The texts (own, other), as a judge sees them. swapped: (other, own)."""
        own, other = self.own.response, self.other.response
        return (other, own) if swapped else (own, other)

    @property
    def equal(self) -> bool:
        """Whether both texts are the same: a tie, about which no judge is asked."""
        return self.own.response == self.other.response

    @property
    def runs(self) -> tuple[str, str, int]:
        return self.own.run, self.other.run, self.step

    @property
    def characters(self) -> int:
        return len(self.own.prompt) + sum(map(len, self.shown(False)))

    def key(self, judge: str, swapped: bool) -> str:
        """32 hexadecimal digits: a hash of the judge's identity, the prompt and the texts, swapped as in `shown`."""
        return hashlib.sha256(json.dumps([judge, self.own.prompt, *self.shown(swapped)]).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class PairsToJudge:
    """The pairs of an experiment, sorted by step (the last first) and then by prompt, so that even the first few pairs
    cover all methods and seeds.

    steps: those judged, the last first. prompts: how many have a pair, even one too long, after steps[0]. contrasts:
    (method, other), each once. too_long: how many pairs are left out for their length. gaps: groups in which runs
    recorded no responses, with the number of runs that did, in words.
    """

    steps: tuple[int, ...]
    prompts: int
    contrasts: tuple[tuple[str, str], ...]
    pairs: tuple[Pair, ...]
    too_long: int
    gaps: tuple[str, ...]


def pairs(sweep: Sweep, choice: PairSelection) -> PairsToJudge:
    """The pairs that a judge compares by `choice`. Raises BadJudge if there are none, or no two groups to compare."""
    if (newest := responses(sweep)) is None:
        raise BadJudge(
            f"{sweep.folder}: the runs have no responses of a common evaluation. Fix: run them with trainer.eval_every "
            "and trainer.eval_responses above 0, and wait until they have ended"
        )
    contrasts, steps = tuple(_contrasts(sweep, choice)), _steps(newest, choice.points)
    made: list[Pair] = []
    for step in steps:
        at_step = newest if step == newest.step else responses(sweep, step)
        made += _pairs(at_step.recorded if at_step is not None else (), contrasts, choice.prompts, step)
    kept = [pair for pair in made if choice.max_characters is None or pair.characters <= choice.max_characters]
    if not kept:
        raise BadJudge(
            f"{sweep.folder}: no prompt has responses of two methods to compare, of one seed and cell"
            f"{f'; {len(made)} pairs are too long' if made else ''}. Fix: "
            + ("raise judge.max_characters" if made else "run the methods with the same seeds")
        )
    prompts = {pair.own.id for pair in made if pair.step == steps[0]}
    return PairsToJudge(steps, len(prompts), contrasts, tuple(kept), len(made) - len(kept), newest.lacking)


def _steps(newest: Responses, points: int) -> tuple[int, ...]:
    """The steps that are judged, the last first: of the common evaluations with the most responses, the last and others
    before it at equal distances, at most `points`."""
    most = max(newest.counts.values())
    full = [step for step, count in sorted(newest.counts.items()) if count == most]
    return tuple(sorted({full[math.ceil((number + 1) * len(full) / points) - 1] for number in range(points)}))[::-1]


def _contrasts(sweep: Sweep, choice: PairSelection) -> Iterator[tuple[str, str]]:
    """The groups to compare, as (method, other)."""
    if len(sweep.groups) < 2:
        raise BadJudge(f"{sweep.folder}: there is one method, and a comparison needs two. Fix: add a group")
    if choice.design == "all":
        yield from ((own, other) for other, own in itertools.combinations(sweep.groups, 2))
        return
    if (against := choice.against or sweep.baseline) is None:
        raise BadJudge(f"{sweep.folder}: the experiment has no baseline. Fix: give judge.against, or judge.design=all")
    if against not in sweep.groups:
        known = ", ".join(sweep.groups)
        raise BadJudge(f"{sweep.folder}: judge.against = {against}: there is no such group. Fix: choose one of {known}")
    yield from ((group, against) for group in sweep.groups if group != against)


def _pairs(
    recorded: Sequence[Response], contrasts: Sequence[tuple[str, str]], most: int | None, step: int
) -> Iterator[Pair]:
    """The pairs of one evaluation, on the first `most` prompts by id (None: all)."""
    by_run: dict[_Run, dict[str, Response]] = {}
    for response in recorded:
        by_prompt = by_run.setdefault((response.group, response.seed, response.cell, response.run), {})
        by_prompt.setdefault(response.id, response)
    matched = [runs for method, other in contrasts for runs in _runs(by_run, method, other)]
    prompts = sorted({prompt for own, other in matched for prompt in own.keys() & other.keys()})
    for prompt in prompts[:most]:
        yield from (Pair(own[prompt], other[prompt], step) for own, other in matched if prompt in own.keys() & other)


def _runs(
    by_run: Mapping[_Run, dict[str, Response]], method: str, other: str
) -> Iterator[tuple[dict[str, Response], dict[str, Response]]]:
    """Of every two runs that match, the responses by prompt id: of one seed, with equal levels of common factors."""
    for ours, theirs in itertools.product(*([run for run in by_run if run[0] == group] for group in (method, other))):
        (_, seed, cell, run_id), (_, their_seed, their_cell, their_id) = ours, theirs
        levels, others = dict(cell), dict(their_cell)
        alike = all(levels[label] == others[label] for label in levels.keys() & others.keys())
        if seed == their_seed and alike and run_id != their_id:
            yield by_run[ours], by_run[theirs]


def unique(chosen: Sequence[Pair], judge: str) -> dict[str, tuple[Pair, bool]]:
    """The requests to a judge, {Pair.key: (pair, swapped)}: each pair in both orders, one after the other. Pairs with
    the same texts, such as of two seeds, share requests; pairs of equal responses have none. judge: its identity."""
    return {pair.key(judge, swapped): (pair, swapped) for pair in chosen if not pair.equal for swapped in (False, True)}

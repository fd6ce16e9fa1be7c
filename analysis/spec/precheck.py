"""Whether the seeds of a plan can decide its primary question and its hypotheses: asked before anything runs, so it
loads no SciPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.spec.settings import Settings
from analysis.stats.resolution import floor, multiplied, seeds_needed

# Two seeds are as far from their median as each other. Of three, one is the median: stats.dispersion's t is at most 2,
# and this is its two-sided p with two degrees of freedom.
_SPREAD_OF_THREE = 1 - 2 / math.sqrt(6)
#: The tests that need the fewest seeds, for they have no smallest p; they assume normal differences.
FEWEST_SEEDS = {"test": "paired_t", "family": "holm"}


@dataclass(frozen=True)
class Undecidable:
    """A hypothesis that its runs can neither support nor contradict, whatever they show: the seeds that its groups
    share, and the seeds needed at least."""

    id: str
    seeds: int
    needed: int


@dataclass(frozen=True)
class UndecidablePrimary:
    """The comparisons of the primary measure that its runs cannot decide, whatever they show.

    groups: those compared with the baseline. seeds: the fewest that one of them shares with it; needed: at least.
    smallest_p: what so many seeds can give, adjusted for `comparisons`; None if the test has no smallest p.
    """

    groups: tuple[str, ...]
    seeds: int
    needed: int
    smallest_p: float | None
    comparisons: int


def undecidable_primary(
    asked: Settings, seeds: Mapping[str, Sequence[int]], baseline: str | None
) -> UndecidablePrimary | None:
    """The comparisons with the baseline whose smallest adjusted p is above alpha, or that have fewer than two seeds;
    None if there is none. seeds: of each group of the plan."""
    if baseline is None:
        return None
    shared = {group: len({*own} & {*seeds[baseline]}) for group, own in seeds.items() if group != baseline}
    times, needed = _least(asked, asked.summary, len(shared))
    few = {group: n for group, n in shared.items() if n < needed}
    if not few:
        return None
    fewest = min(few.values())
    smallest = min(1.0, times * floor(fewest)) if times else None
    return UndecidablePrimary(tuple(few), fewest, needed, smallest, len(shared))


def _least(asked: Settings, summary: str, comparisons: int) -> tuple[int, int]:
    """How many times the adjusted p of a comparison is the floor of the test (0: it has none), and the seeds needed."""
    test = "signflip" if summary == "time_to" else asked.test
    times = multiplied(asked.family, test, comparisons)
    return times, seeds_needed(asked.alpha, times) if times else 2


def undecidable(asked: Settings, seeds: Mapping[str, Sequence[int]]) -> tuple[Undecidable, ...]:
    """The hypotheses `greater` and `less` whose smallest adjusted p is above alpha, `spread` with too few seeds for its
    t test, and all whose groups share fewer than two seeds; not those made of other hypotheses.

    seeds: of each group of the plan.
    """
    found = []
    for hypothesis in asked.hypotheses:
        if hypothesis.of:
            continue
        groups = [seeds[group] for group in (hypothesis.group, *hypothesis.against)]
        shared = len(set.intersection(*map(set, groups)))
        needed = 2
        if hypothesis.kind in ("greater", "less"):
            needed = _least(asked, hypothesis.summary, len(seeds) - 1)[1]
        elif hypothesis.kind == "spread":
            needed = 3 if asked.alpha > _SPREAD_OF_THREE else 4
        if shared < needed:
            found.append(Undecidable(hypothesis.id, shared, needed))
    return tuple(found)

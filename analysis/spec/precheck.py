"""Whether the seeds of a plan can decide its hypotheses: asked before anything runs, so it loads no SciPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.spec.settings import Settings
from analysis.stats.resolution import multiplied, seeds_needed

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
            test = "signflip" if hypothesis.summary == "time_to" else asked.test
            times = multiplied(asked.family, test, len(seeds) - 1)
            needed = seeds_needed(asked.alpha, times) if times else 2
        elif hypothesis.kind == "spread":
            needed = 3 if asked.alpha > _SPREAD_OF_THREE else 4
        if shared < needed:
            found.append(Undecidable(hypothesis.id, shared, needed))
    return tuple(found)

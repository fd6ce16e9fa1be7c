"""Whether the seeds of a plan can decide its primary question and its hypotheses, asked before anything runs. Apart
from `findable` and `findable_hypotheses`, it loads no SciPy, but for an exact test with `analysis.sequential`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.spec.settings import Settings
from analysis.stats.resolution import MOST_SEEDS, T_TESTS, multiplied, seeds_needed, smallest_p

# Two seeds are as far from their median as each other. Of three, one is the median: stats.dispersion's t is at most 2,
# and this is its two-sided p with two degrees of freedom.
_SPREAD_OF_THREE = 1 - 2 / math.sqrt(6)
#: The kinds of hypotheses that the test of the comparisons decides.
TWO_GROUPS = ("greater", "less", "ratio")
#: The tests that need the fewest seeds, for they have no smallest p; they assume normal differences.
FEWEST_SEEDS = {"seed": {"test": "paired_t", "family": "holm"}, "none": {"test": "welch", "family": "holm"}}


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
    """The comparisons with the baseline whose smallest adjusted p is above alpha, or at every look above its level, and
    those with fewer than two seeds; None if there is none. seeds: of each group of the plan."""
    if baseline is None:
        return None
    counts = {group: _seeds(asked, listed, seeds[baseline]) for group, listed in seeds.items() if group != baseline}
    size = asked.family_size(len(seeds))
    times, needed = _least(asked, asked.summary, size)
    few = {group: n for group, n in counts.items() if n < needed}
    if not few:
        return None
    fewest = min(few.values())
    smallest = times * smallest_p(asked.test_of(asked.summary), fewest)
    return UndecidablePrimary(tuple(few), fewest, needed, min(1.0, smallest) or None, size)


def _seeds(asked: Settings, ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many seeds a comparison rests on: those in common, or those of the group that has fewer. With
    `analysis.select`, those that judge: both groups are taken to have several levels. With `analysis.sequential`, as
    many as may be added."""
    if asked.sequential is not None:
        return asked.sequential.max
    n = len({*ours} & {*theirs}) if asked.pairing == "seed" else min(len({*ours}), len({*theirs}))
    return n - n // 2 if asked.select else n


def _least(asked: Settings, summary: str, comparisons: int) -> tuple[int, int]:
    """How many times the adjusted p of a comparison is the floor of its test, and the seeds needed: with
    `analysis.sequential` the next `max` with a look that can decide."""
    times, test, rule = multiplied(asked.family, comparisons), asked.test_of(summary), asked.sequential
    if rule is None or test in T_TESTS:
        return times, seeds_needed(asked.alpha, times, test)
    from analysis.stats.sequential import Look, looks, spending

    designs = (looks(rule.start, rule.batch, most) for most in range(rule.max, MOST_SEEDS))
    alpha, pairs = asked.alpha / times, ((n, tuple((k, k) for k in n)) for n in designs)
    needed = (n[-1] for n, sizes in pairs if Look(test, sizes, spending(n)).can_decide(alpha))
    return times, next(needed, MOST_SEEDS + 1)


@dataclass(frozen=True)
class Findable:
    """What the test that decides a question finds with 80% power, with the fewest seeds that a comparison has.

    effect: a true difference, in standard deviations of the differences, or of one method's runs if not `paired`; None
    if no difference is large enough. level: at which the first of so many comparisons is asked. needed: the seeds
    without which the test decides nothing.
    """

    test: str
    paired: bool
    seeds: int
    effect: float | None
    level: float
    comparisons: int
    needed: int


def findable(asked: Settings, seeds: Mapping[str, Sequence[int]], baseline: str | None) -> Findable | None:
    """What the primary comparisons can find; None without any. seeds: of each group of the plan. It loads SciPy."""
    others = [listed for group, listed in seeds.items() if group != baseline]
    if baseline is None or not others:
        return None
    n = min(_seeds(asked, listed, seeds[baseline]) for listed in others)
    return _findable(asked, asked.summary, n, asked.family_size(len(seeds)))


def findable_hypotheses(asked: Settings, seeds: Mapping[str, Sequence[int]]) -> dict[str, Findable]:
    """What each hypothesis of TWO_GROUPS can find, by its id. seeds: of each group of the plan. It loads SciPy."""
    size = asked.family_size(len(seeds))
    return {
        h.id: _findable(asked, h.compared, _seeds(asked, seeds[h.group], seeds[h.against[0]]), size)
        for h in asked.hypotheses
        if h.kind in TWO_GROUPS
    }


def _findable(asked: Settings, summary: str, n: int, comparisons: int) -> Findable:
    from analysis.stats import power, sequential

    times, needed = _least(asked, summary, comparisons)
    test, level = asked.test_of(summary), asked.alpha / times
    if asked.sequential is not None:  # of the last look: an earlier one may find the difference, too
        rule = asked.sequential
        level = sequential.boundary(test, sequential.looks(rule.start, rule.batch, rule.max), level)[-1]
    effect = power.detectable(test, n, level)
    return Findable(test, asked.pairing == "seed", n, effect, level, comparisons, needed)


def power_at(design: Findable, effect: float) -> float:
    """The power at a true difference, in the unit of `Findable.effect`. It loads SciPy."""
    from analysis.stats import power

    return power.power_of(design.test, design.seeds, effect, design.level)


def widest_variation(seeds: int, most: float, alpha: float) -> float:
    """The largest coefficient of variation over the seeds whose whole interval is at most `most`. It loads SciPy."""
    from analysis.stats import dispersion

    return most / dispersion.factors(seeds, alpha)[1]


def undecidable(asked: Settings, seeds: Mapping[str, Sequence[int]]) -> tuple[Undecidable, ...]:
    """The hypotheses of TWO_GROUPS whose smallest adjusted p is above alpha, `spread` and `extreme` with too few
    seeds for their tests, and all whose groups have fewer than two seeds to compare; not those made of other
    hypotheses.

    seeds: of each group of the plan.
    """
    lacking = []
    for hypothesis in [hypothesis for hypothesis in asked.hypotheses if not hypothesis.of]:
        groups = [seeds[group] for group in (hypothesis.group, *hypothesis.against)]
        shared = min(_seeds(asked, listed, groups[0]) for listed in groups)
        needed = 2
        if hypothesis.kind in TWO_GROUPS:
            needed = _least(asked, hypothesis.compared, asked.family_size(len(seeds)))[1]
        elif hypothesis.kind == "extreme":  # supported if every rival is told from it at alpha itself
            needed = _least(asked, hypothesis.compared, 1)[1]
        elif hypothesis.kind == "spread":
            needed = 3 if asked.alpha > _SPREAD_OF_THREE else 4
        if shared < needed:
            lacking.append(Undecidable(hypothesis.id, shared, needed))
    return tuple(lacking)

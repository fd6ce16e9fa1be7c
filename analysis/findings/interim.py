"""Looks at comparisons while seeds are added (`analysis.sequential`): which seeds each look has, and where it stands.

A look is finished when every planned run of its seeds has ended, whatever came of it. A comparison is judged at the
look that decided it, or else at its last one: a group that gets no further seeds keeps its last look. Futility binds
nothing: the levels hold whether or not a futile comparison is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

import numpy as np

from analysis.data.cells import Pairs
from analysis.data.sweep import Sweep
from analysis.spec.settings import Settings
from analysis.stats import multiplicity, sequential
from analysis.stats.contrast import Contrast
from analysis.stats.sequential import Look
from launcher.run.lifecycle import RESUMABLE

#: A smaller chance to be decided in its favour ends a comparison; benchmarks.validity counts what it costs.
FUTILE = 0.05


class Status(StrEnum):
    """What becomes of a comparison after a look. CONTINUE: its group needs the next batch of seeds, and so does the
    baseline; no other group does. ENDED: it is undecided with all of its seeds."""

    CONTINUE = "continue"
    DECIDED = "decided"
    FUTILE = "futile"
    ENDED = "ended"


@dataclass(frozen=True)
class Standing:
    """Where a comparison stands after its last finished look.

    look: its number, from 1 to `looks`; 0 if no look is finished. seeds: the number of seeds that the look has, of at
    most `most`. level: the largest unadjusted p that decides at this look; 0 if no p does. spent: the share of alpha
    that all looks up to this one may use. chance: that the comparison is decided in favour of the group, or of a claim
    about it, when it has `most` seeds; None if it is not predicted.
    """

    group: str
    baseline: str
    look: int
    looks: int
    seeds: int
    most: int
    status: Status
    level: float
    spent: float
    chance: float | None


@dataclass(frozen=True)
class Schedule:
    """The looks of a sweep. seeds: in the order in which they are added; sizes: how many of them each look has; spent:
    the share of alpha of each; finished: how many looks are."""

    seeds: tuple[int, ...]
    sizes: tuple[int, ...]
    spent: tuple[float, ...]
    finished: int

    def at(self, look: int) -> frozenset[int]:
        """The seeds of a look, from 1 on; of 0 none."""
        return frozenset(self.seeds[: self.sizes[look - 1]]) if look else frozenset()

    def last(self, sweep: Sweep, *groups: str) -> int:
        """The last finished look for which all of these groups have new planned seeds."""
        planned = [{run.seed for run in sweep.runs_of(group)} for group in groups]
        news = ((look, self.at(look) - self.at(look - 1)) for look in range(self.finished, 1, -1))
        return next((look for look, new in news if all(new & seeds for seeds in planned)), min(1, self.finished))

    def share(self, look: int) -> float:
        """The share of alpha that a look may spend, for what is not a t test (Bonferroni's inequality)."""
        return self.spent[look - 1] - (self.spent[look - 2] if look > 1 else 0.0) if look else 0.0


#: What is compared of two groups: their pairs, the contrast with its look, and where it stands; None if the number of
#: seeds was fixed before.
ComparedSeeds = tuple[Pairs, Contrast, Standing | None]


def schedule(sweep: Sweep, settings: Settings) -> Schedule | None:
    """The looks of a sweep; None if the number of its seeds was fixed."""
    rule = settings.sequential
    if rule is None:
        return None
    sizes = sequential.looks(rule.start, rule.batch, rule.max)
    runs = dict.fromkeys(run.seed for run in sweep.runs)
    seeds = tuple(dict.fromkeys([*(seed for seed in sweep.plan.get("seeds") or () if seed in runs), *sorted(runs)]))
    open_ = {run.seed for run in sweep.runs if run.state in RESUMABLE or run.state == "missing"}
    ended = next((place for place, seed in enumerate(seeds) if seed in open_), len(seeds))
    return Schedule(seeds, sizes, sequential.spending(sizes), sum(size <= ended for size in sizes))


def finished(sweep: Sweep, settings: Settings) -> Sweep:
    """The sweep with the seeds of its finished looks; the sweep itself if the number of its seeds was fixed."""
    looks = schedule(sweep, settings)
    if looks is None:
        return sweep
    seeds = looks.at(looks.finished)
    return replace(sweep, runs=tuple(run for run in sweep.runs if run.seed in seeds))


def level(sweep: Sweep, settings: Settings, *groups: str) -> float:
    """The level at which a statement about these groups that no t test decides is asked at their last look."""
    looks = schedule(sweep, settings)
    if looks is None:
        return settings.alpha
    return settings.alpha * looks.share(looks.last(sweep, *groups))


def level_of_mean(sweep: Sweep, settings: Settings, group: str, seeds: Sequence[int]) -> float:
    """The level of the t interval of a group's mean at its last look; seeds: those with a value."""
    looks = schedule(sweep, settings)
    if looks is None:
        return settings.alpha
    last = looks.last(sweep, group)
    sizes = [len(looks.at(look) & {*seeds}) for look in range(1, last + 1)]
    return Look("paired_t", tuple((n, n) for n in sizes), looks.spent[:last]).level(settings.alpha) if last else 0.0


def asked(
    looks: Schedule,
    sweep: Sweep,
    settings: Settings,
    test: str,
    sides: Mapping[str, Collection[float]],
    against: Mapping[str, str],
    paired_at: Callable[[str, frozenset[int]], Pairs],
    stops: bool,
) -> dict[str, ComparedSeeds]:
    """Each group of `against` compared with the one that it names, at the look at which it is judged.

    sides: of each group, the signs of its difference that are hoped for, 1 or -1. paired_at(group, seeds): its pairs on
    these seeds. stops: whether a comparison that is decided ends there, as those of the primary measure do.
    """
    last = {group: looks.last(sweep, group, other) for group, other in against.items()}

    @cache
    def pairs(group: str, look: int) -> Pairs:
        return paired_at(group, looks.at(look))

    def at(group: str, look: int) -> Contrast:
        sizes = tuple((len(each.a), len(each.b)) for each in (pairs(group, k) for k in range(1, look + 1)))
        seen = Look(test, sizes, looks.spent[:look]) if look else None
        values = pairs(group, look)
        return Contrast(test, np.array(values.a), np.array(values.b), settings.seed, seen)

    decided: dict[str, int] = {}
    for k in range(looks.finished + 1):  # at 0, no comparison has a pair
        final = {group: decided.get(group, min(k, last[group])) for group in against}
        judged = {group: at(group, look) for group, look in final.items()}
        before = [contrast.p() for contrast in judged.values()]
        after, levels = multiplicity.adjusted(before, settings.family, settings.alpha)
        for group, p in zip(against, after, strict=True):
            if stops and p is not None and p <= settings.alpha:
                decided.setdefault(group, final[group])
    result = dict[str, ComparedSeeds]()
    for (group, contrast), alpha in zip(judged.items(), levels, strict=True):
        look = final[group]
        p, chance = contrast.p(), None
        status = Status.ENDED if look == len(looks.sizes) else Status.CONTINUE
        if p is not None and p <= alpha:
            status = Status.DECIDED
        elif status is Status.CONTINUE and look:
            chance = _chance(looks, contrast, alpha, sides[group])
            status = Status.FUTILE if chance is not None and chance < FUTILE else status
        standing = Standing(
            group=group, baseline=against[group], look=look, looks=len(looks.sizes),
            seeds=looks.sizes[look - 1] if look else 0, most=looks.sizes[-1], status=status,
            level=contrast.level(alpha) if look else 0.0, spent=looks.spent[look - 1] if look else 0.0, chance=chance,
        )  # fmt: skip
        result[group] = pairs(group, look), contrast, standing
    return result


def _chance(looks: Schedule, contrast: Contrast, alpha: float, sides: Collection[float]) -> float | None:
    """The chance that the last look decides for the likelier of these signs of the difference; 0 if no look to come can
    decide, whatever it shows."""
    if contrast.look is None or contrast.t is None:
        return None
    now, done = contrast.look.sizes[-1], len(contrast.look.sizes)
    more = [size - looks.sizes[done - 1] for size in looks.sizes[done:]]
    sizes = (*contrast.look.sizes, *((now[0] + new, now[1] + new) for new in more))
    last = Look(contrast.test, sizes, looks.spent)
    if not last.can_decide(alpha, done):
        return 0.0
    at_last = last.level(alpha)
    return max(sequential.chance(contrast.test, side * contrast.t, now, sizes[-1], at_last) for side in sides)

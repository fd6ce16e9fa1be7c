"""Seeds that were added after others had results.

Tests and intervals are right for a number of seeds that does not depend on the results. A report cannot know why seeds
were added, so it says that they were. The launcher creates the folders of all planned runs before the first one starts,
so a run that was resumed or had to wait does not count as added.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.data.sweep import Run, Sweep


def added(sweep: Sweep) -> tuple[list[int], list[int]]:
    """The seeds that were added, and the seeds that could be compared by then; both empty if none was added.

    A seed counts once two groups have it: the runs of one group may come from an earlier experiment. Seeds that the
    plan adds by a rule (`analysis.sequential`) do not count as added, up to its largest number.
    """
    rule = (sweep.plan.get("analysis") or {}).get("sequential") or {}
    declared = in_order(sweep)[: rule.get("max", 0)]
    runs: dict[int, dict[str, list[Run]]] = {}
    for run in sweep.runs:
        runs.setdefault(run.seed, {}).setdefault(run.group, []).append(run)
    planned: dict[int, float] = {}
    ended: dict[int, float] = {}
    for seed, groups in sorted(runs.items()):
        begun = [
            min(at) for own_runs in groups.values() if (at := [r.created for r in own_runs if r.created is not None])
        ]
        done = [[r.finished for r in own_runs if r.done and r.finished is not None] for own_runs in groups.values()]
        whole = [max(at) for at, members in zip(done, groups.values(), strict=True) if len(at) == len(members)]
        if begun:
            planned[seed] = _second(begun)
        if len(whole) > 1 or len(whole) == len(groups):
            ended[seed] = _second(whole)
    late = [seed for seed, at in planned.items() if ended and at > min(ended.values()) and seed not in declared]
    by_then = min((planned[seed] for seed in late), default=0.0)
    return late, [seed for seed, at in ended.items() if at < by_then]


def in_order(sweep: Sweep) -> tuple[int, ...]:
    """The planned seeds, in the order in which they were planned."""
    own = dict.fromkeys(run.seed for run in sweep.runs)
    return tuple(dict.fromkeys([seed for seed in sweep.plan.get("seeds") or () if seed in own] + sorted(own)))


def _second(times: Sequence[float]) -> float:
    return sorted(times)[:2][-1]

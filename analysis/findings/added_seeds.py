"""Seeds that were added when others had results: what was seen may have decided that more are run.

Tests and intervals hold for a number of seeds that does not depend on the results. A report cannot know why seeds were
added, so it says that they were. The launcher makes the folders of all runs that it plans before the first of them
begins: a run that was resumed, or had to wait, is none that was added.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.data.sweep import Run, Sweep
from analysis.spec.metric_catalog import capital

_MOST = 10  # seeds named


def added(sweep: Sweep) -> tuple[list[int], list[int]]:
    """The seeds that were added, and those that could be compared by then; both empty where none was.

    A seed counts from where two groups have it: one group's runs may have been another experiment's before.
    """
    runs: dict[int, dict[str, list[Run]]] = {}
    for run in sweep.runs:
        runs.setdefault(run.seed, {}).setdefault(run.group, []).append(run)
    planned: dict[int, float] = {}
    ended: dict[int, float] = {}
    for seed, groups in sorted(runs.items()):
        begun = [min(at) for own in groups.values() if (at := [run.created for run in own if run.created is not None])]
        done = [[run.finished for run in own if run.done and run.finished is not None] for own in groups.values()]
        whole = [max(at) for at, own in zip(done, groups.values(), strict=True) if len(at) == len(own)]
        if begun:
            planned[seed] = _second(begun)
        if len(whole) > 1 or len(whole) == len(groups):
            ended[seed] = _second(whole)
    late = [seed for seed, at in planned.items() if ended and at > min(ended.values())]
    by_then = min((planned[seed] for seed in late), default=0.0)
    return late, [seed for seed, at in ended.items() if at < by_then]


def said(sweep: Sweep) -> tuple[str, ...]:
    """That as a note; none where no seed was added."""
    late, known = added(sweep)
    if not late:
        return ()
    return (
        f"{capital(_named(late))} {'was' if len(late) == 1 else 'were'} added when {_named(known)} had results. If "
        "what was seen then decided it, p values are too small and intervals too narrow: choose the number of seeds "
        "before the first run.",
    )


def _second(times: Sequence[float]) -> float:
    return sorted(times)[:2][-1]


def _named(seeds: Sequence[int]) -> str:
    more = f" and {len(seeds) - _MOST} more" if len(seeds) > _MOST else ""
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds[:_MOST]))}{more}"

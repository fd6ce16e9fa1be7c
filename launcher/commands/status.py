"""python -m launcher status: the present standing of runs: states by group, last metric, time left, failures.

Exit codes: 0 fine, 1 some runs failed or diverged, 2 no such experiment.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.commands import completion
from launcher.project import EXIT_FAILED, EXIT_FINE
from launcher.run import catalog
from launcher.status import tables
from launcher.status.standing import FAILURES, Index, Standing, causes, stand
from launcher.text import clean, counted, duration, hours, say

HELP = "show the present standing of an experiment's runs: states, last metric, time left, failures"
_MOST_GROUPS = 30
_MOST_JOBS = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    default = "default: every planned experiment"
    completion.add(parser, "experiment", completion.experiments, "EXPERIMENT", default, nargs="?")


def run(given: argparse.Namespace) -> int:
    """JSON: by experiment total, states, groups (each state: n), metric, remaining_seconds, failures and more."""
    name, multirun = given.experiment, given.multirun
    plans = catalog.plans(multirun) if name is None else {name: catalog.read_plan(multirun, name)}
    index = Index(multirun)
    standings = [stand(multirun, plan, index) for plan in plans.values()]
    index.save()
    if given.json:
        print(json.dumps({standing.experiment: standing.document() for standing in standings}, indent=1))
    elif standings:
        for line in _shown(multirun, standings):
            say(line)
    else:
        print(f"{multirun}: no experiment is planned in this folder")
    failed = any(standing.states.get(state) for standing in standings for state in FAILURES)
    return EXIT_FAILED if failed else EXIT_FINE


def _shown(multirun: Path, standings: Sequence[Standing]) -> Iterator[str]:
    """One experiment in full, or a row for each of several."""
    if len(standings) == 1:
        (standing,) = standings
        yield _line(standing)
        yield from _groups(standing)
        yield from _explained(multirun, standing)
        return
    left = {one.experiment: duration(one.remaining_seconds) for one in standings if one.remaining_seconds is not None}
    counts = {one.experiment: one.states for one in standings}
    yield from tables.counts(counts, {"left": left} if left else {}, first="experiment")


def _line(standing: Standing) -> str:
    counts = ", ".join(f"{count} {tables.state_name(state)}" for state, count in standing.states.items())
    left = "" if standing.remaining_seconds is None else f"; about {duration(standing.remaining_seconds)} left"
    size = counted(standing.total, "run")
    if standing.steps is not None:
        size += f" of {counted(standing.steps, 'step')}"
    return clean(f"{standing.experiment}: {size}: {counts}{left}")


def _groups(standing: Standing) -> Iterator[str]:
    """One row for each group. Of many groups, those whose runs are all done are only counted."""
    groups = dict(standing.groups)
    if len(groups) > _MOST_GROUPS:
        groups = {name: group for name, group in groups.items() if set(group.states) != {"done"}}
    more: dict[str, Mapping[str, str]] = {"step": {name: f"{group.step:.0f}" for name, group in groups.items()}}
    if standing.metric is not None and any(group.metric is not None for group in groups.values()):
        metrics = {name: group.metric for name, group in groups.items()}
        more[standing.metric] = {name: "" if mean is None else f"{mean:.4g}" for name, mean in metrics.items()}
    if not standing.finished:
        more["work left"] = {name: duration(group.work_seconds) for name, group in groups.items()}
    yield from tables.counts({name: group.states for name, group in groups.items()}, more)
    if len(groups) < len(standing.groups):
        yield f"and {len(standing.groups) - len(groups)} more groups; --json lists all of them"


def _explained(multirun: Path, standing: Standing) -> Iterator[str]:
    """What failed and why, the jobs, the compute, and what to do."""
    yield from causes(multirun, standing)
    jobs = [
        f"{job} ({', '.join(f'{count} {tables.state_name(state)}' for state, count in states.items())})"
        for job, states in standing.jobs.items()
    ]
    if jobs:
        more = f" and {len(jobs) - _MOST_JOBS} more; --json lists all of them" if len(jobs) > _MOST_JOBS else ""
        yield f"jobs: {', '.join(jobs[:_MOST_JOBS])}{more}"
    if standing.device_hours:
        failed = standing.unfinished_device_hours
        of_which = f", {hours(failed)} of them in attempts that failed or were interrupted" if failed else ""
        yield f"compute until now: {hours(standing.device_hours)} {standing.unit}{of_which}"
    if any(standing.states.get(state) for state in ("failed", "diverged")):
        yield f"to run the failed runs again: {catalog.command(multirun, 'resume', standing.experiment)}"

"""python -m launcher status: the present standing of runs: states by group, last metric, time left, failures.

Exit codes: 0 fine, 1 some runs failed or diverged, 2 no such experiment, 130 if Ctrl-C ended `--watch` while runs
waited or ran.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import text
from launcher.commands import completion
from launcher.files import BadRunFolder
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED
from launcher.run import campaign_record, catalog
from launcher.run.campaign_record import CampaignRecord, StageRecord
from launcher.run.records import to_json
from launcher.status import tables
from launcher.status.index import Index
from launcher.status.standing import FAILURES, Standing, stand

if TYPE_CHECKING:
    from rich.console import RenderableType

HELP = "show the present standing of an experiment's runs: states, last metric, time left, failures"
_EVERY_S = 2.0
# Lines of a screen besides those of the groups, and the assumed height if there is no screen.
_OTHERS, _HEIGHT = 14, 44
_MOST_CAUSES = 5
_MOST_JOBS = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    """The experiment, and whether to watch it."""
    default = "or a campaign; default: every planned experiment, and every campaign"
    completion.add(parser, "experiment", completion.experiments_and_campaigns, "EXPERIMENT", default, nargs="?")
    parser.add_argument("--watch", action="store_true", help=f"repeat it every {_EVERY_S:g} s until all have ended")


def run(given: argparse.Namespace) -> int:
    """JSON: by experiment total, states, groups (each state: n), metric, remaining_seconds, failures and more."""
    campaigns = _campaigns(given.multirun, given.experiment)
    if given.experiment is not None and not campaigns:
        plans = {given.experiment: catalog.read_plan(given.multirun, given.experiment)}
    else:
        plans = catalog.plans(given.multirun)
        if given.experiment is not None:
            named = [name for record in campaigns for stage in record.stages for name in stage.experiments]
            plans = {name: plans[name] for name in dict.fromkeys(named) if name in plans}
    index = Index(given.multirun)

    def look() -> list[Standing]:
        return [stand(given.multirun, plan, index) for plan in plans.values()]

    watched, interrupted = given.watch and bool(plans), False
    if watched:
        try:
            _watch(given.multirun, look, given.json)
        except KeyboardInterrupt:
            interrupted = True
    standings = look()
    index.save()
    # A watch that prints lines has printed the last standing too.
    if not watched or (sys.stdout.isatty() and not given.json):
        _print(given.multirun, standings, campaigns, given.json)
    if interrupted and not all(standing.finished for standing in standings):
        return EXIT_INTERRUPTED
    failed = any(standing.states.get(state) for standing in standings for state in FAILURES)
    return EXIT_FAILED if failed else EXIT_FINE


def _campaigns(multirun: Path, name: str | None) -> list[CampaignRecord]:
    """The recorded campaign of that name, or all of them for None."""
    records = []
    for campaign in campaign_record.named(multirun):
        if name in (None, campaign):
            try:
                records.append(campaign_record.find(multirun, campaign))
            except BadRunFolder as error:
                if name is not None:
                    raise
                catalog.warn(str(error))
    return [record for record in records if record is not None]


def _print(multirun: Path, standings: Sequence[Standing], campaigns: Sequence[CampaignRecord], as_json: bool) -> None:
    by_name = {standing.experiment: standing for standing in standings}
    if as_json:
        of_campaigns = {
            record.campaign: {
                "campaign": record.campaign,
                "command": record.command,
                "stages": [{**to_json(stage), "states": _states(stage, by_name)} for stage in record.stages],
            }
            for record in campaigns
        }
        documents = {standing.experiment: standing.document() for standing in standings}
        print(json.dumps(documents | of_campaigns, indent=1))
        return
    for record in campaigns:
        print("\n".join(_campaign_lines(record, by_name)))
    if standings:
        tables.console().print(_shown(multirun, standings))
    elif not campaigns:
        print(f"{multirun}: no experiment is planned in this folder")


def _campaign_lines(record: CampaignRecord, standings: Mapping[str, Standing]) -> list[str]:
    """A line for each stage, and one for each figure of a gate that is not met."""
    shown = [f"campaign {record.campaign}"]
    for number, stage in enumerate(record.stages, 1):
        shown.append(f"  {number} {stage.name} ({', '.join(stage.experiments)}): {_stage(stage, standings)}")
        if stage.met is False:
            shown += [f"      {figure.sentence()}" for figure in stage.gate if not figure.met]
        shown += [f"      {level.into}: {level.key} = {level.value}, taken from {level.stage}" for level in stage.taken]
    return [text.clean(line) for line in shown]


def _stage(stage: StageRecord, standings: Mapping[str, Standing]) -> str:
    if stage.started is None:
        return "not started"
    counts = ", ".join(f"{count} {tables.state_name(state)}" for state, count in _states(stage, standings).items())
    parts = [counts or "no run"]
    if stage.incomplete is not None:
        parts.append(stage.incomplete)
    if stage.needs and stage.met is not None:
        parts.append("gate met" if stage.met else "gate not met")
    if stage.forced_by is not None:
        parts.append("forced")
    return "; ".join(parts)


def _states(stage: StageRecord, standings: Mapping[str, Standing]) -> dict[str, int]:
    """How many runs of a stage are in each state; experiments that have no plan yet are left out."""
    counts: Counter[str] = Counter()
    for name in stage.experiments:
        counts.update(standings[name].states if name in standings else {})
    return dict(counts)


def _watch(multirun: Path, look: Callable[[], list[Standing]], as_json: bool) -> None:
    """Show the standing until no run waits or runs: in place on a terminal, else with a line for each change."""
    from rich.live import Live

    in_place = sys.stdout.isatty() and not as_json
    printed: dict[str, tuple[Mapping[str, int], Mapping[str, int]]] = {}
    with Live(console=tables.console(), auto_refresh=False, transient=True) if in_place else nullcontext() as live:
        while True:
            standings = look()
            if live is not None:
                live.update(_shown(multirun, standings), refresh=True)
            for standing in standings if live is None else ():
                shown = standing.states, standing.stopped
                if printed.get(standing.experiment) != shown:
                    printed[standing.experiment] = shown
                    document = {standing.experiment: standing.document()}
                    print(json.dumps(document) if as_json else _line(standing), flush=True)
            if all(standing.finished for standing in standings):
                return
            time.sleep(_EVERY_S)


# ---------------------------------------------------------------- standing screen


def _line(standing: Standing) -> str:
    counts = ", ".join(f"{count} {tables.state_name(state)}" for state, count in standing.states.items())
    counts += f" ({len(standing.stopped)} stopped)" if standing.stopped else ""
    left = "" if standing.remaining_seconds is None else f"; about {text.duration(standing.remaining_seconds)} left"
    size = f"{text.counted(standing.total, 'run')} of {text.counted(standing.steps, 'step')}"
    return text.clean(f"{standing.experiment}: {size}: {counts}{left}")


def _shown(multirun: Path, standings: Sequence[Standing]) -> RenderableType:
    """One experiment in full, or a row for each of several."""
    from rich.console import Group
    from rich.text import Text

    stopped = [Text(line) for line in _stopped(standings)]
    if len(standings) == 1:
        (standing,) = standings
        lines = _explained(multirun, standing)
        return Group(Text(_line(standing)), *_groups(standing), *stopped, *map(Text, lines))
    left = {
        standing.experiment: text.duration(standing.remaining_seconds)
        for standing in standings
        if standing.remaining_seconds is not None
    }
    counts = {standing.experiment: standing.states for standing in standings}
    return Group(tables.counts_table(counts, {"left": left} if left else {}, first="experiment"), *stopped)


def _stopped(standings: Sequence[Standing]) -> list[str]:
    """A line for each running run whose process is stopped."""
    processes = {run_id: pid for standing in standings for run_id, pid in standing.stopped.items()}
    return [
        f"stopped: process {pid} of run {run_id} (kill -CONT {pid} continues it)" for run_id, pid in processes.items()
    ]


def _groups(standing: Standing) -> list[RenderableType]:
    """One row for each group. If there are too many for the screen, groups whose runs are all done are only counted."""
    from rich.text import Text

    names = list(standing.groups)
    most = max(5, shutil.get_terminal_size((80, _HEIGHT)).lines - _OTHERS)
    if len(names) > most:
        names = [name for name in names if set(standing.groups[name].states) != {"done"}][:most]
    groups = {name: standing.groups[name] for name in names}
    more: dict[str, Mapping[str, str]] = {"step": {name: f"{group.step:.0f}" for name, group in groups.items()}}
    if standing.metric is not None and any(group.metric is not None for group in groups.values()):
        more[standing.metric] = {
            name: "" if group.metric is None else f"{group.metric:.4g}" for name, group in groups.items()
        }
    if not standing.finished:
        more["work left"] = {name: text.duration(group.work_seconds) for name, group in groups.items()}
    shown: list[RenderableType] = [tables.counts_table({name: group.states for name, group in groups.items()}, more)]
    if len(groups) < len(standing.groups):
        shown.append(Text(f"and {len(standing.groups) - len(groups)} more groups; --json lists all of them"))
    return shown


def _explained(multirun: Path, standing: Standing) -> list[str]:
    """Each reason with one example and the command that shows more."""
    lines: list[str] = []
    for failure in standing.failures[:_MOST_CAUSES]:
        runs = text.counted(failure.runs, "run")
        kind = failure.failure_kind
        brackets = f" ({kind})" if kind and kind != failure.state else ""
        lines.append(f"{runs} {failure.state}{brackets}: {text.clean(failure.message)}")
        lines.append(f"    {catalog.command(multirun, 'logs', failure.example)}    # {text.clean(failure.title)}")
    if len(standing.failures) > _MOST_CAUSES:
        lines.append(f"and {len(standing.failures) - _MOST_CAUSES} more causes; --json lists all of them")
    jobs = [
        f"{job} ({', '.join(f'{count} {tables.state_name(state)}' for state, count in states.items())})"
        for job, states in standing.jobs.items()
    ]
    if jobs:
        more = f" and {len(jobs) - _MOST_JOBS} more; --json lists all of them" if len(jobs) > _MOST_JOBS else ""
        lines.append(f"jobs: {', '.join(jobs[:_MOST_JOBS])}{more}")
    lines += [text.clean(other.sentence()) for other in standing.other_code]
    if standing.device_hours:
        failed = standing.unfinished_device_hours
        of_which = f", {text.hours(failed)} of them in attempts that failed or were interrupted" if failed else ""
        lines.append(f"compute until now: {text.hours(standing.device_hours)} {standing.unit}{of_which}")
    if any(standing.states.get(state) for state in ("failed", "diverged")):
        lines.append(f"to run the failed runs again: {catalog.command(multirun, 'resume', standing.experiment)}")
    return lines

"""python -m launcher status: how the runs stand: by state and group, last metric, time left, failures by cause.

Exit codes: 0 fine, 1 some runs failed or diverged, 2 no such experiment, 130 when Ctrl-C ended `--watch` before no run
waited or ran any more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import text
from launcher.commands import completion
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED
from launcher.run import catalog
from launcher.status import standing as observe
from launcher.status import tables
from launcher.status.index import Index
from launcher.status.standing import Standing

if TYPE_CHECKING:
    from rich.console import RenderableType

HELP = "how an experiment's runs stand: states, last metric, time left, failures"
_EVERY_S = 2.0
# Lines of a screen that are no group's, and the lines of a reader that is none.
_OTHERS, _NO_SCREEN = 14, 44
_MOST_CAUSES = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    """The experiment, and whether to go on looking."""
    word = parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="default: every planned experiment")
    completion.completes(word, completion.experiments)
    parser.add_argument("--watch", action="store_true", help=f"look again every {_EVERY_S:g} s")


def run(given: argparse.Namespace) -> int:
    """JSON: by experiment total, states, groups (each state: n), metric, remaining_seconds, failures and more."""
    plans = {
        name: catalog.read_plan(given.multirun, name)
        for name in ([given.experiment] if given.experiment is not None else catalog.experiments(given.multirun))
    }
    index = Index(given.multirun)
    watched = given.watch and bool(plans)
    interrupted = False
    if watched:
        try:
            _watch(given.multirun, plans, index, given.json)
        except KeyboardInterrupt:
            interrupted = True
    standings = _look(given.multirun, plans, index)
    index.save()
    # A watch in lines has said it all.
    if not watched or (sys.stdout.isatty() and not given.json):
        _print(given.multirun, standings, given.json)
    if interrupted and not all(standing.settled for standing in standings):
        return EXIT_INTERRUPTED
    failed = any(standing.states.get(state) for standing in standings for state in observe.FAILURES)
    return EXIT_FAILED if failed else EXIT_FINE


def _print(multirun: Path, standings: Sequence[Standing], as_json: bool) -> None:
    if as_json:
        print(json.dumps(_document(standings), indent=1))
    elif standings:
        tables.console().print(_shown(multirun, standings))
    else:
        print(f"{multirun}: nothing is planned")


def _look(multirun: Path, plans: Mapping[str, Mapping[str, Any]], index: Index) -> list[Standing]:
    return [observe.stand(multirun, plan, index) for plan in plans.values()]


def _document(standings: Sequence[Standing]) -> dict[str, Any]:
    return {standing.experiment: standing.document() for standing in standings}


# ---------------------------------------------------------------- again and again


def _watch(multirun: Path, plans: Mapping[str, Mapping[str, Any]], index: Index, as_json: bool) -> None:
    """Show how the runs stand until none waits or runs: in place on a terminal, elsewhere a line a change."""
    if sys.stdout.isatty() and not as_json:
        from rich.live import Live

        with Live(console=tables.console(), auto_refresh=False, transient=True) as live:
            standings = _look(multirun, plans, index)
            while not all(standing.settled for standing in standings):
                live.update(_shown(multirun, standings), refresh=True)
                time.sleep(_EVERY_S)
                standings = _look(multirun, plans, index)
        return
    said: dict[str, Mapping[str, int]] = {}
    while True:
        standings = _look(multirun, plans, index)
        for standing in standings:
            if said.get(standing.experiment) != standing.states:
                said[standing.experiment] = standing.states
                print(json.dumps(_document([standing])) if as_json else _line(standing), flush=True)
        if all(standing.settled for standing in standings):
            return
        time.sleep(_EVERY_S)


# ---------------------------------------------------------------- one screen


def _line(standing: Standing) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in standing.states.items())
    left = "" if standing.remaining_seconds is None else f"; about {text.duration(standing.remaining_seconds)} left"
    size = f"{text.counted(standing.total, 'run')} of {text.counted(standing.steps, 'step')}"
    return text.clean(f"{standing.experiment}: {size}: {counts}{left}")


def _shown(multirun: Path, standings: Sequence[Standing]) -> RenderableType:
    """One experiment in full, or a row for each of several."""
    from rich.console import Group
    from rich.text import Text

    if len(standings) == 1:
        (standing,) = standings
        lines = _explained(multirun, standing)
        return Group(Text(_line(standing)), *_groups(standing), *map(Text, lines))
    left = {
        standing.experiment: text.duration(standing.remaining_seconds)
        for standing in standings
        if standing.remaining_seconds is not None
    }
    counts = {standing.experiment: standing.states for standing in standings}
    return tables.counts_table(counts, {"left": left} if left else {}, first="experiment")


def _groups(standing: Standing) -> list[RenderableType]:
    """A row a group; of very many, those that are done are only counted."""
    from rich.text import Text

    names = list(standing.groups)
    most = max(5, shutil.get_terminal_size((80, _NO_SCREEN)).lines - _OTHERS)
    if len(names) > most:
        names = [name for name in names if set(standing.groups[name].states) != {"done"}][:most]
    groups = {name: standing.groups[name] for name in names}
    more: dict[str, Mapping[str, str]] = {"step": {name: f"{group.step:.0f}" for name, group in groups.items()}}
    if standing.metric is not None and any(group.metric is not None for group in groups.values()):
        more[standing.metric] = {
            name: "" if group.metric is None else f"{group.metric:.4g}" for name, group in groups.items()
        }
    if not standing.settled:
        more["work left"] = {name: text.duration(group.work_seconds) for name, group in groups.items()}
    shown: list[RenderableType] = [tables.counts_table({name: group.states for name, group in groups.items()}, more)]
    if len(groups) < len(standing.groups):
        shown.append(Text(f"and {len(standing.groups) - len(groups)} more groups: --json has them all"))
    return shown


def _explained(multirun: Path, standing: Standing) -> list[str]:
    """Each cause with one example and the command that shows more."""
    lines: list[str] = []
    for failure in standing.failures[:_MOST_CAUSES]:
        runs = text.counted(failure.runs, "run")
        kind = f" ({failure.kind})" if failure.kind and failure.kind != failure.state else ""
        lines.append(f"{runs} {failure.state}{kind}: {text.clean(failure.cause)}")
        lines.append(f"    {catalog.command(multirun, 'logs', failure.example)}    # {text.clean(failure.title)}")
    if len(standing.failures) > _MOST_CAUSES:
        lines.append(f"and {len(standing.failures) - _MOST_CAUSES} more causes: --json has them all")
    if any(standing.states.get(state) for state in ("failed", "diverged")):
        lines.append(f"to take failed runs again: {catalog.command(multirun, 'retry', standing.experiment)}")
    return lines

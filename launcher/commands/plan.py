"""python -m launcher plan: the runs that launch.py would execute with these overrides.

Exit codes: 0 fine, 2 an invalid plan, with every problem on standard error.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from launcher.commands import completion
from launcher.config.identity import DATA
from launcher.errors import Usage, print_problems
from launcher.planning import hypotheses
from launcher.project import EXIT_FINE, EXIT_USAGE, ROOT
from launcher.run import catalog
from launcher.run.folder import find_state, read_config, run_folder
from launcher.run.lifecycle import NEW, RunState
from launcher.status import tables
from launcher.status.standing import UNFINISHED
from launcher.text import byte_size, counted, duration

if TYPE_CHECKING:
    from launcher.planning.cost import Estimate, History
    from launcher.planning.plan import Experiment, Plan
    from launcher.status.other_code import OtherCode

HELP = "print the runs that launch.py would execute with these overrides; writes nothing"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Overrides, as launch.py takes them."""
    example = "as for launch.py: experiment=NAME ..."
    completion.add(parser, "overrides", completion.overrides, "KEY=VALUE", example, nargs="*")


def run(given: argparse.Namespace) -> int:
    """The dry run, as tables or as JSON."""
    from launcher.errors import InvalidPlan
    from launcher.execution import code_changes
    from launcher.planning import continuation, planner
    from launcher.planning.cost import History
    from launcher.planning.plan import CodeChoice

    try:
        planned = planner.make(ROOT, given.overrides)
    except InvalidPlan as invalid:
        print_problems(invalid)
        return EXIT_USAGE
    states = {run_id: catalog.present_state(run_folder(planned.multirun, run_id)) for run_id in planned.runs}
    changed = code_changes.find(planned)
    if planned.code_choice == CodeChoice.RERUN:
        states |= {run_id: NEW for others in changed.values() for other in others for run_id in other.runs}
    done = [run_id for run_id, state in states.items() if state == RunState.DONE]
    cost = _Cost(planned, states, History(planned.multirun, planned.runs, done))
    whole = document(planned, states, cost, changed)
    if given.json:
        print(json.dumps(whole, indent=1))
    else:
        for experiment in planned.experiments:
            _print(experiment, whole["experiments"][experiment.name])
        _print_total(whole)
        for line in continuation.sentences(planned):
            print(line)
        for line in _changes(planned, states, changed):
            print(line)
    return EXIT_FINE


class _Cost:
    """The cost of those runs of a plan that are not done, on the slots that a launch would have."""

    def __init__(self, planned: Plan, states: Mapping[str, str], history: History) -> None:
        self._history = history
        self._left = {run.id: run for run in planned.runs.values() if states[run.id] != RunState.DONE}
        self.slots = _slots(planned)
        #: By run, the steps that it takes over from another one.
        self.taken_over = {run_id: step for run_id in self._left if (step := _step_taken_over(planned, run_id))}

    def of(self, ids: Sequence[str]) -> Estimate:
        """The cost of those of the runs that are not done."""
        from launcher.planning.cost import estimate

        runs = [self._left[run_id] for run_id in ids if run_id in self._left]
        return estimate(runs, self._history, self.slots, self.taken_over)

    def saved(self) -> tuple[int, float]:
        """The steps, and the device-hours, that no run computes again."""
        from launcher.planning.cost import device_hours

        hours = 0.0
        for run_id, step in self.taken_over.items():
            run = self._left[run_id]
            hours += device_hours(run, step * self._history.rate(run).seconds)
        return sum(self.taken_over.values()), hours

    def sources(self) -> dict[str, tuple[int, int]]:
        """By the source of a step's time: how many runs are estimated from it, and on how many runs it was measured."""
        sources: dict[str, tuple[int, int]] = {}
        for run in self._left.values():
            rate = self._history.rate(run)
            runs, most = sources.get(rate.source, (0, 0))
            sources[rate.source] = (runs + 1, max(most, rate.runs))
        return sources


def _step_taken_over(planned: Plan, run_id: str) -> int | None:
    """The step of another run from which a run goes on, or None."""
    if run_id in planned.prefixes:
        return planned.prefixes[run_id].step
    state = find_state(run_folder(planned.multirun, run_id))
    return state.prefix_step if state is not None else None


def _slots(planned: Plan) -> int | None:
    """How many runs a launch executes at a time; None if a cluster's queue decides."""
    from launcher.planning.resources import shape
    from launcher.schedulers.local.pool import slots, visible_devices

    if planned.cluster["name"] != "local":
        most: int | None = planned.cluster["max_running"]
        return most
    devices = max((shape(run.config).devices for run in planned.runs.values()), default=0)
    return len(slots(planned.cluster["slots"], devices, visible_devices()))


def document(
    planned: Plan, states: Mapping[str, str], cost: _Cost, changed: Mapping[str, Sequence[OtherCode]]
) -> dict[str, Any]:
    """The JSON object.

    device_hours, wall_seconds (on `slots`; both null if a cluster's queue decides) and storage_bytes (null: unknown)
    are those of the runs that are not done, estimated from step_times. `continued` has the step from which runs go on
    with the steps of another run, which saves saved_steps and saved_device_hours; `started_again` says why runs do not,
    although a run of fewer steps is done. `undecidable` names the hypotheses for which an
    experiment has too few seeds, whatever its runs show; `undecidable_primary` says so of its primary question;
    `other_code` names its runs of other code, by difference.
    """
    counts = Counter(states.values())
    total = cost.of(list(planned.runs))
    saved_steps, saved_hours = cost.saved()
    return {
        "total": len(planned.runs),
        "new": counts[NEW],
        "done": counts[RunState.DONE],
        "states": dict(sorted(counts.items())),
        "device_hours": total.device_hours,
        "saved_steps": saved_steps,
        "saved_device_hours": saved_hours,
        "continued": cost.taken_over,
        "started_again": {run_id: asdict(why) for run_id, why in planned.restarts.items()},
        "wall_seconds": total.wall_seconds,
        "slots": cost.slots,
        "storage_bytes": total.storage,
        "step_times": [
            {"source": source, "runs": runs, "measured_runs": measured}
            for source, (runs, measured) in cost.sources().items()
        ],
        "experiments": {
            experiment.name: {
                "factors": {factor["label"]: factor["levels"] for factor in experiment.factors.values()},
                "seeds": list(experiment.seeds),
                "undecidable": hypotheses.undecidable(experiment),
                "undecidable_primary": hypotheses.undecidable_primary(experiment),
                "other_code": [other.document() for other in changed.get(experiment.name, ())],
                "other_data": other_data(planned, experiment),
                "groups": {group: _group(ids, states, cost.of(ids)) for group, ids in by_group(experiment).items()},
            }
            for experiment in planned.experiments
        },
        "runs": [
            {
                "id": entry.id,
                "experiment": experiment.name,
                "group": entry.group,
                "factors": entry.factors,
                "seed": entry.seed,
                "state": states[entry.id],
            }
            for experiment in planned.experiments
            for entry in experiment.entries
        ],
    }


def _group(ids: Sequence[str], states: Mapping[str, str], cost: Estimate) -> dict[str, Any]:
    return {
        "total": len(ids),
        "states": dict(sorted(Counter(states[run_id] for run_id in ids).items())),
        "device_hours": cost.device_hours,
        "wall_seconds": cost.wall_seconds,
        "storage_bytes": cost.storage,
    }


def by_group(experiment: Experiment) -> dict[str, list[str]]:
    """The ids of each group's runs, each once."""
    rows: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in experiment.entries:
        rows[entry.group][entry.id] = None
    return {group: list(ids) for group, ids in rows.items()}


def _print(experiment: Experiment, planned: Mapping[str, Any]) -> None:
    """Print an experiment and its part of the document."""
    groups: Mapping[str, Mapping[str, Any]] = planned["groups"]
    total = len({entry.id for entry in experiment.entries})
    size = f"{counted(total, 'run')} of {counted(experiment.steps, 'step')}"
    print(f"{experiment.name}: {size}, {counted(len(experiment.seeds), 'seed')}")
    for label, levels in planned["factors"].items():
        print(f"  {label}: {', '.join(map(str, levels))}")
    columns = {"device-hours": {name: f"{group['device_hours']:.2f}" for name, group in groups.items()}}
    walls = {name: group["wall_seconds"] for name, group in groups.items() if group["wall_seconds"] is not None}
    if walls:
        columns["wall time"] = {name: duration(seconds) for name, seconds in walls.items()}
    tables.console().print(tables.counts_table({name: group["states"] for name, group in groups.items()}, columns))
    for line in (hypotheses.findable(experiment), *hypotheses.warnings(experiment)):
        if line is not None:
            print(line)


def other_data(planned: Plan, experiment: Experiment) -> dict[str, list[str]]:
    """The data files whose content differs between this plan and the last one of the experiment: by path, the done runs
    of the last plan, which have the old content."""
    try:
        entries = catalog.entries(catalog.read_plan(planned.multirun, experiment.name))
    except Usage:  # there is no plan yet, or it cannot be read
        return {}
    now = {path: digest for run in planned.runs.values() for path, digest in run.config.get(DATA, {}).items()}
    former: dict[str, list[str]] = {}
    for run_id in entries if now else ():
        folder = run_folder(planned.multirun, run_id)
        if run_id not in planned.runs and catalog.present_state(folder) == RunState.DONE:
            for path, digest in read_config(folder).get(DATA, {}).items():
                if now.get(path, digest) != digest:
                    former.setdefault(path, []).append(run_id)
    return former


def _changes(planned: Plan, states: Mapping[str, str], changed: Mapping[str, Sequence[OtherCode]]) -> Iterator[str]:
    """What has changed since the done runs: code, and what a launch does about it; data."""
    from launcher.planning.plan import CodeChoice

    for experiment in planned.experiments:
        for path, runs in other_data(planned, experiment).items():
            done = f"{len(runs)} done with other data: {path} changed since"
            yield f"{experiment.name}: {done}; with the new content all its runs are new"
        others = changed.get(experiment.name, ())
        yield from (f"{experiment.name}: {other.sentence()}" for other in others)
        if planned.code_choice == CodeChoice.RERUN and others:
            yield f"rerun=changed: {counted(sum(len(other.runs) for other in others), 'run')} are archived and run anew"
        elif planned.code_choice == CodeChoice.REFUSE and any(not other.accepted for other in others):
            waiting = any(states[entry.id] in UNFINISHED for entry in experiment.entries)
            refused = "A launch refuses to compare new runs with them" if waiting else "To add runs to them"
            yield f"{refused}: choose rerun=changed (they are archived and run anew) or accept_code=true (recorded)"


def _print_total(document: Mapping[str, Any]) -> None:
    print(f"{counted(document['total'], 'run')}, {document['done']} done")
    if document["done"] == document["total"]:
        return
    storage, wall = document["storage_bytes"], ""
    if document["wall_seconds"] is not None:
        wall = f", about {duration(document['wall_seconds'])} ({document['slots']} in parallel)"
    space = "storage unknown" if storage is None else f"{byte_size(storage)} of storage"
    print(f"remaining: {document['device_hours']:.2f} device-hours{wall}, {space}")
    if document["saved_steps"]:
        saved = f"{counted(document['saved_steps'], 'step')}, {document['saved_device_hours']:.2f} device-hours"
        print(f"taken over from other runs: {saved}")
    sources = [
        f"{time['source']} for {counted(time['runs'], 'run')}"
        + (f" (medians of up to {time['measured_runs']})" if time["measured_runs"] else "")
        for time in document["step_times"]
    ]
    print(f"step times from {'; '.join(sources)}")

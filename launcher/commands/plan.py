"""python -m launcher plan: what launch.py would do with these overrides.

Exit codes: 0 fine, 2 an invalid plan, with every problem on standard error.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.commands import completion
from launcher.errors import print_problems
from launcher.planning import hypotheses
from launcher.project import EXIT_FINE, EXIT_USAGE, ROOT
from launcher.run import catalog, folder
from launcher.status.tables import states_table
from launcher.text import byte_size, counted, duration

if TYPE_CHECKING:
    from launcher.planning.cost import Estimate, History
    from launcher.planning.plan import Experiment, Plan

HELP = "print the runs that launch.py would do with these overrides; writes nothing"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Overrides, as launch.py takes them."""
    words = parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="as for launch.py: experiment=NAME ..."
    )
    completion.completes(words, completion.overrides)


def run(given: argparse.Namespace) -> int:
    """The dry run, as tables or as JSON."""
    from launcher.errors import InvalidPlan
    from launcher.planning import planner
    from launcher.planning.cost import History

    try:
        planned = planner.make(ROOT, given.overrides)
    except InvalidPlan as invalid:
        print_problems(invalid)
        return EXIT_USAGE
    states = {run_id: catalog.present_state(folder.run_folder(planned.multirun, run_id)) for run_id in planned.runs}
    done = [run_id for run_id, state in states.items() if state == folder.DONE]
    cost = _Cost(planned, states, History(planned.multirun, planned.runs, done))
    if given.json:
        print(json.dumps(document(planned, states, cost), indent=1))
    else:
        for experiment in planned.experiments:
            _print(experiment, states, cost)
        _print_total(planned, states, cost)
    return EXIT_FINE


class _Cost:
    """What the runs of a plan that are not done cost, on the slots that a launch would have."""

    def __init__(self, planned: Plan, states: Mapping[str, str], history: History) -> None:
        self._history = history
        self._left = {run.id: run for run in planned.runs.values() if states[run.id] != folder.DONE}
        self.slots = _slots(planned)

    def of(self, ids: Sequence[str]) -> Estimate:
        """The cost of those of the runs that are not done."""
        from launcher.planning.cost import estimate

        return estimate([self._left[one] for one in ids if one in self._left], self._history, self.slots)

    def sources(self) -> dict[str, tuple[int, int]]:
        """By the source of a step's time: the runs that are estimated from it, and the most runs it was measured on."""
        found: dict[str, tuple[int, int]] = {}
        for run in self._left.values():
            rate = self._history.rate(run)
            runs, most = found.get(rate.source, (0, 0))
            found[rate.source] = (runs + 1, max(most, rate.runs))
        return found


def _slots(planned: Plan) -> int | None:
    """How many runs a launch has at a time; None where a cluster's queue decides."""
    from launcher.planning.resources import shape
    from launcher.schedulers.local.pool import slots, visible_devices

    if planned.cluster["name"] != "local":
        most: int | None = planned.cluster["max_running"]
        return most
    asked = max((shape(run.config).devices for run in planned.runs.values()), default=0)
    return len(slots(planned.cluster["slots"], asked, visible_devices()))


def document(planned: Plan, states: Mapping[str, str], cost: _Cost) -> dict[str, Any]:
    """The JSON object. device_hours, wall_seconds (on `slots`; both null where a cluster's queue decides) and
    storage_bytes (null: unknown) are of the runs that are not done; step_times says what they rest on; undecidable
    names the hypotheses for which an experiment has too few seeds, whatever its runs show.
    """
    counts = Counter(states.values())
    total = cost.of(list(planned.runs))
    return {
        "total": len(planned.runs),
        "new": counts[folder.NEW],
        "done": counts[folder.DONE],
        "states": dict(sorted(counts.items())),
        "device_hours": total.device_hours,
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
    counts = Counter(states[one] for one in ids)
    own = {"states": dict(sorted(counts.items())), "device_hours": cost.device_hours}
    return {"total": len(ids), **own, "wall_seconds": cost.wall_seconds, "storage_bytes": cost.storage}


def by_group(experiment: Experiment) -> dict[str, list[str]]:
    """The ids of each group's runs, each once."""
    rows: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in experiment.entries:
        rows[entry.group][entry.id] = None
    return {group: list(ids) for group, ids in rows.items()}


def _print(experiment: Experiment, states: Mapping[str, str], cost: _Cost) -> None:
    rows = by_group(experiment)
    total = len({entry.id for entry in experiment.entries})
    size = f"{counted(total, 'run')} of {counted(experiment.steps, 'step')}"
    print(f"{experiment.name}: {size}, {counted(len(experiment.seeds), 'seed')}")
    for factor in experiment.factors.values():
        print(f"  {factor['label']}: {', '.join(map(str, factor['levels']))}")
    costs = {group: cost.of(ids) for group, ids in rows.items()}
    columns = {"device-hours": {group: f"{own.device_hours:.2f}" for group, own in costs.items()}}
    walls = {group: duration(own.wall_seconds) for group, own in costs.items() if own.wall_seconds is not None}
    if walls:
        columns["wall time"] = walls
    states_table({group: [states[one] for one in ids] for group, ids in rows.items()}, columns)
    warning = hypotheses.warning(experiment)
    if warning:
        print(warning)


def _print_total(planned: Plan, states: Mapping[str, str], cost: _Cost) -> None:
    done, total = sum(state == folder.DONE for state in states.values()), cost.of(list(planned.runs))
    print(f"{counted(len(planned.runs), 'run')}, {done} done")
    if done == len(planned.runs):
        return
    storage = "storage unknown" if total.storage is None else f"{byte_size(total.storage)} of storage"
    wall = ""
    if cost.slots is not None and total.wall_seconds is not None:
        wall = f", {duration(total.wall_seconds)} {cost.slots if cost.slots > 1 else 'one'} at a time"
    print(f"the others: {total.device_hours:.2f} device-hours{wall}, {storage}")
    found = [
        f"{source} for {counted(runs, 'run')}" + (f" (medians of up to {measured})" if measured else "")
        for source, (runs, measured) in cost.sources().items()
    ]
    print(f"step times from {'; '.join(found)}")

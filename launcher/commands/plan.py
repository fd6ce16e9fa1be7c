"""python -m launcher plan: the runs that launch.py would execute with these overrides; of a campaign, its stages.

Exit codes: 0 fine, 2 an invalid plan, with every problem on standard error.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher import project
from launcher.commands import certify, completion
from launcher.errors import Usage
from launcher.files import BadRunFolder
from launcher.planning import hypotheses
from launcher.project import EXIT_FINE, spelled
from launcher.run import catalog, lifecycle
from launcher.run.folder import read_object
from launcher.run.lifecycle import NEW
from launcher.status.standing import UNFINISHED
from launcher.text import counted, duration, hours, say

if TYPE_CHECKING:
    from launcher.execution.checks import Others
    from launcher.execution.costs import Forecast
    from launcher.planning.plan import Experiment, Plan

HELP = "print the runs that launch.py would execute with these overrides; writes nothing"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Overrides, as launch.py takes them."""
    example = "as for launch.py: experiment=NAME ..., or campaign=NAME ..."
    parser.add_argument("-m", action="store_true", help="as launch.py takes it; every plan is of all runs")
    completion.add(parser, "overrides", completion.overrides, "KEY=VALUE", example, nargs="*")


def run(given: argparse.Namespace) -> int:
    """The dry run, as tables or as JSON."""
    from launcher.campaign import stages
    from launcher.execution import checks
    from launcher.execution.costs import Forecast, budget_line
    from launcher.planning import planner

    if stages.is_campaign(given.overrides):
        return _run_campaign(given)
    planned = planner.make(project.root(), given.overrides)
    plugin = any(word.lstrip("+").startswith("hydra/launcher=") for word in given.overrides)
    checks.refuse_dry(planned, plugin)
    old = planned.runs.keys() & {*catalog.run_ids(planned.multirun)}  # most may be new
    found = {**dict.fromkeys(planned.runs), **lifecycle.find_states(planned.multirun, old)}
    changed = checks.other_code(planned, found)
    found |= dict.fromkeys(checks.run_anew(planned, changed))
    states = lifecycle.present_states(planned.multirun, found)
    forecast = Forecast(planned, found)
    whole = document(planned, states, forecast, changed)
    if given.json:
        print(json.dumps(whole, indent=1))
    else:
        for experiment in planned.experiments:
            _print(experiment, whole["experiments"][experiment.name], whole["unit"], _spread(planned, experiment))
        _print_total(whole)
        warnings = filter(None, (budget_line(planned, forecast), *whole["warnings"]))
        for line in (*planned.continuations(), *map(spelled, warnings), *_changes(planned, states, changed)):
            say(line)
    return EXIT_FINE


def _run_campaign(given: argparse.Namespace) -> int:
    """The dry run of a campaign. Raises InvalidPlan with the problems of every stage."""
    from launcher.campaign import campaign, forecast, stages
    from launcher.config.hydra_compose import of_project

    composer = of_project()
    declared = stages.read(project.root(), given.overrides, composer)
    document = forecast.document(declared.name, *campaign.plan_and_check(declared))
    if given.json:
        print(json.dumps(document, indent=1))
    else:
        forecast.show(document)
    return EXIT_FINE


def document(planned: Plan, states: Mapping[str, str], cost: Forecast, changed: Others) -> dict[str, Any]:
    """The JSON object.

    device_hours, wall_seconds (on `slots`; both null if a queue decides) and storage_bytes (null: unknown) are those of
    the runs that are not done, estimated from step_times.
    spent_device_hours is what all attempts took until now, of budget_device_hours (null: without limit). `unit` is what
    messages call these hours: CPU-hours where no run has a device. `sequential` says how seeds are added, and what
    these can cost at most.
    `continued` has the step from which runs go on with the steps of other runs; `started_again` says why runs do not,
    although a run of fewer steps is done.
    `warnings` says what a launch changes of what was declared, and what may fail although the plan is valid.
    `undecidable` names the hypotheses for which an experiment has too few seeds, whatever its runs show;
    `undecidable_primary` says so of its primary question; `other_code` names its runs of other code, by difference.
    """
    from launcher.execution.costs import sized, totals

    return {
        **totals(planned, states, cost),
        "new": sum(state == NEW for state in states.values()),
        "continued": cost.taken_over,
        "started_again": dict(planned.restarts),
        "step_times": [
            {"source": source, "runs": runs, "measured_runs": measured}
            for source, (runs, measured) in cost.sources().items()
        ],
        "experiments": {
            experiment.name: {
                "factors": {factor["label"]: factor["levels"] for factor in experiment.factors.values()},
                "seeds": list(experiment.seeds),
                "sequential": cost.of_added_seeds(experiment),
                "undecidable": hypotheses.undecidable(experiment),
                "undecidable_primary": hypotheses.undecidable_primary(experiment),
                "other_code": [other.document() for other in changed.get(experiment.name, ())],
                "groups": {name: sized(ids, states, cost.estimate(ids)) for name, ids in by_group(experiment).items()},
            }
            for experiment in planned.experiments
        },
        "runs": [
            {**vars(entry), "experiment": experiment.name, "state": states[entry.id]}
            for experiment in planned.experiments
            for entry in experiment.entries
        ],
    }


def by_group(experiment: Experiment) -> dict[str, list[str]]:
    """The ids of each group's runs, each once."""
    rows: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in experiment.entries:
        rows[entry.group][entry.id] = None
    return {group: list(ids) for group, ids in rows.items()}


def _spread(planned: Plan, experiment: Experiment) -> float:
    """What the experiment's certificate says of the final value of its primary metric; 0: nothing."""
    path = planned.multirun / experiment.name / certify.NAME
    metric = (experiment.analysis.get("primary") or {}).get("metric")
    try:
        return float(read_object(path)["spread"].get(metric, 0.0))
    except FileNotFoundError:
        return 0.0
    except (BadRunFolder, KeyError, AttributeError, TypeError, ValueError) as error:
        raise Usage(f"{path}: not a certificate of this version. Fix: delete it, or repeat `certify`") from error


def _print(experiment: Experiment, planned: Mapping[str, Any], unit: str, spread: float) -> None:
    """Print an experiment and its part of the document; unit: of the hours; spread: as `_spread` says."""
    from launcher.execution.costs import added_words, print_costs

    total = len({entry.id for entry in experiment.entries})
    assert experiment.steps is not None  # it is of a program else, which plans itself
    size = f"{counted(total, 'run')} of {counted(experiment.steps, 'step')}"
    print(f"{experiment.name}: {size}, {counted(len(experiment.seeds), 'seed')}")
    if planned["sequential"] is not None:
        say(f"  {added_words(planned['sequential'], unit)}")
    for label, levels in planned["factors"].items():
        print(f"  {label}: {', '.join(map(str, levels))}")
    print_costs(planned["groups"], unit)
    for line in filter(None, (hypotheses.findable(experiment, spread), *hypotheses.warnings(experiment))):
        say(line)


def _changes(planned: Plan, states: Mapping[str, str], changed: Others) -> Iterator[str]:
    """What code has changed since the done runs, and what a launch does about it."""
    from launcher.planning.plan import CodeChoice

    for experiment in planned.experiments:
        others = changed.get(experiment.name, ())
        yield from (f"{experiment.name}: {other.sentence()}" for other in others)
        if planned.code_choice == CodeChoice.RERUN and others:
            yield f"rerun=changed: {counted(sum(len(other.runs) for other in others), 'run')} are archived and run anew"
        elif planned.code_choice == CodeChoice.REFUSE and any(not other.accepted for other in others):
            waiting = any(states[entry.id] in UNFINISHED for entry in experiment.entries)
            refused = "A launch refuses to compare new runs with them" if waiting else "To add runs to them"
            yield f"{refused}: choose rerun=changed (they are archived and run anew) or accept_code=true (recorded)"


def _print_total(document: Mapping[str, Any]) -> None:
    spent, unit = document["spent_device_hours"], document["unit"]
    until_now = f"; their attempts took {hours(spent)} {unit} until now" if spent else ""
    print(f"{counted(document['total'], 'run')}, {document['done']} done{until_now}")
    if document["done"] == document["total"]:
        return
    from launcher.execution.costs import storage_words

    wall = ""
    if document["wall_seconds"] is not None:
        wall = f", about {duration(document['wall_seconds'])} ({document['slots']} in parallel)"
    space = storage_words(document["storage_bytes"])
    print(f"remaining: {document['device_hours']:.2f} {unit}{wall}, {space}")
    sources = [
        f"{time['source']} for {counted(time['runs'], 'run')}"
        + (f" (medians of up to {time['measured_runs']})" if time["measured_runs"] else "")
        for time in document["step_times"]
    ]
    say(f"step times from {'; '.join(sources)}")

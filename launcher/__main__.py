"""python -m launcher plan | show | status | retry: what would run, what a run is, how it stands, failed runs again."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import claim
from launcher import run as folders
from launcher.sweeper import EXIT_FINE, EXIT_USAGE, ROOT, print_problems, run_sweep

NEW = "new"


class Usage(Exception):
    """A command that names something that does not exist."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m launcher", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    plan = commands.add_parser(
        "plan", help="print the runs that launch.py would do with these overrides; writes nothing"
    )
    plan.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for launch.py: experiment=NAME ...")

    show = commands.add_parser("show", help="print a run's frozen configuration")
    show.add_argument("run", metavar="RUN", help="a run's id, or its beginning")
    show.add_argument("--full", action="store_true", help="with verl's whole tree, merged and resolved")

    status = commands.add_parser("status", help="count an experiment's runs by state")
    status.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="default: every planned experiment")

    retry = commands.add_parser("retry", help="take an experiment's failed, diverged and cancelled runs again")
    retry.add_argument("experiment", metavar="EXPERIMENT")

    for command in (plan, show, status):
        command.add_argument("--json", action="store_true", help="print one JSON object")
    for command in (show, status, retry):
        command.add_argument("--multirun", type=Path, default=ROOT / "multirun", help="default: beside launch.py")
    given = parser.parse_args(arguments)
    try:
        if given.command == "plan":
            return plan_command(given.overrides, given.json)
        if given.command == "show":
            return show_command(given.multirun, given.run, given.full, given.json)
        if given.command == "status":
            return status_command(given.multirun, given.experiment, given.json)
        return retry_command(given.multirun, given.experiment)
    except Usage as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


# ---------------------------------------------------------------- plan


def plan_command(overrides: Sequence[str], as_json: bool) -> int:
    """The dry run. JSON: total, new, done, states, device_hours (of the runs not done), runs."""
    from launcher import plan as plans
    from launcher.problem import InvalidPlan

    try:
        planned = plans.make(ROOT, overrides)
    except InvalidPlan as invalid:
        print_problems(invalid)
        return EXIT_USAGE
    states = {run_id: present_state(folders.run_folder(planned.multirun, run_id)) for run_id in planned.runs}
    counts = Counter(states.values())
    left = [run for run in planned.runs.values() if states[run.id] != folders.DONE]
    hours = sum(run.device_hours for run in left)
    if as_json:
        document = {
            "total": len(planned.runs),
            "new": counts[NEW],
            "done": counts[folders.DONE],
            "states": dict(sorted(counts.items())),
            "device_hours": hours,
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
        print(json.dumps(document, indent=1))
        return EXIT_FINE
    for experiment in planned.experiments:
        print(f"{experiment.name}: {len({entry.id for entry in experiment.entries})} runs of {experiment.steps} steps")
        for factor in experiment.factors.values():
            print(f"  {factor['label']}: {', '.join(map(str, factor['levels']))}")
        rows: dict[str, dict[str, None]] = defaultdict(dict)
        for entry in experiment.entries:
            rows[entry.group][entry.id] = None
        estimates = {group: sum(planned.runs[one].device_hours for one in ids) for group, ids in rows.items()}
        _table({group: [states[one] for one in ids] for group, ids in rows.items()}, estimates)
    print(f"{len(planned.runs)} runs, {counts[folders.DONE]} done; estimate for the others: {hours:.2f} device-hours")
    return EXIT_FINE


def present_state(folder: Path) -> str:
    """A run's state as it stands: `new` without a folder, `lost` when it says running but no process has it."""
    state = folders.find_state(folder)
    if state is None:
        return NEW
    if state.state == folders.RUNNING and claim.live_claim(folder) is None:
        return folders.LOST
    return state.state


def _table(states: Mapping[str, Sequence[str]], hours: Mapping[str, float] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    kinds = [kind for kind in (NEW, *folders.STATES) if any(kind in own for own in states.values())]
    table = Table(box=None, pad_edge=False)
    for heading in ("group", "runs", *kinds, *(["device-hours"] if hours else [])):
        table.add_column(heading, justify="left" if heading == "group" else "right")
    for group, own in states.items():
        counts = Counter(own)
        row = [group, str(len(own)), *(str(counts[kind]) for kind in kinds)]
        table.add_row(*row, *([f"{hours[group]:.2f}"] if hours else []))
    Console().print(table, markup=False)


# ---------------------------------------------------------------- show


def show_command(multirun: Path, beginning: str, full: bool, as_json: bool) -> int:
    """A run's frozen configuration, as YAML or JSON."""
    folder = find_run(multirun, beginning)
    config = folders.read_config(folder)
    if full:
        from omegaconf import OmegaConf

        from launcher.worker import whole_config

        config = OmegaConf.to_container(whole_config(folder, config), resolve=True)
    print(json.dumps(config, indent=1) if as_json else folders.dump_yaml(config), end="\n" if as_json else "")
    return EXIT_FINE


def find_run(multirun: Path, beginning: str) -> Path:
    """The one run whose id begins so."""
    found = sorted(path for path in folders.runs_folder(multirun).glob(f"{beginning}*") if path.is_dir())
    if len(found) == 1:
        return found[0]
    several = f"several: {', '.join(path.name for path in found[:5])}" if found else "none does"
    raise Usage(f"{folders.runs_folder(multirun)}: one run's id must begin with {beginning!r}; {several}")


# ---------------------------------------------------------------- status and retry


def read_plan(multirun: Path, experiment: str) -> dict[str, Any]:
    """An experiment's plan.json."""
    path = multirun / experiment / "plan.json"
    if not path.is_file():
        raise Usage(f"{path}: no such plan; planned: {', '.join(planned_experiments(multirun)) or 'none'}")
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def planned_experiments(multirun: Path) -> list[str]:
    """The experiments that have a plan."""
    return sorted(path.parent.name for path in multirun.glob("*/plan.json"))


def status_command(multirun: Path, experiment: str | None, as_json: bool) -> int:
    """Counts by state, per group. JSON: {experiment: {total, groups: {group: {state: n}}}}."""
    document: dict[str, Any] = {}
    for name in [experiment] if experiment else planned_experiments(multirun):
        groups: dict[str, dict[str, str]] = defaultdict(dict)
        for entry in read_plan(multirun, name)["runs"]:
            groups[entry["group"]][entry["id"]] = ""
        states = {
            group: [present_state(folders.run_folder(multirun, run_id)) for run_id in ids]
            for group, ids in groups.items()
        }
        total = len({run_id for ids in groups.values() for run_id in ids})
        document[name] = {"total": total, "groups": {group: dict(Counter(own)) for group, own in states.items()}}
        if not as_json:
            print(f"{name}: {total} runs")
            _table(states)
            for run_id, state in _with_causes(multirun, [one for ids in groups.values() for one in ids]):
                print(f"{run_id} {state.state}: {state.cause}")
    if as_json:
        print(json.dumps(document, indent=1))
    elif not document:
        print(f"{multirun}: nothing is planned")
    return EXIT_FINE


def _with_causes(multirun: Path, ids: Sequence[str]) -> list[tuple[str, folders.State]]:
    """The first run of each cause for not being done."""
    found: dict[str, tuple[str, folders.State]] = {}
    for run_id in ids:
        state = folders.find_state(folders.run_folder(multirun, run_id))
        if state is not None and state.state != folders.DONE and state.cause:
            found.setdefault(state.cause, (run_id, state))
    return list(found.values())


def retry_command(multirun: Path, experiment: str) -> int:
    """Plan the failed runs again, then run the experiment's own command."""
    import shlex

    plan = read_plan(multirun, experiment)
    taken = [run_id for run_id in dict.fromkeys(entry["id"] for entry in plan["runs"]) if reset(multirun, run_id)]
    print(f"{experiment}: {len(taken)} runs to retry", flush=True)
    arguments = shlex.split(plan["command"])
    return run_sweep(arguments[arguments.index("-m") + 1 :])


def reset(multirun: Path, run_id: str) -> bool:
    """Make a failed, diverged or cancelled run planned again; its attempts and checkpoints stay."""
    folder = folders.run_folder(multirun, run_id)
    if not folder.is_dir():
        return False
    with claim.locked(folder):
        state = folders.find_state(folder)
        if state is None or state.state not in folders.RETRYABLE:
            return False
        folders.write_state(
            folder, state.but(state=folders.PLANNED, started=None, finished=None, cause=None, error=None)
        )
    return True


if __name__ == "__main__":
    sys.exit(main())

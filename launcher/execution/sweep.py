"""Reconciliation: plan -> freeze -> run what is missing -> report. Saying it twice changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.errors import InvalidPlan, Problem
from launcher.execution import progress
from launcher.execution.reconciler import Outcome, Reconciler, interruptible
from launcher.planning import freeze, hypotheses
from launcher.planning.plan import Plan
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED
from launcher.run import catalog, folder, launch_record, lifecycle
from launcher.run.folder import State
from launcher.run.launch_record import Launch
from launcher.schedulers import registry
from launcher.schedulers.hydra_launcher import HydraLauncher
from launcher.schedulers.protocol import SchedulerError
from launcher.schedulers.registry import Order, Place
from launcher.status import standing
from launcher.text import counted
from launcher.worker import worker

# Failed runs that are told one by one.
_LISTED = 5


def reconcile(root: Path, plan: Plan, train: str = worker.TRAIN, plugin: Any = None) -> int:
    """Freeze a plan, run what is missing, wait, report; the exit code: 0, 1 with runs not done, 130 after Ctrl-C.

    The runs go to the cluster that the plan names, or to `plugin`, a launcher that Hydra has set up. Raises
    InvalidPlan, before it submits anything, when the cluster cannot run them or multirun cannot be written.
    """
    _check_writable(plan.multirun)
    outcome = launch(root, plan, freeze.missing(plan), train, plugin)
    if outcome.detached:
        return EXIT_FINE
    states = {run_id: folder.find_state(folder.run_folder(plan.multirun, run_id)) for run_id in plan.runs}
    not_done = [run_id for run_id, state in states.items() if state is None or state.state != folder.DONE]
    _explain(plan, states, not_done)
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    if not any(states.values()):  # it stopped before the plan was frozen
        return EXIT_FAILED
    reported = [report(root, plan.multirun / experiment.name) for experiment in plan.experiments]
    return EXIT_FAILED if not_done or outcome.tripped or any(reported) else EXIT_FINE


def _check_writable(multirun: Path) -> None:
    why = "is not yours to write"
    try:
        multirun.mkdir(parents=True, exist_ok=True)
        if os.access(multirun, os.W_OK | os.X_OK):
            return
    except OSError as error:
        if lifecycle.is_disk_full(error):
            return  # the launch says so
        why = f"cannot be made ({error.strerror})"
    raise InvalidPlan(
        [Problem("configuration", "multirun", str(multirun), f"this folder {why}", "name another: multirun=FOLDER")]
    )


def launch(root: Path, plan: Plan, wanted: Sequence[str], train: str = worker.TRAIN, plugin: Any = None) -> Outcome:
    """Freeze a plan and run the wanted ones of its runs, if any; freezes while the pool warms up."""
    try:
        if wanted:
            return _launch(root, plan, wanted, train, plugin)
        freeze.freeze(plan)
        return Outcome()
    except KeyboardInterrupt:  # while nothing runs yet; later the reconciler counts it
        print("interrupted before the first run started", file=sys.stderr, flush=True)
        return Outcome(interrupted=True)
    except SchedulerError as error:
        why = str(error)
    except OSError as error:
        if not lifecycle.is_disk_full(error):
            raise
        why = f"{plan.multirun}: {lifecycle.described(error)}"
    print(f"error: {why}", file=sys.stderr, flush=True)
    return Outcome(tripped=why)


def _launch(root: Path, plan: Plan, wanted: Sequence[str], train: str, plugin: Any) -> Outcome:
    from launcher.worker import provenance

    began, started = time.time(), time.monotonic()
    cluster = registry.find(plan) if plugin is None else None
    if cluster is not None:
        cluster.check(plan, wanted)
    command = plan.experiments[0].command
    collected = provenance.collect(root, command, plan.multirun)
    patch = launch_record.keep_patch(plan.multirun, collected.patch) if collected.patch else None
    launched = Launch(collected.record, plan.tracking, plan.cluster.get("retry") or {}, patch)
    record = launched.write(plan.multirun)
    if cluster is not None:
        # The imports of a pool's server take seconds: they go on while the plan is frozen.
        place = cluster.start(Order(root, plan, wanted, train, launched, record))
    else:
        place = Place(HydraLauncher(plugin, record), type(plugin).__name__)
    entries = {entry.id: entry for experiment in reversed(plan.experiments) for entry in experiment.entries}
    names = ", ".join(experiment.name for experiment in plan.experiments)
    settled = len(plan.runs) - len(wanted)
    print(
        f"{names}: {counted(len(plan.runs), 'run')}, {settled} settled, {len(wanted)} to run on {place.where}",
        flush=True,
    )

    def describe(run_id: str) -> tuple[str, int]:
        entry, run = entries[run_id], plan.runs[run_id]
        return catalog.title(asdict(entry)), int(run.config["trainer"]["steps"])

    try:
        for warning in filter(None, map(hypotheses.warning, plan.experiments)):
            print(warning, flush=True)
        freeze.freeze(plan)
        with progress.display(len(wanted)) as display, interruptible(display.say) as interruption:
            breaker = plan.cluster.get("breaker")
            reconciler = Reconciler(plan.multirun, place.scheduler, display, describe, launched, breaker)
            if place.detached is None:
                outcome = reconciler.run(wanted, interruption)
            else:
                outcome = reconciler.hand_over(wanted)
                print(place.detached(), flush=True)
    finally:
        place.scheduler.close()
    _record(plan, outcome, began, time.monotonic() - started, place.workers, command)
    return outcome


def _record(plan: Plan, outcome: Outcome, began: float, wall: float, workers: int | None, command: str) -> None:
    """Append the launch to each experiment's launches.jsonl and print how well the workers were used."""
    if not outcome.ran:
        return
    for experiment in plan.experiments:
        own = {entry.id for entry in experiment.entries}
        ran = [run_id for run_id in outcome.ran if run_id in own]
        if not ran:
            continue
        counts = Counter(outcome.states[run_id].state for run_id in ran)
        seconds = sum(_train_seconds(plan.multirun, outcome.states[run_id]) for run_id in ran)
        line = {
            "started": began,
            "finished": time.time(),
            "command": command,
            "states": dict(sorted(counts.items())),
            "workers": workers,
            "wall_seconds": wall,
            "train_seconds": seconds,
            "efficiency": seconds / (workers * wall) if workers else None,
        }
        with open(plan.multirun / experiment.name / "launches.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        used = ""
        if workers and set(counts) == {folder.DONE}:  # what an interrupted run trained is in no summary yet
            share = f"{line['efficiency']:.2f} ({seconds:.1f} s of training / ({workers} workers x {wall:.1f} s))"
            used = f"; pool efficiency {share}"
        print(f"{experiment.name}: {said} in {wall:.1f} s{used}", flush=True)


def _train_seconds(multirun: Path, state: State) -> float:
    """The seconds that a done run trained in this launch; those of earlier attempts do not count."""
    summary = folder.read_summary(folder.run_folder(multirun, state.id)) if state.state == folder.DONE else None
    if summary is None or state.started is None or state.finished is None:
        return 0.0
    # A clock that was set back meanwhile must not make the time negative.
    return max(0.0, min(float(summary.get("train_seconds", 0.0)), state.finished - state.started))


def _explain(plan: Plan, states: Mapping[str, State | None], not_done: Sequence[str]) -> None:
    """Say what is not done, and which command takes it up."""
    for experiment in plan.experiments:
        own = {entry.id for entry in experiment.entries}
        kinds = Counter(state.state for run_id in not_done if run_id in own and (state := states[run_id]) is not None)
        if not kinds:
            continue
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"{experiment.name}: not done: {said}", file=sys.stderr)
        failed = [
            state
            for run_id in not_done
            if run_id in own and (state := states[run_id]) is not None and state.state in standing.FAILURES
        ]
        for state in failed[:_LISTED]:
            stderr = folder.attempt_folder(folder.run_folder(plan.multirun, state.id), state.attempt) / "stderr.log"
            print(f"  {state.id} {state.state}: {state.cause}; see {stderr}", file=sys.stderr)
        if len(failed) > _LISTED:
            logs = catalog.command(plan.multirun, "logs", experiment.name)
            print(f"  and {len(failed) - _LISTED} more: {logs}", file=sys.stderr)
        if set(kinds) & folder.RETRYABLE:
            retry = catalog.command(plan.multirun, "retry", experiment.name)
            print(f"to take failed runs again: {retry}", file=sys.stderr)
        if set(kinds) & folder.RESUMABLE:
            print("to take up the others: the same command", file=sys.stderr)
        sys.stderr.flush()


def report(root: Path, folder: Path) -> int:
    """Run the analysis' report on an experiment's folder, in a process of its own; its exit code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}
    sys.stdout.flush()
    return subprocess.run(
        [sys.executable, "-m", "analysis", "report", str(folder)], env=environment, check=False
    ).returncode

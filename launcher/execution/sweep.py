"""One launch: freeze the plan, run what is missing, report. If nothing is missing, repeating it changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.execution import checks, progress
from launcher.execution.checks import Others
from launcher.execution.costs import Forecast, budget_line
from launcher.execution.reconciler import Budget, Outcome, Reconciler, interruptible
from launcher.planning import freeze, hypotheses
from launcher.planning.plan import Experiment, Plan
from launcher.planning.planner import AddedSeeds
from launcher.project import EXIT_FAILED, EXIT_FINE, EXIT_INTERRUPTED, python_path, spelled
from launcher.run import catalog, launch_record, lifecycle
from launcher.run.launch_record import Launch
from launcher.run.lifecycle import NEW, RESUMABLE, RETRYABLE, RunState, State, is_done
from launcher.schedulers.hydra_launcher import HydraLauncher
from launcher.schedulers.protocol import Cluster, Order, SchedulerError, StartedScheduler, blamed
from launcher.status import standing
from launcher.status.standing import UNREADABLE, Index, Standing
from launcher.text import counted, hours, more_than
from launcher.worker import provenance

#: Makes the plan of a command anew, with further seeds.
Again = Callable[[AddedSeeds], Plan]


@dataclass(frozen=True)
class Swept:
    """The end of a sweep: of its last launch, the state of each run of the plan with the seeds that were added (None:
    without a folder), the exit code of each report, None if none was due, and whether a run's files are not as they
    were when it was done."""

    outcome: Outcome
    states: Mapping[str, State | None]
    reports: tuple[int, ...] | None
    flawed: bool = False

    @property
    def code(self) -> int:
        """The exit code of the command: 0, 1 with runs not done, 130 after Ctrl-C."""
        if self.outcome.interrupted:
            return EXIT_INTERRUPTED
        if self.outcome.detached:
            return EXIT_FAILED if self.outcome.left_out else EXIT_FINE
        done = all(map(is_done, self.states.values()))
        reported = self.reports is not None and not any(self.reports)
        return EXIT_FINE if done and reported and not self.outcome.tripped and not self.flawed else EXIT_FAILED


def sweep(root: Path, plan: Plan, train: str | None = None, plugin: Any = None, again: Again | None = None) -> Swept:
    """Freeze a plan, run what is missing, wait, and report. train: as in the launch's record.

    The runs go to the cluster that the plan names, or to `plugin`, a launcher that Hydra has set up. `again` makes the
    plan anew with further seeds, for experiments that add them until their comparisons are decided. Raises
    InvalidPlan, before it submits anything, when the cluster cannot run them, multirun cannot be written, or the new
    runs would be compared with runs of other code.
    """
    checks.check_folder(plan.multirun, create=True)
    for line in map(spelled, freeze.declaration_warnings(plan)):
        print(line, flush=True)
    stalled = False
    while True:
        states = lifecycle.find_states(plan.multirun, plan.runs)
        others = checks.decide(plan, states)
        wanted = [run_id for run_id, state in states.items() if lifecycle.is_missing(state)]
        outcome = launch(root, plan, wanted, train, plugin, others)
        if outcome.detached:
            for experiment in plan.experiments:
                if experiment.sequential is not None:
                    print(f"{experiment.name}: repeat this command when its runs have ended; it adds seeds as needed")
            return Swept(outcome, lifecycle.find_states(plan.multirun, plan.runs), None)
        if again is None or outcome.interrupted or outcome.tripped or outcome.left_out:
            break
        if not (added := further_seeds(root, plan)):
            break
        grown = again(added)
        if stalled := grown.runs.keys() == plan.runs.keys():
            why = "runs of the planned seeds have not ended, or experiment.exclude leaves out seeds of the next look"
            fix = "repeat this command when they have ended, or exclude no seed"
            print(
                f"{', '.join(added)}: a comparison is not decided, but no seed is added: {why}. Fix: {fix}",
                file=sys.stderr,
            )
            break
        for before, after in zip(plan.experiments, grown.experiments, strict=True):
            _say_added(before, after)
        plan = grown
    flawed = _explain(plan) or stalled
    states = lifecycle.find_states(plan.multirun, plan.runs)
    if outcome.interrupted or not any(states.values()):  # without any, it stopped before the plan was frozen
        return Swept(outcome, states, None)
    asked = [experiment for experiment in plan.experiments if experiment.analysis]
    return Swept(outcome, states, tuple(report(root, plan.multirun / experiment.name) for experiment in asked), flawed)


def launch(
    root: Path,
    plan: Plan,
    run_ids: Sequence[str],
    train: str | None = None,
    plugin: Any = None,
    others: Others | None = None,
) -> Outcome:
    """Freeze a plan and execute those of its runs. The plan is frozen while the pool's server imports its modules.

    `others`: the runs of other code that are run anew, too, or accepted.
    """
    began, others = time.monotonic(), others or {}
    wanted = {*run_ids, *checks.run_anew(plan, others)}
    run_ids = [run_id for run_id in plan.runs if run_id in wanted]
    try:
        cluster = checks.refuse(plan, run_ids, plugin is not None) if run_ids else None
        checks.carry_out(plan, others)
        outcome = _launch(root, plan, run_ids, train, cluster, plugin)
        _say_ended(plan, outcome, time.monotonic() - began)
        return outcome
    except KeyboardInterrupt:  # before the first run; later the reconciler counts interruptions
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


def _launch(
    root: Path, plan: Plan, run_ids: Sequence[str], train: str | None, cluster: Cluster | None, plugin: Any
) -> Outcome:
    """Start a scheduler if there are runs, freeze the plan, and wait for the runs. None: `plugin` takes the place of
    the cluster."""
    with ExitStack() as stack:
        if run_ids:
            launched, record = _recorded(root, plan, run_ids, train)
            if cluster is not None:
                # The imports of a pool's server take seconds; the plan is frozen meanwhile.
                started = blamed(cluster, "start", Order(root, plan, run_ids, launched, record))
            else:
                started = StartedScheduler(HydraLauncher(plugin, record), type(plugin).__name__)
            stack.callback(started.scheduler.close)
            forecast = _announced(plan, run_ids, started)
        freeze.freeze(plan)
        if not run_ids:
            _say_done(plan)
            return Outcome()
        outcome = _carry_through(plan, run_ids, started, launched, forecast)
    if outcome.left_out:
        _say_left_out(plan, outcome)
    return outcome


def _recorded(root: Path, plan: Plan, run_ids: Sequence[str], train: str | None) -> tuple[Launch, Path]:
    """What the runs of a launch share, with the provenance of their code, and the file that it was written to."""
    outside = provenance.sources(plan.runs[run_id].config for run_id in run_ids)
    collected = provenance.collect(root, plan.experiments[0].command, plan.multirun, outside)
    if warning := collected.warning():
        print(warning, flush=True)
    launched = Launch(
        record=collected.record,
        tracking=plan.tracking,
        retry=plan.cluster.get("retry") or {},
        patch=collected.patch,
        stall_s=plan.cluster.get("stall_s"),
        train=train,
    )
    return launched, launch_record.write(plan.multirun, launched, collected.patches)


def _announced(plan: Plan, run_ids: Sequence[str], started: StartedScheduler) -> Forecast:
    """Print what is about to run, what may come of it, and what it costs; the forecast of the costs."""
    names = ", ".join(experiment.name for experiment in plan.experiments)
    counts = f"{counted(len(plan.runs), 'run')}, {len(plan.runs) - len(run_ids)} finished, {len(run_ids)} to run"
    print(f"{names}: {counts} on {started.name}", flush=True)
    if started.starting is not None:
        print(started.starting, flush=True)
    forecast = Forecast(plan, lifecycle.find_states(plan.multirun, plan.runs))
    warnings = (line for experiment in plan.experiments for line in hypotheses.warnings(experiment))
    for line in filter(None, (budget_line(plan, forecast), *plan.continuations(), *warnings)):
        print(line, flush=True)
    return forecast


def _carry_through(
    plan: Plan, run_ids: Sequence[str], started: StartedScheduler, launched: Launch, forecast: Forecast
) -> Outcome:
    """Give the runs of a frozen plan to its scheduler, and wait for them, unless it is detached."""
    index, plans = Index(plan.multirun), [experiment.document() for experiment in plan.experiments]

    def look() -> list[Standing]:
        return [standing.stand(plan.multirun, document, index) for document in plans]

    display = progress.Display(len(run_ids), plan.multirun, look, queues=started.workers is None)
    if plan.show is not None:
        display.show = plan.show(run_ids)
    entries = {run_id: entry for planned in reversed(plan.experiments) for run_id, entry in planned.members.items()}
    budget = None
    if plan.budget is not None:
        budget = Budget(plan.multirun, plan.budget, forecast.left, forecast.spent_seconds)
    breaker = plan.cluster.get("breaker")
    with interruptible(display.say) as interruption:
        titles = {run_id: catalog.title(entries[run_id].model_dump()) for run_id in run_ids}
        reconciler = Reconciler(
            plan.multirun, started.scheduler, display, titles, forecast.units, launched, breaker, budget
        )
        if started.detached is None:
            return reconciler.run(run_ids, interruption)
        outcome = reconciler.submit_all(run_ids)
        if len(outcome.left_out) < len(run_ids):
            print(started.detached(), flush=True)
        return outcome


def _say_done(plan: Plan) -> None:
    """Print how many runs of each experiment are done, where a launch has nothing to run."""
    states = lifecycle.find_states(plan.multirun, plan.runs)
    done = {run_id for run_id, state in states.items() if is_done(state)}
    for experiment in plan.experiments:
        members = experiment.members.keys()
        print(f"{experiment.name}: {len(done & members)} of {len(members)} runs are done", flush=True)


def _say_ended(plan: Plan, outcome: Outcome, seconds: float) -> None:
    for experiment in plan.experiments:
        ended = Counter(outcome.states[run_id].state for run_id in outcome.ran if run_id in experiment.members)
        if ended:
            states = ", ".join(f"{count} {state}" for state, count in sorted(ended.items()))
            print(f"{experiment.name}: {states} in {seconds:.1f} s", flush=True)


def _say_left_out(plan: Plan, outcome: Outcome) -> None:
    for experiment in plan.experiments:
        if groups := Counter(entry.group for entry in experiment.entries if entry.id in outcome.left_out):
            listed = ", ".join(f"{group} {counted(count, 'run')}" for group, count in groups.items())
            print(f"{experiment.name}: the budget leaves out {listed}", file=sys.stderr, flush=True)
    used = f"of which {hours(outcome.used_hours)} are used"
    more = f"budget.device_hours={more_than(outcome.needed_hours)} or more, {used}"
    print(f"to go on: raise the budget and repeat the command: {more}", file=sys.stderr, flush=True)


def _explain(plan: Plan) -> bool:
    """Print which runs are not done, and the commands that continue with them; whether one is damaged."""
    index, damaged = Index(plan.multirun), False
    for experiment in plan.experiments:
        now = standing.stand(plan.multirun, experiment.document(), index)
        counts = {state: count for state, count in now.states.items() if state not in (NEW, RunState.DONE)}
        if not counts:
            continue
        listed = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        lines = [f"{experiment.name}: not done: {listed}", *standing.causes(plan.multirun, now)]
        if counts.keys() & RETRYABLE:
            lines.append(f"to run the failed runs again: {catalog.command(plan.multirun, 'resume', experiment.name)}")
        if counts.keys() & RESUMABLE:
            lines.append("to resume the others: repeat this command")
        print("\n".join(lines), file=sys.stderr, flush=True)
        damaged |= UNREADABLE in counts
    return damaged


def report(root: Path, folder: Path) -> int:
    """Have the responses judged, if the experiment says how, and run the analysis' report on its folder, in a process
    of its own; its exit code."""
    return _analysis(root, "report", "--judge", str(folder)).returncode


# ---------------------------------------------------------------- seeds whose number depends on results


def further_seeds(root: Path, plan: Plan) -> dict[str, dict[str, range]]:
    """The seeds of each group at the next look of a comparison that goes on, by experiment.

    It asks the analysis, in a process of its own. Raises OSError if the analysis cannot say it; its own message is on
    standard error.
    """
    more: dict[str, dict[str, range]] = {}
    for experiment in plan.experiments:
        rule, folder = experiment.sequential, plan.multirun / experiment.name
        if rule is None:
            continue
        done = _analysis(root, "looks", str(folder), "--json", stdout=subprocess.PIPE)
        if done.returncode != 0:
            raise OSError(f"{folder}: whether its comparisons need further seeds is not known; the reason is above")
        # the latest look comes last, for it decides what the baseline needs
        for at in sorted(json.loads(done.stdout), key=lambda at: int(at["look"])):
            if at["status"] == "continue":
                seeds = range(min(rule.start + at["look"] * rule.batch, rule.max))
                more.setdefault(experiment.name, {}).update({at["group"]: seeds, at["baseline"]: seeds})
    return more


def _say_added(before: Experiment, after: Experiment) -> None:
    had = before.seeds_of()
    added = {group: extra for group, seeds in after.seeds_of().items() if (extra := {*seeds} - {*had[group]})}
    if added:
        new, fewest = sorted(set[int]().union(*added.values())), min(len(had[group]) for group in added)
        which, are = ("seed", "is") if len(new) == 1 else ("seeds", "are")
        more = f"{which} {', '.join(map(str, new))} (of at most {after.analysis['sequential']['max']}) {are} added"
        print(f"{after.name}: not decided with {counted(fewest, 'seed')}; {more} to {', '.join(added)}", flush=True)


def _analysis(root: Path, *words: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    sys.stdout.flush()
    environment = {**os.environ, "PYTHONPATH": python_path(root)}
    command = [sys.executable, "-m", "analysis", *words]
    return subprocess.run(command, env=environment, stdout=stdout, text=True, check=False)

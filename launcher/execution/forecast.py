"""What a plan still costs, on the slots that a launch would have, and what its runs took until now."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from launcher.application import shape
from launcher.application.isolated import Ended, Isolated
from launcher.execution.budget import Budget, Work
from launcher.planning import added_seeds
from launcher.planning.cost import Estimate, History, estimate
from launcher.planning.plan import Experiment, Plan
from launcher.run import compute
from launcher.run.folder import find_state, run_folder, runs_folder
from launcher.run.lifecycle import RunState
from launcher.schedulers.local.pool import slots, visible_devices
from launcher.text import byte_size, hours, more_than
from launcher.tracking.settings import ONLINE


def sized(ids: Sequence[str], states: Mapping[str, str], cost: Estimate) -> dict[str, Any]:
    """Some runs of a plan for `--json`: how many, in which states, and what those that are not done cost."""
    return {
        "total": len(ids),
        "states": dict(sorted(Counter(states[run_id] for run_id in ids).items())),
        "device_hours": cost.device_hours,
        "worst_device_hours": cost.worst_device_hours,
        "wall_seconds": cost.wall_seconds,
        "storage_bytes": cost.storage,
    }


class Forecast:
    """The cost of those runs of a plan that are not done. `spent`: the device-hours until now, as its budget counts."""

    def __init__(self, planned: Plan, states: Mapping[str, str]) -> None:
        """states: the present state of each run, by id."""
        done = [run_id for run_id, state in states.items() if state == RunState.DONE]
        self._history = History(planned.multirun, planned.runs, done)
        self._cluster, self._runs = planned.cluster, planned.runs
        self._left = {run.id: run for run in planned.runs.values() if states[run.id] != RunState.DONE}
        devices = max((shape(run.config).devices for run in planned.runs.values()), default=0)
        self.unit = compute.DEVICE_HOURS if devices else compute.CPU_HOURS
        #: How many runs a launch executes at a time; None if a cluster's queue decides.
        self.slots: int | None = planned.cluster.get("max_running")
        if planned.cluster["name"] == "local":
            self.slots = len(slots(planned.cluster["slots"], devices, visible_devices()))
        #: By run, the steps that it takes over from another one.
        self.taken_over: dict[str, int] = {}
        for run_id in self._left:
            if run_id in planned.prefixes:
                self.taken_over[run_id] = planned.prefixes[run_id].step
            elif (state := find_state(run_folder(planned.multirun, run_id))) is not None and state.prefix_step:
                self.taken_over[run_id] = state.prefix_step
        charged = {*planned.runs, *planned.charged}
        self.spent = sum(compute.spent(planned.multirun, charged, time.time()).values()) / compute.HOUR_S

    def of(self, ids: Sequence[str]) -> Estimate:
        """The cost of those of the runs that are not done."""
        left = [self._left[run_id] for run_id in ids if run_id in self._left]
        return estimate(left, self._history, self.slots, self._cluster, self.taken_over)

    def saved(self) -> tuple[int, float]:
        """The steps, and the device-hours, that no run computes again."""
        hours = 0.0
        for run_id, steps in self.taken_over.items():
            run = self._left[run_id]
            hours += steps * self._history.rate(run).seconds * shape(run.config).units / compute.HOUR_S
        return sum(self.taken_over.values()), hours

    def of_added_seeds(self, experiment: Experiment) -> tuple[int, float] | None:
        """The runs that an experiment can add at most, and their device-hours with every counted retry; None if its
        seeds are fixed."""
        rule = added_seeds.rule_of(experiment)
        if rule is None:
            return None
        runs, hours = 0, 0.0
        for group, seeds in experiment.seeds_of().items():
            more = rule.max / len(seeds) - 1 if seeds else 0.0
            own = {entry.id: self._runs[entry.id] for entry in experiment.entries if entry.group == group}
            runs += round(more * len(own))
            hours += more * estimate(own.values(), self._history, None, self._cluster).worst_device_hours
        return runs, hours

    def step_seconds(self) -> dict[str, float]:
        """The expected seconds of a step of each run that is not done, by id."""
        return {run.id: self._history.rate(run).seconds for run in self._left.values()}

    def sources(self) -> dict[str, tuple[int, int]]:
        """By the source of a step's time: how many runs are estimated from it, and on how many runs it was measured."""
        sources: dict[str, tuple[int, int]] = {}
        for run in self._left.values():
            rate = self._history.rate(run)
            runs, most = sources.get(rate.source, (0, 0))
            sources[rate.source] = (runs + 1, max(most, rate.runs))
        return sources


def budget_of(planned: Plan, forecast: Forecast) -> Budget | None:
    """The budget of a launch of the plan; None without limit."""
    if planned.budget is None:
        return None
    work = {}
    for run_id, seconds in forecast.step_seconds().items():
        config = planned.runs[run_id].config
        taken_over = forecast.taken_over.get(run_id, 0)
        work[run_id] = Work(seconds, config["trainer"]["steps"], shape(config).units, taken_over)
    return Budget(planned.multirun, planned.budget, work, {*planned.runs, *planned.charged})


def budget_line(planned: Plan, forecast: Forecast) -> str | None:
    """Whether the budget suffices for what is expected, and in the worst case; None without limit."""
    if planned.budget is None:
        return None
    needed, left = forecast.of(list(planned.runs)), planned.budget - forecast.spent
    added = [more[1] for one in planned.experiments if (more := forecast.of_added_seeds(one)) is not None]
    most = needed.worst_device_hours + sum(added)
    text = f"budget: {planned.budget:g} {forecast.unit}, {hours(forecast.spent)} used"
    if most <= left:
        return f"{text}; it suffices, also in the worst case"
    worst = f"{hours(most)} in the worst case{' with added seeds' if added else ''}"
    if needed.device_hours <= left:
        return f"{text}; it suffices for the {hours(needed.device_hours)} that are expected, not for {worst}"
    fix = f"budget.device_hours={more_than(forecast.spent + needed.device_hours)}"
    return f"{text}; it does not suffice: {hours(needed.device_hours)} are expected, {worst}. Fix: {fix} or more"


def storage_words(count: float | None) -> str:
    """The storage of a document, in words."""
    return "storage unknown" if count is None else f"{byte_size(count)} of storage"


def warnings(planned: Plan, forecast: Forecast) -> Iterator[str]:
    """What may fail although the plan is valid: the disk of the multirun folder is too small for the runs, or a step is
    too long for a run to save a checkpoint after SLURM's warning."""
    multirun, needed = planned.multirun, forecast.of(list(planned.runs)).storage
    runs = runs_folder(multirun)  # it may be a link to another disk
    place = next(folder for folder in (runs, multirun, *multirun.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    if needed is not None and needed > free:
        disk = f"the disk of {place if place == runs else multirun} has {byte_size(free)} free"
        fix = "write multirun=FOLDER with a folder on a larger disk, or plan fewer runs at a time and delete their "
        fix += "checkpoints in between (python -m launcher gc --keep none --delete)"
        yield f"warning: the runs need {byte_size(needed)} of storage, and {disk}. Fix: {fix}"
    longest = max(forecast.step_seconds().values(), default=0.0)
    if planned.cluster["name"] == "slurm" and longest >= planned.cluster["signal_delay_s"]:
        key = f"cluster.signal_delay_s={planned.cluster['signal_delay_s']}"
        rule = f"a step takes up to {longest:.0f} s, and SLURM warns a run {key} seconds before its time limit"
        lost = "a run that cannot end its step in this time repeats the steps since its newest checkpoint"
        more = 60 * math.ceil(2 * longest / 60)
        yield f"warning: {rule}; {lost}. Fix: set cluster.signal_delay_s={more} (two steps) or more"
    if planned.tracking["wandb"] == ONLINE and forecast.step_seconds() and (why := _no_login()) is not None:
        yield f"warning: tracking.wandb=online, but W&B gets nothing until `python -m launcher sync` sends it: {why}"


def _no_login() -> str | None:
    from launcher.tracking import wandb

    with closing(Isolated()) as process:  # it starts a service, which ends with this process
        try:
            process.call(wandb.INIT_S, wandb.check_credentials)
        except Ended as ended:
            return ended.what.removeprefix(f"{wandb.Unsent.__name__}: ")
    return None

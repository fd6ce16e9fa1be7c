"""What a plan still costs (device-hours, wall time, storage), what its runs took until now, and its budget.

The seconds of a run's step are the median over done runs of the same kind and method; without such runs, over those of
the same kind and any method; without those, `model.seconds_per_step`; without a value, the application's arithmetic.
The application says which runs are of one kind: those with equal work in a step.

A launch starts an attempt only if the budget also holds what is expected of it. Attempts that run when the budget is
used up may finish, and nothing new starts. The budget is therefore passed by no more than what these attempts then
still take, and not at all where no attempt takes longer than expected.
"""

from __future__ import annotations

import heapq
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher import files
from launcher.application import application, shape
from launcher.config import content, identity
from launcher.config.hydra_compose import hidden
from launcher.planning import freeze
from launcher.planning.plan import Experiment, Plan, PlannedRun, one_of_each
from launcher.run import lifecycle
from launcher.run.folder import read_config, read_summary, run_folder, runs_folder
from launcher.run.lifecycle import RunState, State, find_state, is_done
from launcher.schedulers import protocol
from launcher.status import tables
from launcher.text import byte_size, counted, duration, hours, more_than, say

METHOD, KIND, FILE = "done runs of the same method", "done runs of any method", "the model's file"
ARITHMETIC, GUESS = "arithmetic", "a guess of 60 s"
# Reading a configuration takes 2 ms, and the newest runs resemble the next ones most.
OTHERS, SIZED = 200, 20


@dataclass(frozen=True)
class Rate:
    """The seconds of a training step, their source (METHOD to GUESS), and the number of runs measured."""

    seconds: float
    source: str
    runs: int


@dataclass(frozen=True)
class Work:
    """What is expected of a run: how long a step takes, how many there are, how many of them another run computes
    (`begun`), the units that device-hours count, and the bytes of its folder."""

    rate: Rate
    steps: int
    begun: int
    units: int
    size: float | None

    def device_seconds(self, begin: int = 0) -> float:
        """What its steps after `begin` take, without those that another run computes."""
        return self.rate.seconds * self.units * max(0, self.steps - max(self.begun, begin))


@dataclass(frozen=True)
class Estimate:
    """What some runs cost: hours of a device (without one, of a processor), seconds on the given slots, bytes.

    wall_seconds is None where the number of slots is not known, storage_bytes where the sizes of a model are not, and
    no run of this model is done.
    """

    device_hours: float
    wall_seconds: float | None
    storage_bytes: float | None


class History:
    """The done runs of a multirun folder that a plan can learn from: its own, and the newest of the others."""

    def __init__(self, multirun: Path, runs: Mapping[str, PlannedRun], done: Collection[str]) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._done: dict[str, list[Path]] = defaultdict(list)
        self._bytes: dict[str, float | None] = {}
        self._expected: dict[tuple[int, int], Work] = {}
        known = [(run_folder(multirun, run_id), runs[run_id].config) for run_id in done]
        for folder, config in known + (_newest_done(multirun, runs) if len(done) < len(runs) else []):
            with suppress(OSError, ValueError, KeyError, TypeError):  # `status` reports what is wrong with it
                self._learn(folder, config)
        self._medians = {key: statistics.median(seconds) for key, seconds in self._seconds.items()}

    def expected(self, run: PlannedRun, begun: int = 0) -> Work:
        """What is expected of a run. begun: the steps that another run computes."""
        key = id(run.settled), begun  # the plan keeps what has this id
        if key not in self._expected:
            self._expected[key] = self._expect(run, begun)
        return self._expected[key]

    def _expect(self, run: PlannedRun, begun: int) -> Work:
        app = application(run.config)
        length = app.length(run.config)
        steps = 1 if length.steps is None else length.steps  # then what one run takes is expected of the next
        model, *measured = app.kinds(run.config) if self._done else [""]  # no run of any kind is known
        stated = (run.config.get("model") or {}).get("seconds_per_step")
        rate = Rate(60.0, GUESS, 0)
        if stated is not None:
            rate = Rate(float(stated), FILE, 0)
        elif run.step_seconds is not None:
            rate = Rate(run.step_seconds, ARITHMETIC, 0)
        for key, source in zip(measured, (KIND, METHOD), strict=False):
            if key in self._medians:
                rate = Rate(self._medians[key], source, len(self._seconds[key]))
        size = self._size(model)
        if size is None and run.checkpoint is not None:
            written = -(-steps // length.checkpoint_every)
            size = float(run.checkpoint * min(written, length.checkpoints_kept))
        return Work(rate, steps, begun, shape(run.config).units, size)

    def _size(self, model: str) -> float | None:
        """The median of the bytes of done runs with a model; None without any."""
        if model not in self._bytes:
            sizes = [files.size_of(folder) for folder in self._done.get(model, [])[:SIZED]]
            self._bytes[model] = statistics.median(sizes) if sizes else None
        return self._bytes[model]

    def _learn(self, folder: Path, config: Mapping[str, Any]) -> None:
        if identity.INPUTS not in config:  # an older version froze it
            config = content.settled(config)
        try:
            summary = read_summary(folder)
        except files.BadRunFolder:
            summary = {}  # not part of the plan
        steps, seconds = summary.get("steps"), summary.get("train_seconds")
        model, kind, of_method = application(config).kinds(config)
        self._done[model].append(folder)
        if isinstance(steps, int) and isinstance(seconds, (int, float)) and steps >= 1 and seconds > 0:
            self._seconds[kind].append(seconds / steps)
            self._seconds[of_method].append(seconds / steps)


def makespan(seconds: Sequence[float], slots: int) -> float:
    """The wall time of runs with these durations, started in their order as slots become free."""
    free = [0.0] * slots
    for needed in seconds:
        heapq.heapreplace(free, free[0] + needed)
    return max(free)


def _newest_done(multirun: Path, without: Collection[str]) -> list[tuple[Path, dict[str, Any]]]:
    """The folders of done runs that are not in a plan, the newest first, of OTHERS folders at most, and their
    configurations."""
    try:
        with os.scandir(runs_folder(multirun)) as entries:
            changed = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name not in without]
    except FileNotFoundError:
        return []
    done = []
    for folder in (Path(path) for _, path in heapq.nlargest(OTHERS, changed)):
        with suppress(OSError, ValueError, KeyError, TypeError):  # `status` reports what is wrong with it
            if is_done(find_state(folder)):
                done.append((folder, read_config(folder)))
    return done


def sized(ids: Sequence[str], states: Mapping[str, str], cost: Estimate) -> dict[str, Any]:
    """Some runs of a plan for `--json`: how many, in which states, and what those that are not done cost."""
    counts = Counter(states[run_id] for run_id in ids)
    return {"total": len(ids), "states": dict(sorted(counts.items())), **asdict(cost)}


def totals(planned: Plan, states: Mapping[str, str], forecast: Forecast) -> dict[str, Any]:
    """What all runs of a plan come to, for `--json`."""
    ids = list(planned.runs)
    return {
        **sized(ids, states, forecast.estimate(ids)),
        "done": sum(state == RunState.DONE for state in states.values()),
        "spent_device_hours": sum(forecast.spent_seconds[run_id] for run_id in ids) / lifecycle.HOUR_S,
        "unit": forecast.unit,
        "budget_device_hours": planned.budget,
        "slots": forecast.slots,
        "warnings": [*hidden(), *freeze.declaration_warnings(planned)],
    }


def print_costs(parts: Mapping[str, Mapping[str, Any]], unit: str, first: str = "group") -> None:
    """Print a table of parts of a plan, each `sized`. unit: of the hours; first: what a part is."""
    columns = {unit: {name: f"{part['device_hours']:.2f}" for name, part in parts.items()}}
    for heading, key, shown in (("wall time", "wall_seconds", duration), ("storage", "storage_bytes", byte_size)):
        known = {name: shown(part[key]) for name, part in parts.items() if part[key] is not None}
        columns |= {heading: known} if known else {}
    for line in tables.counts({name: part["states"] for name, part in parts.items()}, columns, first):
        say(line)


class Forecast:
    """The cost of those runs of a plan that are not done. `spent`: the device-hours until now, as its budget counts,
    those of earlier plans of its experiments too; spent_seconds: by run.

    units: of each run, what device-hours count. taken_over: by run, the steps that it takes over from another one.
    left: what is expected of each run that is not done.
    """

    def __init__(self, planned: Plan, states: Mapping[str, State | None]) -> None:
        """states: the state of each run, by id; None: it is new."""
        done = [run_id for run_id, state in states.items() if is_done(state)]
        self._history, self._plan = History(planned.multirun, planned.runs, done), planned
        shapes = {id(run.settled): shape(run.config) for run in one_of_each(planned.runs.values())}
        self.units = {run.id: shapes[id(run.settled)].units for run in planned.runs.values()}
        with_devices = any(asked.devices for asked in shapes.values())
        self.unit = lifecycle.DEVICE_HOURS if with_devices else lifecycle.CPU_HOURS
        self.taken_over: dict[str, int] = {}
        self.left: dict[str, Work] = {}
        for run in planned.runs.values():
            state = states[run.id]
            if is_done(state):
                continue
            if run.id in planned.prefixes:
                self.taken_over[run.id] = planned.prefixes[run.id].step
            elif state is not None and state.prefix_step:
                self.taken_over[run.id] = state.prefix_step
            self.left[run.id] = self._history.expected(run, self.taken_over.get(run.id, 0))
        charged = {*planned.runs, *planned.charged}
        if planned.budget is not None:
            charged |= freeze.runs_of_all_plans(planned)
        self.spent_seconds = lifecycle.spent_seconds(planned.multirun, charged, time.time())
        self.spent = sum(self.spent_seconds.values()) / lifecycle.HOUR_S

    @cached_property
    def slots(self) -> int | None:
        """How many runs a launch executes at a time; None if a cluster's queue decides."""
        return protocol.slots(self._plan)

    def estimate(self, ids: Iterable[str]) -> Estimate:
        """The cost of the runs with these ids that are not done."""
        works = [self.left[run_id] for run_id in ids if run_id in self.left]
        sizes = [work.size for work in works]
        seconds = [work.device_seconds() / work.units for work in works]
        return Estimate(
            device_hours=sum(work.device_seconds() for work in works) / lifecycle.HOUR_S,
            wall_seconds=None if self.slots is None else makespan(seconds, self.slots),
            storage_bytes=None if None in sizes else float(sum(filter(None, sizes))),
        )

    def of_added_seeds(self, experiment: Experiment) -> dict[str, Any] | None:
        """An experiment's rule, and the runs and device-hours that it adds at most; None if its seeds are fixed."""
        rule = experiment.sequential
        if rule is None:
            return None
        runs, seconds = 0, 0.0
        for group, seeds in experiment.seeds_of().items():
            more = rule.max / len(seeds) - 1 if seeds else 0.0
            ids = {entry.id for entry in experiment.entries if entry.group == group}
            runs += round(more * len(ids))
            seconds += more * sum(self._history.expected(self._plan.runs[each]).device_seconds() for each in ids)
        most = {"most_added_runs": runs, "most_added_device_hours": seconds / lifecycle.HOUR_S}
        return {**experiment.analysis["sequential"], **most}

    def sources(self) -> dict[str, tuple[int, int]]:
        """By the source of a step's time: how many runs are estimated from it, and on how many runs it was measured."""
        sources: dict[str, tuple[int, int]] = {}
        for rate in (work.rate for work in self.left.values()):
            runs, most = sources.get(rate.source, (0, 0))
            sources[rate.source] = (runs + 1, max(most, rate.runs))
        return sources


def budget_line(planned: Plan, forecast: Forecast) -> str | None:
    """Whether the budget suffices for what is expected, also with all seeds that may be added; None without limit."""
    if planned.budget is None:
        return None
    needed, left = forecast.estimate(list(planned.runs)).device_hours, planned.budget - forecast.spent
    added = [rule["most_added_device_hours"] for rule in map(forecast.of_added_seeds, planned.experiments) if rule]
    text = f"budget: {planned.budget:g} {forecast.unit}, {hours(forecast.spent)} used"
    expected = f"the remaining runs are expected to take {hours(needed)}"
    if added:
        expected += f", {hours(needed + sum(added))} with all seeds that may be added"
    if needed + sum(added) <= left:
        return f"{text}; it suffices: {expected}"
    if needed <= left:
        return f"{text}; it may not suffice: {expected}"
    fix = f"budget.device_hours={more_than(forecast.spent + needed)}"
    return f"{text}; it does not suffice: {expected}. Fix: {fix} or more"


def added_words(rule: Mapping[str, Any], unit: str) -> str:
    """What `Forecast.of_added_seeds` says, in words. unit: of the hours."""
    most = f"{counted(rule['most_added_runs'], 'run')} and {rule['most_added_device_hours']:.2f} {unit}"
    how = f"{rule['batch']} at a time, at most {rule['max']}; this adds at most {most}"
    return f"seeds are added until each comparison of the primary measure is decided: {how}"


def storage_words(count: float | None) -> str:
    """The storage of a document, in words."""
    return "storage unknown" if count is None else f"{byte_size(count)} of storage"

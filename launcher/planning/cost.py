"""What the rest of a plan costs: device-hours, wall time, storage; from the model's file, corrected by measured runs.

The seconds of a run's step are the median over done runs of the same kind and method; without such runs, over those of
the same kind and any method; without those, `model.seconds_per_step`; without a value, the application's arithmetic.
The application says which runs are of one kind: those with equal work in a step.
"""

from __future__ import annotations

import heapq
import os
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.application import application, shape
from launcher.config import content, identity
from launcher.planning.plan import PlannedRun
from launcher.run.compute import HOUR_S
from launcher.run.folder import find_state, read_config, read_summary, run_folder, runs_folder
from launcher.run.lifecycle import RunState

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
class Estimate:
    """What some runs cost: hours of a device (without one, of a processor), seconds on the given slots, bytes.

    worst_device_hours: if each run uses every retry that is counted (`worst_steps`). wall_seconds is None where
    the number of slots is not known, storage where the sizes of a model are not, and no run of this model is done.
    """

    device_hours: float
    worst_device_hours: float
    wall_seconds: float | None
    storage: float | None


class History:
    """The done runs of a multirun folder that a plan can learn from: its own, and the newest of the others."""

    def __init__(self, multirun: Path, runs: Mapping[str, PlannedRun], done: Collection[str]) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._done: dict[str, list[Path]] = defaultdict(list)
        for run_id in done:
            self._learn(run_folder(multirun, run_id), runs[run_id].config)
        if len(done) < len(runs):
            for folder in _newest(multirun, runs):
                with suppress(OSError, ValueError, KeyError, TypeError):  # `status` reports what is wrong with it
                    state = find_state(folder)
                    if state is not None and state.state == RunState.DONE:
                        self._learn(folder, read_config(folder))
        self._medians = {key: statistics.median(seconds) for key, seconds in self._seconds.items()}
        self._rates: dict[str, Rate] = {}
        self._kinds_by_id: dict[str, tuple[str, str, str]] = {}
        self._bytes: dict[str, float | None] = {}

    def rate(self, run: PlannedRun) -> Rate:
        """The expected seconds of a step of the run."""
        if run.id not in self._rates:
            _, kind, of_method = self._kinds(run)
            stated = run.config["model"].get("seconds_per_step")
            rate = Rate(60.0, GUESS, 0)
            if stated is not None:
                rate = Rate(float(stated), FILE, 0)
            elif run.step_seconds is not None:
                rate = Rate(run.step_seconds, ARITHMETIC, 0)
            for key, source in ((kind, KIND), (of_method, METHOD)):
                if key in self._medians:
                    rate = Rate(self._medians[key], source, len(self._seconds[key]))
            self._rates[run.id] = rate
        return self._rates[run.id]

    def size(self, run: PlannedRun) -> float | None:
        """The expected bytes of the run's folder: the median over done runs with its model, or else its checkpoints."""
        model = self._kinds(run)[0]
        if model not in self._bytes:
            sizes = [_size(folder) for folder in self._done.get(model, [])[:SIZED]]
            self._bytes[model] = statistics.median(sizes) if sizes else None
        measured = self._bytes[model]
        if measured is not None or run.checkpoint is None:
            return measured
        trainer = run.config["trainer"]
        written = -(-trainer["steps"] // trainer["checkpoint_every"])
        return float(run.checkpoint * min(written, trainer["checkpoints_kept"]))

    def _kinds(self, run: PlannedRun) -> tuple[str, str, str]:
        if run.id not in self._kinds_by_id:
            self._kinds_by_id[run.id] = application().kinds(run.config)
        return self._kinds_by_id[run.id]

    def _learn(self, folder: Path, config: Mapping[str, Any]) -> None:
        if identity.INPUTS not in config:  # an older version froze it
            config = content.settled(config)
        try:
            summary = read_summary(folder) or {}
        except files.BadRunFolder:
            summary = {}  # not part of the plan
        steps, seconds = summary.get("steps"), summary.get("train_seconds")
        model, kind, of_method = application().kinds(config)
        self._done[model].append(folder)
        if not isinstance(steps, int) or not isinstance(seconds, (int, float)) or steps < 1 or seconds <= 0:
            return
        self._seconds[kind].append(seconds / steps)
        self._seconds[of_method].append(seconds / steps)


def estimate(
    runs: Iterable[PlannedRun],
    history: History,
    slots: int | None,
    cluster: Mapping[str, Any],
    taken_over: Mapping[str, int] | None = None,
) -> Estimate:
    """What these runs cost. slots: runs at a time, None where a queue decides; cluster: the plan's section.

    taken_over: by run, the steps that it takes over from another run; every other run is counted from its first step.
    """
    counted = sum(retries(cluster).counted.values())
    seconds, hours, worst, sizes = [], 0.0, 0.0, []
    for run in runs:
        rate, units, begun = history.rate(run).seconds, shape(run.config).units, (taken_over or {}).get(run.id, 0)
        seconds.append(rate * (run.config["trainer"]["steps"] - begun))
        hours += seconds[-1] * units / HOUR_S
        worst += rate * (worst_steps(run.config, counted) - begun) * units / HOUR_S
        sizes.append(history.size(run))
    storage = None if None in sizes else float(sum(filter(None, sizes)))
    wall = None if slots is None else makespan(seconds, slots)
    return Estimate(hours, worst, wall, storage)


@dataclass(frozen=True)
class Retries:
    """How often a run is resumed by itself: `counted`, by failure kind; and the kinds without limit."""

    counted: Mapping[str, int]
    unlimited: tuple[str, ...]


def retries(cluster: Mapping[str, Any]) -> Retries:
    """The retries that the section `cluster` of a plan allows."""
    rules: Mapping[str, int | None] = cluster["retry"]
    counted = {kind: limit for kind, limit in rules.items() if limit}
    return Retries(counted, tuple(kind for kind, limit in rules.items() if limit is None))


def worst_steps(config: Mapping[str, Any], counted: int) -> int:
    """The steps that a run computes if it is resumed so often, each time just before it would write a checkpoint."""
    steps, between = int(config["trainer"]["steps"]), int(config["trainer"]["checkpoint_every"])
    return steps + counted * min(between, steps)


def makespan(seconds: Sequence[float], slots: int) -> float:
    """The wall time of runs with these durations, started in their order as slots become free."""
    free = [0.0] * slots
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def _newest(multirun: Path, without: Collection[str]) -> list[Path]:
    """The run folders that are not in a plan, the newest first, OTHERS at most."""
    try:
        with os.scandir(runs_folder(multirun)) as entries:
            changed = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name not in without]
    except FileNotFoundError:
        return []
    return [Path(path) for _, path in heapq.nlargest(OTHERS, changed)]


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())

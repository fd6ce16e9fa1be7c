"""Trackers: W&B and TensorBoard, which show copies of the local files.

A tracker always gets a replay of the run's metric log. An attempt replays what the log contains (after a resume: the
steps up to the checkpoint) and continues from there, so that no step is doubled or missing, however the attempt before
it ended. Each tracker has its own thread: it can neither make the run fail nor make it wait for a server.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from launcher import files
from launcher.run.folder import histograms_path, metrics_path
from launcher.text import one_line
from launcher.tracking.settings import ONLINE, read_settings, settings_path

# The keys of a line that are not metrics.
_ABOUT = frozenset({"step", "attempt", "time"})


@dataclass(frozen=True)
class Histogram:
    """n counts between n + 1 edges."""

    edges: Sequence[float]
    counts: Sequence[float]


@dataclass(frozen=True)
class Row:
    """One step: its number (from 1), when it was logged (unix seconds), its metrics and histograms by name."""

    step: int
    time: float
    metrics: Mapping[str, float]
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


def extent(folder: Path) -> dict[str, int]:
    """The present lengths in bytes of a run's logs, `metrics` and `histograms`; 0 for an absent one."""
    return {"metrics": files.size_of(metrics_path(folder)), "histograms": files.size_of(histograms_path(folder))}


def rows(folder: Path, until: Mapping[str, int] | None = None) -> Iterator[Row]:
    """A run's steps in the order of its log, up to `until` (default: all of it), without torn lines."""
    until = until or extent(folder)
    histograms: defaultdict[int, dict[str, Histogram]] = defaultdict(dict)
    for record in _steps(histograms_path(folder), until["histograms"]):
        histograms[record["step"]][record["name"]] = Histogram(record["edges"], record["counts"])
    for record in _steps(metrics_path(folder), until["metrics"]):
        metrics = {key: value for key, value in record.items() if key not in _ABOUT}
        yield Row(record["step"], record["time"], metrics, histograms.get(record["step"], {}))


def _steps(path: Path, length: int) -> Iterator[dict[str, Any]]:
    return (record for record in files.json_lines(path, length) if "step" in record)


# ---------------------------------------------------------------- trackers

# How long the end of a run waits for its trackers. What W&B has not received by then, `sync` sends.
CLOSE_S = 30.0


class Sink(Protocol):
    """The destination of rows: a W&B run, or a folder of TensorBoard's events. One thread uses it."""

    def row(self, row: Row) -> None:
        """Take one step. A later row of the same step adds to it."""

    def close(self, state: str) -> None:
        """Flush everything; the run ended in that state."""


class Tracker:
    """Passes the steps of an attempt on to sinks. No method raises or waits, except `close`: at most CLOSE_S."""

    def __init__(self, sinks: Mapping[str, Callable[[], Sink]], replay: Callable[[], Iterator[Row]]) -> None:
        self._followers = [_Follower(name, opening, replay) for name, opening in sinks.items()]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put(Row(step, time.time(), dict(metrics)))

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[float]) -> None:
        """A histogram of the step that was logged last: n + 1 edges, n counts."""
        self._put(Row(step, time.time(), {}, {name: Histogram(list(edges), list(counts))}))

    def _put(self, item: Row | str) -> None:
        for follower in self._followers:
            follower.put(item)

    def close(self, state: str) -> None:
        """Report how the run ended, and give the trackers time to finish. It must be the last call."""
        self._put(state)
        deadline = time.monotonic() + CLOSE_S
        for follower in self._followers:
            follower.wait(max(0.0, deadline - time.monotonic()))


class _Follower:
    """A thread that opens a sink, replays the log into it and follows the run.

    It reports its first failure and ends.
    """

    def __init__(self, name: str, opening: Callable[[], Sink], replay: Callable[[], Iterator[Row]]) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Row | str] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(
            target=self._follow, args=(opening, replay), name=f"tracking-{name}", daemon=True
        )
        self._thread.start()

    def put(self, item: Row | str) -> None:
        """Pass on a step, or the state in which the run has ended."""
        if not self._failed:
            self._queue.put(item)

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive() and not self._failed:
            _say(self._name, f"not finished {CLOSE_S:g} s after the run")

    def _follow(self, opening: Callable[[], Sink], replay: Callable[[], Iterator[Row]]) -> None:
        try:
            sink = opening()
            for row in replay():
                sink.row(row)
            while not isinstance(item := self._queue.get(), str):
                sink.row(item)
            sink.close(item)
        except BaseException as error:  # wandb raises SystemExit too
            self._failed = True
            _say(self._name, f"{type(error).__name__}: {one_line(str(error))}")


def _say(name: str, problem: str) -> None:
    fix = "; `python -m launcher sync` sends the run" if name == "W&B" else ""
    print(f"tracking: {name}: {problem}; the local files are complete{fix}", file=sys.stderr, flush=True)


def start(folder: Path, config: Mapping[str, Any], attempt: int, settings: Mapping[str, Any]) -> Tracker:
    """Follow an attempt, from the end of the run's present metric log. Call it before the first step is logged.

    folder: the run's; config: frozen; attempt: from 1; settings: the plan's section `tracking`. Never raises.
    """
    sinks: dict[str, Callable[[], Sink]] = {}
    try:
        chosen = read_settings(settings)
        files.write_json(settings_path(folder), chosen.model_dump())
        if chosen.tensorboard:
            sinks["TensorBoard"] = lambda: import_module(f"{__name__}.tensorboard").EventFiles(folder)
        if chosen.wandb == ONLINE:
            sinks["W&B"] = lambda: import_module(f"{__name__}.wandb").LiveRun(folder, config, chosen)
        until = extent(folder)
    except Exception as error:
        _say(f"attempt {attempt}", f"{type(error).__name__}: {one_line(str(error))}")
        return Tracker({}, lambda: iter(()))
    return Tracker(sinks, lambda: rows(folder, until))
